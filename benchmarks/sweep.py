"""``sweep``: LSTM and GRU at random sizes, dtypes, directions and numbers of threads, against torch.nn's layers: points
that nothing was tuned by. Lists each that is slower."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks import sequence, timing
from benchmarks.precision import FLOAT32, PRECISIONS, Precision
from benchmarks.problem import BOTH, NO_GRAD, OURS, largest_norm
from benchmarks.report import Report
from benchmarks.request import Request
from benchmarks.targets import Outcome
from fourfold.cli.timing import pinned_threads

POINTS, QUICK_POINTS, SEED = 200, 10, 1
REPEATS = 15  # of which no single row is quoted
MOST_WORK = 1 << 28  # multiply-adds of a forward
FLOAT64 = Precision("float64", "float64", torch.float64)
SWEPT = {"float32": FLOAT32, "bfloat16": PRECISIONS["bfloat16"], "float64": FLOAT64}
LEAST, MEDIAN = 0.95, 2.5
WORK = "random points of LSTM and GRU"
WORSE = 3.0  # times torch's own error that is allowed, where it is larger than a sum's rounding
HEADINGS = ("slower than torch.nn", "threads", "phase", "torch.nn µs", "fourfold µs", "ratio")


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
    point: Point
    torch_seconds: float = math.nan
    seconds: float = math.nan
    ratio: float = math.nan
    error: float = math.nan  # against float64, and what is allowed
    allowed: float = math.nan
    reason: str = ""  # why it was not timed

    @property
    def wrong(self) -> bool:
        return not self.reason and not self.error <= self.allowed

    @property
    def cells(self) -> tuple[str, ...]:
        microseconds = (f"{1e6 * seconds:.0f}" for seconds in (self.torch_seconds, self.seconds))
        return (self.point.words, str(self.point.threads), self.point.phase, *microseconds, f"{self.ratio:.2f}×")

    def as_dictionary(self) -> dict[str, Any]:
        return {**asdict(self.point), **{name: value for name, value in asdict(self).items() if name != "point"}}


def draw(seed: int, threads: Sequence[int]) -> Iterator[Point]:
    """Points without end, the same for a seed: sizes are spread evenly over their logarithms."""
    generator = random.Random(seed)

    def size(least: int, most: int) -> int:
        drawn = round(2 ** generator.uniform(math.log2(least), math.log2(most)))
        return drawn if generator.random() < 0.25 else max(least, 1 << round(math.log2(drawn)))

    while True:
        point = Point(
            layer=generator.choice(("LSTM", "GRU")),
            time=size(1, 256),
            batch_size=size(1, 128),
            input_size=size(8, 1024),
            hidden_size=size(16, 1024),
            dtype=generator.choice(("float32", "float32", "bfloat16", "float64")),
            threads=generator.choice(threads),
            bidirectional=generator.random() < 0.25,
            training=generator.random() < 0.5,
        )
        if point.work <= MOST_WORK:
            yield point


def reports(request: Request) -> Iterator[Report]:
    first, seed = request.sizes.get("first", 1), request.sizes.get("seed", SEED)
    count = request.sizes.get("points", QUICK_POINTS if request.quick else POINTS)
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    points = draw(seed, [threads for threads in request.threads if threads <= most] or [1])
    chosen = [point for _, point in zip(range(first - 1 + count), points, strict=False)][first - 1 :]
    yield report(f"Points {first} to {first - 1 + count} of seed {seed}", [measure(p, request.repeats) for p in chosen])


def measure(point: Point, repeats: int) -> Measured:
    precision = SWEPT[point.dtype]
    torch.manual_seed(0)
    sizes = (point.input_size, point.hidden_size)
    plain = getattr(nn, point.layer)(*sizes, bidirectional=point.bidirectional).to(precision.dtype)
    ours = getattr(fourfold.nn, point.layer)(*sizes, bidirectional=point.bidirectional).to(precision.dtype)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(point.time, point.batch_size, point.input_size).to(precision.dtype)
    gradient = torch.randn(point.time, point.batch_size, point.hidden_size * (1 + point.bidirectional))
    steps = {
        name: partial(step, module, x, gradient.to(precision.dtype), point.training)
        for name, module in ((f"nn.{point.layer}", plain), (OURS, ours))
    }
    with pinned_threads(point.threads):
        try:
            of_torch = steps[f"nn.{point.layer}"]()
        except RuntimeError as error:
            return Measured(point, reason=f"torch.nn fails: {str(error).splitlines()[0]}")
        got = steps[OURS]()
        exact = step(exact_module(plain), x.double(), gradient.to(precision.dtype).double(), point.training)
        terms = max(sum(sizes), point.time * point.batch_size)
        tolerance = 8 * torch.finfo(torch.float32).eps * math.sqrt(terms) + sequence.rounding(precision, point.time)
        error, allowed = largest_norm(got, exact), max(tolerance, WORSE * largest_norm(of_torch, exact))
        if not error <= allowed:
            return Measured(point, error=error, allowed=allowed)
        samples = timing.interleave({name: sampler(call) for name, call in steps.items()}, min(repeats, REPEATS))
    theirs, own = (samples[name]["time"] for name in steps)
    return Measured(
        point,
        timing.summarise(theirs).median,
        timing.summarise(own).median,
        timing.summarise(timing.paired_ratios(theirs, own)).median,
        error,
        allowed,
    )


def exact_module(plain: nn.Module) -> nn.Module:
    arguments = {"bidirectional": plain.bidirectional, "dtype": torch.float64}
    module = type(plain)(plain.input_size, plain.hidden_size, **arguments)
    module.load_state_dict(plain.state_dict())
    return module


def step(module: nn.Module, x: Tensor, gradient: Tensor, training: bool) -> list[Tensor]:
    """The output, then the parameters' gradients."""
    if not training:
        with torch.no_grad():
            return [module(x)[0]]
    for parameter in module.parameters():
        parameter.grad = None
    output = module(x)[0]
    output.backward(gradient)
    return [output.detach(), *(parameter.grad for parameter in module.parameters())]


def sampler(call: Any) -> timing.Sample:
    def sample(iterations: int) -> dict[str, float]:
        return {"time": timing.wall_seconds(lambda count: [call() for _ in range(count)], iterations) / iterations}

    return sample


def report(title: str, measured: Sequence[Measured]) -> Report:
    timed = sorted((m for m in measured if not math.isnan(m.ratio)), key=lambda m: m.ratio)
    slower = [m for m in timed if m.ratio < 1]
    median = timing.summarise([m.ratio for m in timed]).median if timed else None
    notes = [f"{m.point.words}: not timed, {m.reason}" for m in measured if m.reason]
    notes += [
        f"{m.point.words}: WRONG, error {m.error:.1e} where {m.allowed:.1e} is allowed" for m in measured if m.wrong
    ]
    if timed:
        below = sum(m.ratio < LEAST for m in timed)
        worst = f"worst {timed[0].ratio:.2f}×, {timed[0].point.words}, {timed[0].point.phase}"
        notes.append(f"{len(timed)} timed: median {median:.2f}×; {len(slower)} below 1, {below} below {LEAST}; {worst}")
    return Report(
        title=title,
        headings=HEADINGS,
        cells=[m.cells for m in slower],
        figures=[m.as_dictionary() for m in measured],
        notes=notes,
        outcomes=[
            Outcome(f"{WORK}, median", "torch.nn", title, MEDIAN, median),
            Outcome(f"{WORK}, worst", "torch.nn", title, LEAST, timed[0].ratio if timed else None),
        ],
        wrong=any(m.wrong for m in measured),
    )
