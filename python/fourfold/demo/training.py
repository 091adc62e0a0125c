"""The demo's model and the two trainings, in turns."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from fourfold.demo.corpus import Corpus
from fourfold.demo.processes import Processes

ALONE = Processes()
State = tuple[Tensor, Tensor]


class CharacterModel(nn.Module):
    """Embedding, LLTM, linear: tokens (time, batch) give logits (time, batch, alphabet_size) for the next ones."""

    def __init__(self, alphabet_size: int, embedding_size: int, hidden_size: int, lltm: nn.Module):
        super().__init__()
        self.embedding = nn.Embedding(alphabet_size, embedding_size)
        self.lltm = lltm
        self.linear = nn.Linear(hidden_size, alphabet_size)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        output, state = self.lltm(self.embedding(tokens), state)
        return self.linear(output), state


@dataclass
class Run:
    """One model's training: its state, each step's loss, each block's seconds per step.

    parallel: the model that each of the processes calls.
    """

    name: str
    model: CharacterModel
    parallel: nn.Module
    processes: Processes
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    generator: torch.Generator
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def train(self, corpus: Corpus, steps: int, batch_size: int, sequence_length: int, device: torch.device) -> None:
        batches = [corpus.batch(batch_size, sequence_length, self.generator) for _ in range(steps)]
        batches = [[self.processes.part(piece).to(device) for piece in batch] for batch in batches]
        losses = []
        start, end = fourfold.Event(device), fourfold.Event(device)
        start.record()
        for tokens, targets in batches:
            logits, _ = self.parallel(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.detach())
        end.record()
        end.synchronize()
        self.seconds.append(1e-3 * start.elapsed_time(end) / steps)
        self.losses += self.processes.mean(torch.stack(losses)).tolist()


class Trio(NamedTuple):
    plain: Run
    fused: Run
    lstm: Run


def prepare(
    alphabet_size: int,
    embedding_size: int,
    hidden_size: int,
    steps: int,
    lr: float,
    seed: int,
    device: torch.device,
    processes: Processes = ALONE,
) -> Trio:
    """The plain and the fourfold training, with the same parameters, optimizer, schedule and data order; and that of
    torch's own LSTM of the same size, another cell."""

    def factor(step: int) -> float:
        """The learning rate's factor: a linear rise over a tenth of the steps times a half cosine down to zero."""
        return min(1.0, 10 * (step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))

    def run(name: str, model: CharacterModel) -> Run:
        parallel = processes.parallel(model, device)  # may replace the parameters
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return Run(name, model, parallel, processes, optimizer, schedule, torch.Generator().manual_seed(seed))

    def model(lltm: Callable[[int, int], nn.Module]) -> CharacterModel:
        return CharacterModel(alphabet_size, embedding_size, hidden_size, lltm(embedding_size, hidden_size)).to(device)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain, fused, lstm = map(model, (reference.LLTM, fourfold.nn.LLTM, nn.LSTM))
    fused.load_state_dict(plain.state_dict())
    return Trio(run("plain PyTorch", plain), run("fourfold", fused), run("torch.nn.LSTM", lstm))


def interleaved(runs: tuple[Run, Run], steps: int, block: int, train: Callable[[Run, int], None]) -> Iterator[int]:
    """Trains all by blocks of steps, in alternating order; yields the steps done after each block."""
    for number, start in enumerate(range(0, steps, block)):
        count = min(block, steps - start)
        for run in runs if number % 2 == 0 else runs[::-1]:
            train(run, count)
        yield start + count


@dataclass(frozen=True)
class Agreement:
    """How far two loss curves are apart: at most in any of the first steps, and at most in the mean over a window."""

    first_steps: float
    windows: float

    # Before training has amplified anything the two differ by float32 rounding alone, less than 1e-6 of a loss near
    # 4.5; the tolerance leaves room for a GPU's approximate exp and tanh. A wrong gradient shows here at once.
    FIRST_STEPS = 10
    FIRST_STEPS_TOLERANCE = 1e-4
    # Later on training is chaotic. The plain model against itself, initial parameters disturbed by one part in ten
    # million, differs by up to 0.1 in a single step; means over 20 steps differed by up to 0.03 in a dozen runs of
    # several seeds and learning rates. The tolerance is three times that.
    WINDOW = 20
    WINDOW_TOLERANCE = 0.1

    @property
    def holds(self) -> bool:
        return self.first_steps <= self.FIRST_STEPS_TOLERANCE and self.windows <= self.WINDOW_TOLERANCE


def agreement(plain: list[float], fused: list[float]) -> Agreement:
    first = slice(Agreement.FIRST_STEPS)
    differences = (torch.tensor(plain[first]) - torch.tensor(fused[first])).abs()
    windows = torch.tensor(windowed(plain)) - torch.tensor(windowed(fused))
    return Agreement(differences.max().item(), windows.abs().max().item())


def windowed(losses: Sequence[float]) -> list[float]:
    """Means over windows of Agreement.WINDOW steps or a few more; one window if there are fewer."""
    parts = torch.tensor(losses, dtype=torch.float64).tensor_split(max(1, len(losses) // Agreement.WINDOW))
    return [part.mean().item() for part in parts]


def speedups(plain: list[float], fused: list[float]) -> list[float]:
    """Ratios of the two runs' block times, without the first block, which is warm-up."""
    return [a / b for a, b in zip(plain[1:], fused[1:], strict=True)]


@torch.no_grad()
def write(
    model: CharacterModel, corpus: Corpus, prompt: bytes, seed: int, length: int, temperature: float = 0.7
) -> str:
    """Continues a prompt, one character at a time, each drawn from the model's prediction."""
    device = model.linear.weight.device
    generator = torch.Generator().manual_seed(seed)
    text = corpus.encode(prompt).tolist()
    tokens, state = torch.tensor(text, device=device).unsqueeze(1), None
    for _ in range(length):
        logits, state = model(tokens, state)
        prediction = torch.softmax(logits[-1, 0].float().cpu() / temperature, dim=0)
        if not prediction.isfinite().all():  # a learning rate far too high: there is nothing to draw from
            break
        text.append(int(torch.multinomial(prediction, 1, generator=generator)))
        tokens = torch.tensor([text[-1:]], device=device)
    return corpus.decode(text)
