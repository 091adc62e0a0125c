"""The demo's output before and after the trainings."""

import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import fourfold
from fourfold.cli import timing
from fourfold.demo import corpus
from fourfold.demo.training import Agreement, Run, windowed

NEXT = (
    "Next: fourfold.optimize(your_model) replaces the layers of your own model; the first steps are on\n"
    "https://github.com/fourfold/fourfold/blob/main/docs/quickstart.md"
)
HINT = (
    "Far above the default learning rate any two runs that round differently come apart; at the default this is an\n"
    "error in fourfold: please report it with the output of python -m fourfold info."
)


@dataclass(frozen=True)
class Result:
    """Both trainings and their comparison."""

    plain: Run
    fused: Run
    lstm: Run
    agreement: Agreement
    speedups: list[float]
    characters_per_step: int

    def speeds(self, run: Run) -> list[float]:
        """Characters per second in each timed block."""
        return [self.characters_per_step / seconds for seconds in run.seconds[1:]]


def opening(options: Mapping[str, Any], alphabet_size: int, parameters: int) -> str:
    where = options["device"]
    if where == "cpu":
        where = f"{torch.get_num_threads()} CPU threads, {fourfold.cpu_capability()} kernels"
    load = timing.load_average()
    busy = f"\nbusy    load average {load:.2f}: expect the speeds to vary" if timing.is_noisy(load) else ""
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        busy += "\nwaits   asleep: threads that wait give their CPUs away (OMP_WAIT_POLICY=PASSIVE)"
    return (
        f"text    {corpus.LENGTH:,} characters of Python {platform.python_version()}'s standard library,"
        f" {alphabet_size} different ones\n"
        f"model   embedding {options['embedding_size']}, LLTM {options['hidden_size']}, linear {alphabet_size}:"
        f" {parameters:,} parameters\n"
        f"steps   {options['steps']} for each model,"
        f" of {options['batch_size']} × {options['sequence_length']} characters\n"
        f"where   {where}, torch {torch.__version__}{busy}"
    )


def verdict(result: Result) -> str:
    found, ratios = result.agreement, result.speedups
    first = f"differ by at most {found.first_steps:.1e}" if found.first_steps else "are equal"
    lines = [
        "",
        f"{'Both learn the same' if found.holds else 'THE LOSSES DISAGREE'}: losses {first} in each of the first "
        f"{found.FIRST_STEPS} steps (tolerance {found.FIRST_STEPS_TOLERANCE:.0e}),",
        f"and differ by at most {found.windows:.3f} in the mean over any {found.WINDOW} steps (tolerance "
        f"{found.WINDOW_TOLERANCE}).",
        *([] if found.holds else [HINT]),
        "",
        f"{'':15}{'characters/s':>14}{'slowest to fastest block':>28}{'last loss':>12}",
    ]
    for run in (result.plain, result.fused, result.lstm):
        speeds = result.speeds(run)
        spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        # The LSTM has taken fewer steps.
        last = f"{windowed(run.losses)[-1]:.3f}" if run is not result.lstm else "-"
        lines.append(f"{run.name:15}{statistics.median(speeds):>14,.0f}{spread:>28}{last:>12}")
    lines += [
        "",
        f"Speed-up: {statistics.median(ratios):.2f}× in the median of {len(ratios)} pairs of blocks, "
        f"{min(ratios):.2f}× to {max(ratios):.2f}×, for the whole training step",
        "(embedding, linear layer, loss and optimizer, which cost both the same, are in it). torch.nn.LSTM is another",
        "cell of the same size, for which torch has kernels of its own.",
    ]
    return "\n".join(lines)


def written(samples: list[str]) -> str:
    pieces = ("\n".join(f"  │ {line}".rstrip() for line in sample.splitlines()) for sample in samples)
    return "\nWhat the model trained with fourfold writes:\n\n" + "\n\n".join(pieces) + "\n"
