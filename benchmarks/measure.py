"""How every suite measures: rows are checked for correctness, then timed in turns in one process; medians, spread and
paired ratios."""

from __future__ import annotations

import math
import random
import re
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fourfold
from benchmarks.problem import Candidate, Contender, Problem, Unavailable, bytes_kept
from benchmarks.targets import BACKWARD, BOTH, COLD, FORWARD, NO_GRAD, OURS
from fourfold.cli.timing import synchronize

ENOUGH_REPEATS = 30
SAMPLE_SECONDS = 5e-3  # long compared with the clock's resolution, short compared with a scheduler's interruptions
UNTIMED = 2  # calls before each sample: the first calls after another row's find its data in the caches
SLOW_SECONDS = 0.25  # a row with a longer iteration gets as many samples as fit SLOW_BUDGET
SLOW_BUDGET, FEWEST_REPEATS = 2.0, 3
MANY_BYTES = 2**28  # more than caches hold; writing it takes so long that the host can queue a whole call meanwhile
COMPILERS = ("inductor", "aot_eager", "fourfold")
SKIPPED = "left out by --skip or --quick"

Sample = Callable[[int], Mapping[str, float]]  # runs that many iterations; returns each phase's mean seconds


@dataclass(frozen=True)
class Statistics:
    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    repeats: int

    @property
    def spread(self) -> float:
        """The interquartile range, which a few disturbed samples don't change."""
        return self.upper_quartile - self.lower_quartile


def summarise(samples: Sequence[float]) -> Statistics:
    """Median, minimum and inclusive quartiles; a single sample is its own quartiles."""
    if len(samples) == 1:
        return Statistics(*[*samples] * 4, repeats=1)
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Statistics(median, min(samples), lower, upper, len(samples))


def paired_ratios(baseline: Sequence[float], other: Sequence[float]) -> list[float]:
    """How many times faster ``other`` was, sample by sample: both samples of a pair were taken with the machine in the
    same state.

    A slow row has samples of the first rounds only; only those are paired.
    """
    return [a / b for a, b in zip(baseline, other, strict=False)]


def median_ratio(baseline: Sequence[float], other: Sequence[float]) -> float | None:
    return summarise(ratios).median if (ratios := paired_ratios(baseline, other)) else None


def beaten(samples: Mapping[str, Sequence[float]], ours: Sequence[float]) -> list[str]:
    """Descriptions of the rows that were faster than fourfold's."""
    ratios = {name: median_ratio(theirs, ours) for name, theirs in samples.items()}
    return [f"{ratio:.2f}× of {name}" for name, ratio in ratios.items() if ratio is not None and round(ratio, 2) < 1]


def in_turn(names: Sequence[str], repeat: int) -> list[str]:
    """In a random order, the same for a round's number, so that no row always follows the same one."""
    return random.Random(repeat).sample(names, len(names))


def interleave(contenders: Mapping[str, Sample], repeats: int, warmup: int = 3) -> dict[str, dict[str, list[float]]]:
    """Samples of all contenders in turns, as seconds per iteration in ``result[contender][phase]``."""
    plans = {name: plan(sample, repeats, warmup) for name, sample in contenders.items()}
    result: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    for repeat in range(repeats):
        for name in in_turn(list(contenders), repeat):
            iterations, rounds = plans[name]
            if repeat < rounds:
                contenders[name](UNTIMED)
                for phase, seconds in contenders[name](iterations).items():
                    result[name].setdefault(phase, []).append(seconds)
    return result


def plan(sample: Sample, repeats: int, warmup: int) -> tuple[int, int]:
    """Warms up; returns the iterations per sample of SAMPLE_SECONDS and the number of rounds."""
    seconds = wall_seconds(sample, 1)
    if seconds > SLOW_SECONDS:
        return 1, min(repeats, max(FEWEST_REPEATS, round(SLOW_BUDGET / seconds)))
    for _ in range(warmup - 1):
        sample(5)
    fourfold.wait_for_nests()
    return max(1, round(5 * SAMPLE_SECONDS / wall_seconds(sample, 5))), repeats


def wall_seconds(call: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


class ThreadTime:
    """An event's CPU time, of this thread: what other processes take of its time does not count."""

    def record(self) -> None:
        self.seconds = time.thread_time()

    def elapsed_time(self, end: ThreadTime) -> float:
        return (end.seconds - self.seconds) * 1e3


class Clock:
    """Records events before and after work on the device and reads the time between them at the end. On the CPU no
    cache is flushed: rows are measured warm; with one thread, its CPU time is read."""

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self.graphs = self.device.type == "cuda"  # whether calls can be captured in CUDA graphs
        self.scratch = None if self.device.type == "cpu" else scratch(self.device)
        self.event: Callable[[], Any] = ThreadTime
        self.events: list[Any] = []  # reused: creating an event takes longer than recording it
        self.marks = 0

    def mark(self) -> Any:
        """Valid until the next settle()."""
        if self.marks == len(self.events):
            self.events.append(self.event())
        event = self.events[self.marks]
        self.marks += 1
        event.record()
        return event

    def seconds(self, pairs: Sequence[tuple[Any, Any]]) -> float:
        """The sum over all pairs of events."""
        synchronize(self.device)
        return sum(start.elapsed_time(end) for start, end in pairs) * 1e-3

    def flush(self) -> None:
        """Overwrite the device's cache."""
        if self.scratch is not None:
            self.scratch.zero_()

    def settle(self) -> None:
        """Every row starts in the same state: no pending work, none of its data in the device's cache."""
        self.marks = 0
        is_thread = self.device.type == "cpu" and torch.get_num_threads() == 1
        if is_thread != (self.event is ThreadTime):
            self.event, self.events = ThreadTime if is_thread else partial(fourfold.Event, self.device), []
        self.flush()
        synchronize(self.device)


def scratch(device: torch.device) -> Tensor:
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return torch.empty(max(4 * cache, MANY_BYTES), dtype=torch.uint8, device=device)


def seconds_per_call(clock: Clock, call: Callable[[], Any], iterations: int, cold: bool = False) -> float:
    """Calls back to back between two events; if cold, each call between its own two events after a flush."""
    clock.settle()
    pairs = []
    for _ in range(iterations if cold else 1):
        if cold:
            clock.flush()
        start = clock.mark()
        for _ in range(1 if cold else iterations):
            call()
        pairs.append((start, clock.mark()))
    return clock.seconds(pairs) / iterations


@dataclass
class Row:
    """The result for a contender: measurements, or why there are none."""

    name: str
    graphed: bool = False  # replayed as a CUDA graph
    reason: str = ""
    wrong: bool = False
    error: float = math.nan  # the largest relative error against float64
    tolerance: float = math.nan
    first_call: float = math.nan  # seconds to build it and run forward and backward once
    kept: int | None = None  # bytes saved for the backward
    samples: Mapping[str, list[float]] = field(default_factory=dict)  # seconds per iteration, by phase

    @property
    def label(self) -> str:
        return f"{self.name}, CUDA graph" if self.graphed else self.name

    @property
    def own(self) -> bool:
        """Whether it is fourfold's."""
        return self.name.split(",")[0] == OURS


def compare(
    problem: Problem,
    contenders: Sequence[Contender],
    repeats: int,
    clock: Clock | None = None,
    skip: Collection[str] = (),
) -> list[Row]:
    """Check every contender, then time the correct ones; on a GPU each also as a CUDA graph."""
    from benchmarks import graphs

    clock = clock or Clock()
    if any(contender.tool in COMPILERS for contender in contenders):
        torch.compiler.reset()  # code is compiled for each table's shapes, and Inductor's for one thread count
    rows, samples = [], {}
    exact = problem.exact()
    for contender in contenders:
        own = contender.own(problem)
        own_exact = exact if own.definition is problem.definition else own.exact()
        row, candidate = prepare(own, contender, own_exact, skip)
        rows.append(row)
        if candidate is None:
            continue
        samples[row.label] = sampler(own, candidate, clock)
        if clock.graphs:
            row, captured = graphs.prepare(own, contender, candidate, own_exact)
            rows.append(row)
            if captured:
                samples[row.label] = graphs.sampler(own, captured, clock)
    measured = interleave(samples, repeats)
    for row in rows:
        row.samples = measured.get(row.label, {})
    return rows


def prepare(
    problem: Problem, contender: Contender, exact: Sequence[Tensor], skip: Collection[str] = ()
) -> tuple[Row, Candidate | None]:
    """Build a contender, set its parameters to the problem's, run it once, timed, and check the results."""
    row = Row(contender.name, reason=SKIPPED if contender.tool in skip else contender.left_out)
    if row.reason:
        return row, None
    start = time.perf_counter()
    try:
        candidate = problem.prepared(contender.build(problem))
        with torch.no_grad():
            for own, given in zip(candidate.parameters, problem.parameters, strict=True):
                own.copy_(given.view_as(own))
        results = problem.run_once(candidate)
    except Unavailable as unavailable:
        row.reason = str(unavailable)
        return row, None
    except RuntimeError as error:  # also Dynamo's, Inductor's and out of memory; the other rows keep their results
        words = "can't be compiled" if contender.tool == "inductor" else "failed"
        row.reason, row.wrong = f"{words}: {first_sentence(error)}", row.own
        return row, None
    synchronize(problem.device)
    row.first_call = time.perf_counter() - start
    row.kept = bytes_kept(problem, candidate) if problem.keeps else None
    return row, candidate if is_right(row, problem, results, exact) else None


def is_right(row: Row, problem: Problem, results: Sequence[Sequence[Tensor]], exact: Sequence[Tensor]) -> bool:
    row.error, row.tolerance = problem.error(results, exact), problem.tolerance
    if not row.error <= row.tolerance:
        row.reason = f"WRONG: relative error {row.error:.1e}, tolerance {row.tolerance:.1e}; not timed"
        row.wrong = True
    return not row.wrong


def first_sentence(error: BaseException) -> str:
    """The line of an error that gives the reason: compilers print much around it, torch a heading before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Error building extension")] or ["no message"]
    telling = [line for line in lines if re.search(r"\berror\b|not found|cannot find", line, re.IGNORECASE)]
    return f"{type(error).__name__}: {(telling or lines)[0]}"


def sampler(problem: Problem, candidate: Candidate, clock: Clock) -> Sample:
    """The tutorial's loop: forward and backward are timed separately and gradients cleared in between; forward without
    gradient comes first."""
    call = partial(candidate.call, *problem.inputs)

    def sample(iterations: int) -> dict[str, float]:
        with torch.no_grad():
            untrained = [phase for phase in (COLD, NO_GRAD) if phase in problem.phases]
            seconds = {phase: seconds_per_call(clock, call, iterations, cold=phase == COLD) for phase in untrained}
        if problem.trains:
            seconds |= training_seconds(problem, candidate, clock, iterations)
        return {phase: seconds[phase] for phase in problem.phases}

    return sample


def training_seconds(problem: Problem, candidate: Candidate, clock: Clock, iterations: int) -> dict[str, float]:
    call, inputs, mark = candidate.call, problem.inputs, clock.mark
    forward, backward = [], []
    clock.settle()
    for _ in range(iterations):
        for parameter in candidate.parameters:
            parameter.grad = None
        start = mark()
        outputs = call(*inputs)
        middle = mark()
        problem.backward(outputs)
        forward.append((start, middle))
        backward.append((middle, mark()))
    seconds = clock.seconds(forward) / iterations, clock.seconds(backward) / iterations
    return {FORWARD: seconds[0], BACKWARD: seconds[1], BOTH: sum(seconds)}
