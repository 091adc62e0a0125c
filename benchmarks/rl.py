"""``rl``: a rollout with restarts in one call; and recurrent PPO: frames per second of collecting and learning."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import recurrent, sb3
from benchmarks.measure import in_turn, paired_ratios, summarise
from benchmarks.problem import Problem
from benchmarks.recurrent_ppo import Policy, Sizes, loss_of, policy_of, training
from benchmarks.request import Request
from benchmarks.results import Report, count
from benchmarks.targets import OURS, PLAIN
from fourfold.cli.timing import pinned_threads

WORKERS = 2
REPEATS = 15
QUICK = Sizes(steps=32, hidden_size=32, epochs=2)
RESTATED = f"{PLAIN}, step by step"
TOLERANCE = 1e-4  # of float32 sums over a rollout, in different orders, relative to the largest
# Whether the layers are fourfold's or torch.nn's, and the number of collecting processes besides the learner's.
WAYS = {
    RESTATED: (False, 0),
    f"{RESTATED}, {WORKERS} workers": (False, WORKERS),
    OURS: (True, 0),
    f"{OURS}, {WORKERS} workers": (True, WORKERS),
}


@dataclass
class Way:
    """A row: seconds of collecting and learning in each iteration, or why there are none."""

    name: str
    reason: str = ""
    collecting: list[float] = field(default_factory=list)
    learning: list[float] = field(default_factory=list)

    @property
    def whole(self) -> list[float]:
        return [a + b for a, b in zip(self.collecting, self.learning, strict=True)]


def tables(request: Request) -> Iterator[Problem | Report]:
    yield from recurrent.rl(request)
    for threads in request.threads:
        with pinned_threads(threads):
            yield report(QUICK if request.quick else Sizes(), min(request.repeats, REPEATS), threads)


def report(sizes: Sizes, repeats: int, threads: int) -> Report:
    error = largest_error(sizes)
    ways = measure(sizes, repeats)
    baseline = next(way for way in ways if not way.reason)
    frames = sizes.environments * sizes.steps
    rows = [row(way, baseline, frames) for way in ways]
    wrong = not error <= TOLERANCE
    return Report(
        title=f"Recurrent PPO, {sizes.environments} environments, {sizes.steps} steps, hidden {sizes.hidden_size}, "
        f"{sizes.epochs} epochs: {count(threads)} of the learner",
        headings=("", "frames/s", "quartiles", "collecting, ms", "learning, ms", "ratio"),
        cells=[cells for cells, _ in rows],
        figures=[figures for _, figures in rows],
        notes=(
            f"Medians of {repeats} iterations in turns; ratios to {baseline.name}, of iterations side by side.",
            f"One rollout's loss and gradients, fourfold's against {RESTATED}: relative difference {error:.1e} "
            f"(tolerance {TOLERANCE:.0e}){', WRONG' if wrong else ''}.",
        ),
        wrong=wrong,
    )


def row(way: Way, baseline: Way, frames: int) -> tuple[Sequence[str], dict[str, Any]]:
    if way.reason:
        return (way.name, way.reason, "", "", "", ""), {"way": way.name, "reason": way.reason}
    speeds = summarise([frames / seconds for seconds in way.whole])
    ratio = summarise(paired_ratios(baseline.whole, way.whole))
    collecting, learning = statistics.median(way.collecting), statistics.median(way.learning)
    cells = (f"{1e3 * collecting:.1f}", f"{1e3 * learning:.1f}", f"{ratio.median:.2f}×")
    quartiles = f"{speeds.lower_quartile:,.0f} to {speeds.upper_quartile:,.0f}"
    figures = {"frames_per_second": speeds.median, "collecting": collecting, "learning": learning}
    of_ratio = {"ratio": ratio.median, "lower_quartile": ratio.lower_quartile, "upper_quartile": ratio.upper_quartile}
    return (way.name, f"{speeds.median:,.0f}", quartiles, *cells), {"way": way.name, **figures, **of_ratio}


def measure(sizes: Sizes, repeats: int) -> list[Way]:
    """All ways in turns; the first iteration of each is a warm-up."""
    reason = sb3.missing()
    ways = [Way(sb3.NAME, reason), *map(Way, WAYS)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        trainings: dict[str, Any] = {} if reason else {sb3.NAME: sb3.Training(sizes)}
        for name, how in WAYS.items():
            trainings[name] = stack.enter_context(training(Path(folder), sizes, *how))
        named = {way.name: way for way in ways}
        for repeat in range(repeats + 1):
            for name in in_turn(list(trainings), repeat):
                collecting, learning = trainings[name].iteration()
                if repeat:
                    named[name].collecting.append(collecting)
                    named[name].learning.append(learning)
    return ways


def largest_error(sizes: Sizes) -> float:
    """The largest error of the loss and its gradients, fourfold's against the step loop's, on the same rollout."""
    with tempfile.TemporaryDirectory() as folder, training(Path(folder), sizes, False, 0) as plain:
        plain.collect()
        rollout = plain.learner.rollout
        advantages = rollout.advantages()
        policies: list[Policy] = [policy_of(sizes, fused) for fused in (False, True)]
        found = []
        for policy in policies:
            loss = loss_of(policy, rollout, advantages)
            found.append([loss.detach(), *torch.autograd.grad(loss, list(policy.parameters()))])
        errors = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True)]
    return max(errors)
