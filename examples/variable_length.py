"""Sequences of different lengths: which package of the standard library does a line of Python come from?

    python examples/variable_length.py

A bidirectional GRU reads the bytes of each line. The lines of a batch are packed: no step is spent on padding, and
the final states are those at each line's own ends. The lines of every fourth file are held out.
"""

from __future__ import annotations

import argparse
import statistics
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import fourfold

PACKAGES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml")
SHORTEST, LONGEST = 8, 100  # bytes of a line
Example = tuple[Tensor, int]  # bytes (length), and the package's number


class Lines(nn.Module):
    """Logits (batch, packages) of packed lines. gru: nn.GRU or fourfold.nn.GRU."""

    def __init__(self, gru: type[nn.GRU], hidden_size: int):
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.gru = gru(32, hidden_size, bidirectional=True)
        self.head = nn.Linear(2 * hidden_size, len(PACKAGES))

    def forward(self, lines: PackedSequence) -> Tensor:
        embedded = PackedSequence(self.embedding(lines.data), *lines[1:])  # packed as the lines are
        _, (forward, backward) = self.gru(embedded)
        return self.head(torch.cat((forward, backward), -1))


@dataclass(frozen=True)
class Result:
    accuracy: float  # on held-out lines
    of_majority: float  # of always saying the most frequent package of the training lines
    difference: float  # the largest, between logits of packed lines and of each line alone
    milliseconds: dict[str, float]  # of a batch forward and backward


def lines() -> tuple[list[Example], list[Example]]:
    """To train on, and of every fourth file, without lines that both have."""
    library, parts = Path(sysconfig.get_path("stdlib")), ({}, {})
    for label, package in enumerate(PACKAGES):
        for number, path in enumerate(sorted((library / package).rglob("*.py"))):
            for line in path.read_bytes().splitlines():
                if SHORTEST <= len(line.strip()) <= LONGEST:
                    parts[number % 4 == 3].setdefault(line.strip(), label)
    seen, unseen = parts
    unseen = {line: label for line, label in unseen.items() if line not in seen}
    return tuple([(torch.tensor(list(line)), label) for line, label in part.items()] for part in (seen, unseen))


def packed(batch: Sequence[Example]) -> tuple[PackedSequence, Tensor]:
    inputs, labels = zip(*batch, strict=True)
    return pack_sequence(inputs, enforce_sorted=False), torch.tensor(labels)


def train(model: Lines, examples: list[Example], epochs: int, batch_size: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(epochs):
        losses = []
        for batch in torch.randperm(len(examples)).split(batch_size):
            inputs, labels = packed([examples[k] for k in batch])
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}", flush=True)


def timed(models: dict[str, Lines], batch: Sequence[Example]) -> dict[str, float]:
    """The median milliseconds of a forward and backward, the models in turns."""
    inputs, labels = packed(batch)
    times: dict[str, list[float]] = {name: [] for name in models}
    for name, model in list(models.items()) * 11:
        begin = perf_counter()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        times[name].append(1e3 * (perf_counter() - begin))
    return {name: statistics.median(of_model) for name, of_model in times.items()}


@torch.inference_mode()
def accuracy(model: nn.Module, examples: list[Example]) -> float:
    inputs, labels = packed(examples)
    return (model(inputs).argmax(-1) == labels).float().mean().item()


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2, help="passes over the lines (2)")
    parser.add_argument("--batch-size", type=int, default=64, help="lines a step (64)")
    parser.add_argument("--hidden-size", type=int, default=64, help="units of the GRU, each direction (64)")
    parser.add_argument("--quick", action="store_true", help="a smaller model and one epoch, for a test")
    options = parser.parse_args(arguments)
    if options.quick:
        options.hidden_size, options.epochs = 32, 1
    torch.manual_seed(0)
    seen, unseen = lines()
    print(f"{len(seen):,} lines to train on, {len(unseen):,} of other files; packages: {', '.join(PACKAGES)}")
    model, plain = Lines(fourfold.nn.GRU, options.hidden_size), Lines(nn.GRU, options.hidden_size)
    train(model, seen, options.epochs, options.batch_size)
    plain.load_state_dict(model.state_dict())
    times = timed({"torch.nn.GRU": plain, "fourfold.nn.GRU": model}, seen[: options.batch_size])
    (majority, _), *_ = Counter(label for _, label in seen).most_common(1)
    with torch.inference_mode():
        alone = torch.cat([model(packed([example])[0]) for example in unseen[:50]])
        difference = (model(packed(unseen[:50])[0]) - alone).abs().max().item()
    guessed = sum(label == majority for _, label in unseen) / len(unseen)
    result = Result(accuracy(model, unseen), guessed, difference, times)
    print(f"accuracy {result.accuracy:.1%}; always {PACKAGES[majority]}: {guessed:.1%}")
    print(f"largest difference of logits, packed and each line alone: {difference:.1e}")
    for name, time in times.items():
        print(f"{name:16}{time:8.2f} ms a batch forward and backward{times['torch.nn.GRU'] / time:8.2f}×")
    return result


if __name__ == "__main__":
    main()
