"""One benchmark: several modules that compute the same, checked against float64, then timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import clocks, graphs, timing
from benchmarks.aten import Unavailable, first_sentence
from benchmarks.problem import (
    BACKWARD,
    BOTH,
    COLD,
    FORWARD,
    NO_GRAD,
    OURS,
    Candidate,
    Contender,
    Problem,
    bytes_kept,
)
from fourfold.cli.timing import synchronize


@dataclass
class Row:
    """What became of a contender: figures, or the reason why there are none."""

    name: str
    graphed: bool = False  # replayed from a CUDA graph
    reason: str = ""
    wrong: bool = False
    error: float = math.nan  # the largest relative error against float64
    tolerance: float = math.nan
    first_call: float = math.nan  # seconds until it was built and forward and backward had run once
    kept: int | None = None  # bytes, for the backward
    samples: Mapping[str, list[float]] = field(default_factory=dict)  # seconds of an iteration, by phase

    @property
    def label(self) -> str:
        return f"{self.name}, CUDA graph" if self.graphed else self.name

    @property
    def own(self) -> bool:
        """Whether it is one of fourfold's: its module, or another way to call it."""
        return self.name.split(",")[0] == OURS

    def statistics(self, phase: str) -> timing.Statistics:
        return timing.summarise(self.samples[phase])


def compare(
    problem: Problem, contenders: Sequence[Contender], repeats: int, clock: clocks.Clock | None = None
) -> list[Row]:
    """Check every contender, then time those that are right; on a GPU each a second time, from a CUDA graph."""
    clock = clock or clocks.Clock()
    rows, samples = [], {}
    exact = problem.exact()
    for contender in contenders:
        own = contender.problem or problem
        own_exact = exact if own.definition is problem.definition else own.exact()
        row, candidate = prepare(own, contender, own_exact)
        rows.append(row)
        if candidate is not None:
            samples[row.label] = sampler(own, candidate, clock)
        if clock.graphs and candidate is not None:
            row, captured = prepare_graph(own, contender, candidate, own_exact)
            rows.append(row)
            if captured:
                samples[row.label] = graphs.graph_sampler(own, captured, clock)
    measured = timing.interleave(samples, repeats)
    for row in rows:
        row.samples = measured.get(row.label, {})
    return rows


def prepare(problem: Problem, contender: Contender, exact: Sequence[Tensor]) -> tuple[Row, Candidate | None]:
    """Build a contender, give it the problem's parameters, run it once with the clock on and check what comes out."""
    row = Row(contender.name)
    start = time.perf_counter()
    try:
        candidate = problem.prepared(contender.build())
        with torch.no_grad():
            for own, given in zip(candidate.parameters, problem.parameters, strict=True):
                own.copy_(given.view_as(own))
        results = problem.run_once(candidate)
    except Unavailable as unavailable:
        row.reason = str(unavailable)
        return row, None
    except RuntimeError as error:  # one row's trouble, such as too little memory, leaves the others their figures
        row.reason, row.wrong = f"failed: {first_sentence(error)}", row.own
        return row, None
    synchronize(problem.device)
    row.first_call = time.perf_counter() - start
    row.kept = bytes_kept(problem, candidate) if problem.keeps else None
    return row, candidate if is_right(row, problem, results, exact) else None


def prepare_graph(
    problem: Problem, contender: Contender, candidate: Candidate, exact: Sequence[Tensor]
) -> tuple[Row, Mapping[str, graphs.Captured]]:
    """Capture a contender's calls and check what replays of them compute."""
    row = Row(contender.name, graphed=True)
    start = time.perf_counter()
    try:
        if contender.uncaptured:
            raise Unavailable(f"can't be captured: {contender.uncaptured}")
        captured = graphs.capture_phases(problem, candidate)
        results = graphs.replayed(captured)
    except Unavailable as unavailable:
        row.reason = str(unavailable)
        return row, {}
    row.first_call = time.perf_counter() - start
    return row, captured if is_right(row, problem, results, exact) else {}


def is_right(row: Row, problem: Problem, results: Sequence[Sequence[Tensor]], exact: Sequence[Tensor]) -> bool:
    row.error, row.tolerance = problem.error(results, exact), problem.tolerance
    if not row.error <= row.tolerance:
        row.reason = f"WRONG: relative error {row.error:.1e}, tolerance {row.tolerance:.1e}; not timed"
        row.wrong = True
    return not row.wrong


def left_out(reason: str = "left out by --skip or --quick") -> Candidate:
    raise Unavailable(reason)


def inductor(make: Callable[[Callable[[nn.Module], nn.Module]], Candidate], problem: Problem) -> Candidate:
    """What ``make`` gives when it is handed torch.compile; compiled here, where a failure becomes a reason."""
    torch.compiler.reset()  # Inductor builds the number of threads into its code
    try:
        candidate = make(torch.compile)
        problem.run_once(problem.prepared(candidate))
    except RuntimeError as error:  # Dynamo's and Inductor's own errors too
        raise Unavailable(f"can't be compiled: {first_sentence(error)}") from error
    return candidate


def sampler(problem: Problem, candidate: Candidate, clock: clocks.Clock) -> timing.Sample:
    """The tutorial's loop: forward and backward timed apart, gradients cleared in between; first, forward without."""
    call = partial(candidate.call, *problem.inputs)

    def sample(iterations: int) -> dict[str, float]:
        seconds = {}
        with torch.no_grad():
            for phase in (COLD, NO_GRAD):
                if phase in problem.phases:
                    seconds[phase] = clocks.seconds_per_call(clock, call, iterations, cold=phase == COLD)
        if problem.trains:
            seconds |= training_seconds(problem, candidate, clock, iterations)
        return {phase: seconds[phase] for phase in problem.phases}

    return sample


def training_seconds(problem: Problem, candidate: Candidate, clock: clocks.Clock, iterations: int) -> dict[str, float]:
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
