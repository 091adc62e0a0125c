"""``python -m fourfold demo``: one character-level language model trained twice, in plain PyTorch and with fourfold."""

import argparse
import importlib.util
from pathlib import Path

import torch

from fourfold.cli.timing import pinned_threads
from fourfold.cli.usage import UsageError, limit_memory, output_directory, usable_device
from fourfold.demo import corpus as corpora
from fourfold.demo import report
from fourfold.demo.bar import progress
from fourfold.demo.processes import Processes, joined
from fourfold.demo.training import Run, Trio, agreement, interleaved, prepare, speedups, write

PROMPTS = (b"def ", b"class ", b"    for ")
SAMPLE_LENGTH = 200
PICTURE = "fourfold-demo.png"
LSTM_PART = 4  # takes one step for this many of the others'
STEPS, QUICK_STEPS = 2000, 80


def run(options: argparse.Namespace) -> int:
    """Trains, compares and reports; returns the exit code: 0 if both loss curves agree, else 1."""
    with joined(options.device, options.fsdp) as processes:
        return demonstrate(options, processes)


def demonstrate(options: argparse.Namespace, processes: Processes) -> int:
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    device = processes.agreed(lambda: usable(options, processes))
    corpus = processes.agreed(corpora.read)
    with pinned_threads(options.threads or torch.get_num_threads()):
        size = (len(corpus.alphabet), options.embedding_size, options.hidden_size)
        runs = prepare(*size, options.steps, options.lr, options.seed, device, processes)
        plain, fused, lstm = runs
        parameters = sum(p.numel() for p in plain.model.parameters())
        opening = report.opening(vars(options), len(corpus.alphabet), parameters)
        processes.say(opening + processes.describe(options.batch_size))
        train(runs, options, corpus, device, processes)
        seeds = range(options.seed, options.seed + len(PROMPTS))
        # In all processes: if the parameters are sharded, each process has only a part of them.
        prompts = () if options.quick else zip(PROMPTS, seeds, strict=True)
        samples = [write(fused.model, corpus, *sample, SAMPLE_LENGTH) for sample in prompts]
    characters = options.batch_size * options.sequence_length
    losses_agree, ratios = agreement(plain.losses, fused.losses), speedups(plain.seconds, fused.seconds)
    result = report.Result(plain, fused, lstm, losses_agree, ratios, characters)
    if processes.is_first:
        print(report.verdict(result))
        if not options.quick:
            print(report.written(samples))
            print(save_picture(result, options.out))
        print(report.NEXT)
    return 0 if result.agreement.holds else 1


def usable(options: argparse.Namespace, processes: Processes) -> torch.device:
    """This process's device. Raises UsageError for options that can't be met."""
    if options.steps < 2:
        raise UsageError("demo: expected --steps to be at least 2, one to warm up and one to time, but got 1")
    processes.expect_equal_parts(options.batch_size)
    device = usable_device("demo", processes.device(options.device))
    if processes.launched and device.type == "cuda":
        torch.cuda.set_device(device)
    limit_memory("demo", device, options.memory_fraction)
    if processes.is_first and not options.quick:
        output_directory("demo", "--out", options.out, PICTURE)
    if options.sequence_length >= corpora.LENGTH:
        raise UsageError(
            f"demo: expected --sequence-length below the text's {corpora.LENGTH}, but got {options.sequence_length}"
        )
    return device


def save_picture(result: report.Result, directory: Path) -> str:
    """Draws the picture if matplotlib is installed; returns a line with its path, or how to install matplotlib."""
    if not importable("matplotlib"):
        return "For a picture of both trainings install matplotlib: pip install 'fourfold[demo]'."
    from fourfold.demo import picture

    path = directory / PICTURE
    picture.save(result, path)
    return f"Picture: {path}"


def importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def train(
    runs: Trio, options: argparse.Namespace, corpus: corpora.Corpus, device: torch.device, processes: Processes
) -> None:
    eighths = 0
    # A turn is a fortieth of the training, with an equal number of steps in each so that their times can be compared.
    turn = max(1, options.steps // 40)

    def steps_of(run: Run, steps: int) -> int:
        return steps if run is not runs.lstm else max(1, steps // LSTM_PART)  # the LSTM is only timed

    turns = [min(turn, options.steps - start) for start in range(0, options.steps, turn)]
    with progress(sum(steps_of(run, steps) for steps in turns for run in runs), processes.is_first) as bar:

        def block(run: Run, steps: int) -> None:
            steps = steps_of(run, steps)
            run.train(corpus, steps, options.batch_size, options.sequence_length, device)
            bar.update(steps)

        for done in interleaved(runs, options.steps, turn, block):
            if done * 8 // options.steps > eighths:
                eighths = done * 8 // options.steps
                losses = f"loss {runs.plain.losses[-1]:.3f} plain, {runs.fused.losses[-1]:.3f} fourfold"
                bar.write(f"  step {done:>{len(str(options.steps))}} of {options.steps}: {losses}")
