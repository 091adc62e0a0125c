"""``python -m fourfold demo``: one character-level language model trained twice, in plain PyTorch and with fourfold."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fourfold.bench.timing import pinned_threads
from fourfold.demo import corpus as corpora
from fourfold.demo import report
from fourfold.demo.training import Run, agreement, in_turns, prepare, speedup, write
from fourfold.usage import UsageError, output_directory

PROMPTS = (b"def ", b"class ", b"    for ")
SAMPLE_LENGTH = 200
PICTURE = "fourfold-demo.png"


@dataclass(frozen=True)
class Options:
    """The command line's options, under its names."""

    hidden_size: int
    embedding_size: int
    steps: int
    batch_size: int
    sequence_length: int
    lr: float
    seed: int
    device: str
    threads: int | None
    out: Path


def run(options: Options) -> int:
    """Train, compare and report; returns the exit code: 0 when both loss curves agree, else 1."""
    device = usable_device(options.device)
    output_directory("demo", "--out", options.out, PICTURE)
    if options.sequence_length >= corpora.LENGTH:
        raise UsageError(
            f"demo: expected --sequence-length below the text's {corpora.LENGTH}, but got {options.sequence_length}"
        )
    corpus = corpora.read()
    with pinned_threads(options.threads or torch.get_num_threads()):
        size = (len(corpus.alphabet), options.embedding_size, options.hidden_size)
        plain, fused = prepare(*size, options.steps, options.lr, options.seed, device)
        parameters = sum(p.numel() for p in plain.model.parameters())
        print(report.opening(vars(options), len(corpus.alphabet), parameters), flush=True)
        train(plain, fused, options, corpus, device)
        samples = [
            write(fused.model, corpus, prompt, SAMPLE_LENGTH, options.seed + number)
            for number, prompt in enumerate(PROMPTS)
        ]
    faster = speedup(plain.seconds, fused.seconds)
    characters = options.batch_size * options.sequence_length
    result = report.Result(plain, fused, agreement(plain.losses, fused.losses), faster, characters)
    print(report.verdict(result))
    print(report.written(samples))
    print(save_picture(result, options.out))
    return 0 if result.agreement.holds else 1


def save_picture(result: report.Result, directory: Path) -> str:
    """Draws the picture where matplotlib is installed; says where it is or how to get it."""
    if not importable("matplotlib"):
        return "For a picture of both trainings install matplotlib: pip install 'fourfold[bench]'."
    from fourfold.demo import picture

    path = directory / PICTURE
    picture.save(result, path)
    return f"Picture: {path}"


def importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"demo: expected --device to be cpu, cuda, cuda:1 or mps, but got {name!r}") from error
    present = torch.accelerator.current_accelerator(check_available=True)
    if device.type != "cpu" and (present is None or present.type != device.type):
        raise UsageError(f"demo: expected --device to be one that torch can use here, but got {name!r}")
    if device.type != "cpu" and (device.index or 0) >= torch.accelerator.device_count():
        raise UsageError(f"demo: expected one of {torch.accelerator.device_count()} devices, but got {name!r}")
    return device


def block_steps(steps: int) -> int:
    """Steps of one turn: a fortieth of the training, an equal number in each so that their times can be compared."""
    return max(1, steps // 40)


def train(plain: Run, fused: Run, options: Options, corpus: corpora.Corpus, device: torch.device) -> None:
    def block(run: Run, steps: int) -> None:
        run.train(corpus, steps, options.batch_size, options.sequence_length, device)

    with progress(options.steps) as show:
        for done in in_turns((plain, fused), options.steps, block_steps(options.steps), block):
            show(done, plain.losses[-1], fused.losses[-1])


@contextlib.contextmanager
def progress(steps: int) -> Iterator[Callable[[int, float, float], None]]:
    """A bar where there is a terminal and rich, otherwise a line at every eighth of the way."""
    if sys.stdout.isatty() and importable("rich"):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, TimeRemainingColumn()) as bar:
            task = bar.add_task("", total=steps)
            yield lambda done, *losses: bar.update(task, completed=done, description=report.losses(*losses))
        return
    eighths = 0

    def line(done: int, *losses: float) -> None:
        nonlocal eighths
        if done * 8 // steps > eighths:
            eighths = done * 8 // steps
            print(f"  step {done:>{len(str(steps))}} of {steps}: {report.losses(*losses)}", flush=True)

    yield line
