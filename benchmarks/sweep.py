"""``sweep``: LSTM and GRU at random sizes, dtypes, directions and numbers of threads, against torch.nn's layers: points
that were not used for tuning. Lists each point where fourfold is slower. On a GPU the sizes are larger, the dtypes
others, and each point is measured with and without a CUDA graph."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import fourfold
from benchmarks import recurrent
from benchmarks.measure import Clock, Row, compare, median_ratio, prepare, summarise
from benchmarks.problem import PRECISIONS, Candidate, Contender, Problem, largest_norm
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import BOTH, NO_GRAD, OURS, Outcome
from fourfold.cli.timing import pinned_threads

POINTS, QUICK_POINTS, SEED = 200, 10, 1
REPEATS = 15  # no single row is quoted
MOST_WORK = 1 << 28  # multiply-adds in a forward
MOST_WORK_ON_GPU = 1 << 34
DTYPES = ("float32", "float32", "bfloat16", "float64")
DTYPES_ON_GPU = ("float32", "tf32", "bfloat16", "float16")
WORK = "random points of LSTM and GRU"
WORSE = 3.0  # multiple of torch's own error that is allowed, if it is larger than a sum's rounding error
HEADINGS = ("slower than torch.nn", "threads", "phase", "torch.nn µs", "fourfold µs", "ratio")
HEADINGS_ON_GPU = ("slower than torch.nn", "CUDA graph", *HEADINGS[2:])
GRAPH = ", CUDA graph"


@dataclass(frozen=True)
class Point:
    layer: str
    time: int
    batch_size: int
    input_size: int
    hidden_size: int
    dtype: str
    threads: int
    bidirectional: bool
    training: bool
    device: str = "cpu"

    @property
    def words(self) -> str:
        sizes = f"T{self.time} B{self.batch_size} I{self.input_size} H{self.hidden_size}"
        return f"{self.layer} {sizes} {self.dtype}" + ", bidirectional" * self.bidirectional

    @property
    def phase(self) -> str:
        return BOTH if self.training else NO_GRAD

    @property
    def work(self) -> int:
        gates = {"LSTM": 4, "GRU": 3}[self.layer]
        rows = self.time * self.batch_size * (1 + self.bidirectional)
        return rows * gates * self.hidden_size * (self.input_size + self.hidden_size)


@dataclass(frozen=True)
class Measured:
    """reason: why it was not timed. graphed: replayed as a CUDA graph."""

    point: Point
    torch_seconds: float = math.nan
    seconds: float = math.nan
    ratio: float = math.nan
    error: float = math.nan
    allowed: float = math.nan
    reason: str = ""
    wrong: bool = False
    graphed: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        microseconds = (f"{1e6 * seconds:.0f}" for seconds in (self.torch_seconds, self.seconds))
        where = str(self.point.threads) if self.point.device == "cpu" else "yes" if self.graphed else "no"
        return (self.point.words, where, self.point.phase, *microseconds, f"{self.ratio:.2f}×")


def draw(seed: int, threads: Sequence[int], device: str = "cpu") -> Iterator[Point]:
    """Endless points, the same for a seed, with log-uniform sizes."""
    generator = random.Random(seed)
    on_cpu = device == "cpu"

    def size(least: int, most: int) -> int:
        drawn = round(2 ** generator.uniform(math.log2(least), math.log2(most)))
        return drawn if generator.random() < 0.25 else max(least, 1 << round(math.log2(drawn)))

    while True:
        point = Point(
            layer=generator.choice(("LSTM", "GRU")),
            time=size(1, 256 if on_cpu else 1024),
            batch_size=size(1, 128 if on_cpu else 512),
            input_size=size(8, 1024),
            hidden_size=size(16, 1024),
            dtype=generator.choice(DTYPES if on_cpu else DTYPES_ON_GPU),
            threads=generator.choice(threads),
            bidirectional=generator.random() < 0.25,
            training=generator.random() < 0.5,
            device=device,
        )
        if point.work <= (MOST_WORK if on_cpu else MOST_WORK_ON_GPU):
            yield point


def tables(request: Request) -> Iterator[Report]:
    first, seed = request.sizes.get("first", 1), request.sizes.get("seed", SEED)
    last = first - 1 + request.sizes.get("points", QUICK_POINTS if request.quick else POINTS)
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, clock = [threads for threads in request.threads if threads <= most] or [1], Clock(request.device)
    points = draw(seed, threads, request.device.type)
    chosen = [point for _, point in zip(range(last), points, strict=False)][first - 1 :]
    measured = [found for point in chosen for found in measure(point, request.repeats, clock)]
    yield report(f"Points {first} to {last} of seed {seed}", measured)


def problem_of(point: Point) -> Problem:
    """torch.nn's layer; the definition is the same layer in float64."""
    torch.manual_seed(0)
    plain, dtype = layer(nn, point), PRECISIONS[point.dtype].dtype
    names = [name for name, _ in plain.named_parameters()]
    width = point.hidden_size * (1 + point.bidirectional)

    def definition(x: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        return (functional_call(plain, dict(zip(names, parameters, strict=True)), x)[0],)

    return Problem(
        title=point.words,
        parameters=tuple(p.detach() for p in plain.parameters()),
        inputs=(torch.randn(point.time, point.batch_size, point.input_size).to(point.device, dtype),),
        definition=definition,
        longest_sum=max(point.input_size + point.hidden_size, point.time * point.batch_size),
        precision=PRECISIONS[point.dtype],
        rounding=recurrent.rounding(PRECISIONS[point.dtype], point.time),
        distance=largest_norm,
        phases=(point.phase,),
        gradients=(torch.randn(point.time, point.batch_size, width).to(point.device, dtype),),
    )


def layer(package: Any, point: Point) -> nn.Module:
    module = getattr(package, point.layer)(point.input_size, point.hidden_size, bidirectional=point.bidirectional)
    return module.to(point.device, PRECISIONS[point.dtype].dtype)


def candidate(package: Any, point: Point, problem: Problem) -> Candidate:
    module = layer(package, point)
    return Candidate(lambda x: (module(x)[0],), tuple(module.parameters()))


def with_rounding(problem: Problem, rounding: float) -> Problem:
    return dataclasses.replace(problem, rounding=rounding)


def measure(point: Point, repeats: int, clock: Clock | None = None) -> list[Measured]:
    """The point, and on a GPU also as a CUDA graph."""
    with pinned_threads(point.threads), PRECISIONS[point.dtype].allowed(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        problem = problem_of(point)
        exact = problem.exact()
        free = partial(with_rounding, rounding=math.inf)
        theirs = Contender(f"nn.{point.layer}", partial(candidate, nn, point), free)
        checked, _ = prepare(free(problem), theirs, exact)
        if checked.reason:
            return [Measured(point, reason=checked.reason)]
        allowed = max(problem.tolerance, WORSE * checked.error)
        ours = partial(with_rounding, rounding=problem.rounding + allowed - problem.tolerance)
        mine = Contender(OURS, partial(candidate, fourfold.nn, point), ours)
        rows = {row.label: row for row in compare(problem, [theirs, mine], min(repeats, REPEATS), clock)}
    pairs = [[rows[f"{row.name}{tail}"] for row in (theirs, mine)] for tail in ("", GRAPH) if f"{OURS}{tail}" in rows]
    return [compared(point, *pair, allowed) for pair in pairs]


def compared(point: Point, theirs: Row, mine: Row, allowed: float) -> Measured:
    if not (theirs.samples and mine.samples):
        reason = mine.reason or theirs.reason
        wrong = mine.wrong or not mine.graphed
        return Measured(point, error=mine.error, allowed=allowed, reason=reason, wrong=wrong, graphed=mine.graphed)
    times = [row.samples[point.phase] for row in (theirs, mine)]
    medians = (summarise(samples).median for samples in times)
    return Measured(point, *medians, median_ratio(*times), mine.error, allowed, graphed=mine.graphed)


def report(title: str, measured: Sequence[Measured]) -> Report:
    timed = sorted((m for m in measured if not math.isnan(m.ratio)), key=lambda m: m.ratio)
    slower = [m for m in timed if m.ratio < 1]
    median = summarise([m.ratio for m in timed]).median if timed else None
    worst = target(f"{WORK}, worst")
    notes = [f"{m.point.words}: {m.reason}" for m in measured if m.reason]
    if timed:
        below = sum(m.ratio < worst.limit for m in timed)
        words = f"worst {timed[0].ratio:.2f}×, {timed[0].point.words}, {timed[0].point.phase}"
        found = f"{len(timed)} timed: median {median:.2f}×; {len(slower)} below 1, {below} below {worst.limit}; {words}"
        notes.append(found)
    return Report(
        title=title,
        headings=HEADINGS_ON_GPU if any(m.point.device != "cpu" for m in measured) else HEADINGS,
        cells=[m.cells for m in slower],
        figures=[{**asdict(m.point), **{k: v for k, v in vars(m).items() if k != "point"}} for m in measured],
        notes=notes,
        outcomes=[
            Outcome(target(f"{WORK}, median"), title, median),
            Outcome(worst, title, timed[0].ratio if timed else None),
        ],
        wrong=any(m.wrong for m in measured),
    )
