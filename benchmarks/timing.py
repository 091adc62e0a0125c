"""How every benchmark here measures: contenders in turns in one process, medians with their spread, paired ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ENOUGH_REPEATS = 30
SAMPLE_SECONDS = 5e-3  # long against the clock's resolution, short against a scheduler's interruptions
SLOW_SECONDS = 0.25  # a contender whose iteration takes longer gets as many samples as fit SLOW_BUDGET
SLOW_BUDGET = 2.0
FEWEST_REPEATS = 3

Sample = Callable[[int], Mapping[str, float]]  # runs so many iterations; gives each phase's mean seconds an iteration


@dataclass(frozen=True)
class Statistics:
    """Of one row and phase: what its samples give, in the samples' unit."""

    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    repeats: int

    @property
    def spread(self) -> float:
        """The interquartile range, which a few disturbed samples don't move."""
        return self.upper_quartile - self.lower_quartile


def summarise(samples: list[float]) -> Statistics:
    """Median, minimum and quartiles, the inclusive kind; a single sample is its own quartiles."""
    if len(samples) == 1:
        return Statistics(*samples * 4, repeats=1)
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Statistics(median, min(samples), lower, upper, len(samples))


def paired_ratios(baseline: list[float], other: list[float]) -> list[float]:
    """How many times faster ``other`` was, sample by sample: both of a pair saw the machine in the same state.

    A slow contender takes part in the first rounds only, and those are the pairs.
    """
    return [a / b for a, b in zip(baseline, other, strict=False)]


def interleave(contenders: Mapping[str, Sample], repeats: int, warmup: int = 3) -> dict[str, dict[str, list[float]]]:
    """Take samples of all contenders in turns; gives seconds per iteration as ``result[contender][phase]``.

    Each contender's sample has as many iterations as fit SAMPLE_SECONDS. Who starts a round moves on with each round,
    so that nobody always runs after the same neighbour's cache contents at the same place.
    """
    plans = {name: plan(sample, repeats, warmup) for name, sample in contenders.items()}
    names = list(contenders)
    result: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for repeat in range(repeats):
        first = repeat % len(names) if names else 0
        for name in names[first:] + names[:first]:
            iterations, rounds = plans[name]
            if repeat < rounds:
                for phase, seconds in contenders[name](iterations).items():
                    result[name].setdefault(phase, []).append(seconds)
    return result


def plan(sample: Sample, repeats: int, warmup: int) -> tuple[int, int]:
    """Warm up, then say how many iterations make a sample and in how many rounds it is taken."""
    seconds = wall_seconds(sample, 1)
    if seconds > SLOW_SECONDS:
        return 1, min(repeats, max(FEWEST_REPEATS, round(SLOW_BUDGET / seconds)))
    for _ in range(warmup - 1):
        sample(5)
    return max(1, round(5 * SAMPLE_SECONDS / wall_seconds(sample, 5))), repeats


def wall_seconds(sample: Sample, iterations: int) -> float:
    start = time.perf_counter()
    sample(iterations)
    return time.perf_counter() - start
