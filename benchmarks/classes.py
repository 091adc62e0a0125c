"""``classes``: random functions of each class of work, and shapes, against Inductor and eager PyTorch: none of them was
used for tuning. Lists the slow rows of each class. On a CPU."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Generator

from benchmarks.class_functions import CLASSES, Drawn
from benchmarks.functions import Function
from benchmarks.measure import SKIPPED, Clock, Row, compare, median_ratio, prepare, summarise
from benchmarks.pointwise import candidate, in_order
from benchmarks.problem import PRECISIONS, Contender, Problem, largest_norm
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import BOTH, INDUCTOR, NO_GRAD, OURS, PLAIN, Outcome
from fourfold.cli.timing import pinned_threads

POINTS, QUICK_POINTS, SEED = 12, 2, 1  # of each class
ELEMENTS, QUICK_ELEMENTS = (10**5, 10**6), (10**5,)
DTYPES = ("float32", "float32", "bfloat16")
REPEATS = 15  # no single row is quoted
WORSE = 3.0  # multiple of eager PyTorch's own error that is allowed
SLOW = 0.95
HEADINGS = ("slower than 0.95 of either", "phase", "eager µs", "Inductor µs", "fourfold µs", "of eager", "of Inductor")


@dataclass(frozen=True)
class Point:
    """kind: the class. words: the function and its shapes."""

    kind: str
    words: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class Measured:
    """Seconds, and how many times as fast as eager PyTorch and Inductor fourfold is; nan without Inductor's row.
    reason: why it was not timed."""

    point: Point
    phase: str = ""
    eager: float = math.nan
    inductor: float = math.nan
    seconds: float = math.nan
    of_eager: float = math.nan
    of_inductor: float = math.nan
    reason: str = ""
    wrong: bool = False

    @property
    def worst(self) -> float:
        """Of Inductor, or without its row of eager PyTorch."""
        return self.of_eager if math.isnan(self.of_inductor) else self.of_inductor

    @property
    def cells(self) -> tuple[str, ...]:
        times = (f"{1e6 * seconds:.0f}" for seconds in (self.eager, self.inductor, self.seconds))
        words = f"{self.point.words}, {self.point.elements:,} elements, {self.point.dtype}"
        return (words, self.phase, *times, f"{self.of_eager:.2f}×", f"{self.of_inductor:.2f}×")


def tables(request: Request) -> Iterator[Report]:
    points = request.sizes.get("points", QUICK_POINTS if request.quick else POINTS)
    elements = request.sizes.get("elements") or (QUICK_ELEMENTS if request.quick else ELEMENTS)
    for name in CLASSES:
        generator = random.Random(f"{request.sizes.get('seed', SEED)} {name}")
        measured = []
        for _ in range(points):
            drawn, dtype = CLASSES[name](generator), generator.choice(DTYPES)
            for count in elements:
                with pinned_threads(request.threads[0]):
                    measured += measure(name, drawn, count, dtype, request)
        yield report(name, measured)


def problem_of(point: Point, drawn: Drawn) -> tuple[Problem, Function]:
    dtype, generator = PRECISIONS[point.dtype].dtype, Generator().manual_seed(0)
    given = drawn.arguments(point.elements, generator)
    arguments = [x.to(dtype) if x.is_floating_point() else x for x in given]
    function = Function(point.words, drawn.call, lambda *_: tuple(arguments), drawn.gradients)
    outputs = function.results(*arguments)
    gradients = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in outputs]
    problem = Problem(
        title=point.words,
        parameters=tuple(arguments[: drawn.gradients]),
        inputs=tuple(arguments[drawn.gradients :]),
        definition=lambda *given: function.results(*in_order(function, given)),
        longest_sum=point.elements,
        precision=PRECISIONS[point.dtype],
        rounding=64 * PRECISIONS[point.dtype].unit,
        distance=largest_norm,
        phases=(NO_GRAD, BOTH) if drawn.gradients else (NO_GRAD,),
        gradients=tuple(gradients) if drawn.gradients else (),
        kind=point.kind,
    )
    return problem, function


def measure(kind: str, drawn: Drawn, count: int, dtype: str, request: Request) -> list[Measured]:
    point = Point(kind, drawn.words, count, dtype)
    problem, function = problem_of(point, drawn)
    build = {name: partial(candidate, function=function, backend=backend) for name, backend in BACKENDS.items()}
    free = partial(with_rounding, rounding=math.inf)
    checked, _ = prepare(free(problem), Contender(PLAIN, build[PLAIN]), problem.exact())
    if checked.reason:
        return [Measured(point, reason=checked.reason)]
    ours = partial(with_rounding, rounding=max(problem.rounding, WORSE * checked.error))
    contenders = [Contender(name, build[name], free, tool=BACKENDS[name]) for name in (PLAIN, INDUCTOR)]
    contenders.append(Contender(OURS, build[OURS], ours, tool="fourfold"))
    rows = {row.name: row for row in compare(problem, contenders, min(request.repeats, REPEATS), Clock(), request.skip)}
    if not rows[OURS].samples:
        return [Measured(point, reason=rows[OURS].reason, wrong=True)]
    return [compared(point, phase, rows) for phase in problem.phases]


BACKENDS = {PLAIN: "", INDUCTOR: "inductor", OURS: "fourfold"}


def with_rounding(problem: Problem, rounding: float) -> Problem:
    return dataclasses.replace(problem, rounding=rounding)


def compared(point: Point, phase: str, rows: dict[str, Row]) -> Measured:
    samples = {name: row.samples.get(phase, ()) for name, row in rows.items()}
    seconds = [summarise(found).median if found else math.nan for found in samples.values()]
    ratios = [median_ratio(samples[name], samples[OURS]) or math.nan for name in (PLAIN, INDUCTOR)]
    return Measured(point, phase, *seconds, *ratios, reason=rows[INDUCTOR].reason)


def report(name: str, measured: Sequence[Measured]) -> Report:
    timed = sorted((m for m in measured if m.phase), key=lambda m: m.worst)
    slow = [m for m in timed if m.worst < SLOW or m.of_eager < SLOW]
    ratios = [m.of_inductor for m in timed if not math.isnan(m.of_inductor)]
    median = summarise(ratios).median if ratios else None
    notes = list(dict.fromkeys(f"{m.point.words}: {m.reason}" for m in measured if m.reason not in ("", SKIPPED)))
    if ratios:
        eager = summarise([m.of_eager for m in timed]).median
        below = f"{sum(r < SLOW for r in ratios)} below {SLOW}, {sum(r < 0.8 for r in ratios)} below 0.8"
        notes.append(f"{len(ratios)} rows: median {median:.2f}× of Inductor, {eager:.2f}× of eager; {below}")
    return Report(
        title=name,
        headings=HEADINGS,
        cells=[m.cells for m in slow],
        figures=[{**asdict(m.point), **{k: v for k, v in vars(m).items() if k != "point"}} for m in measured],
        notes=notes,
        outcomes=[Outcome(target(name), name, median)],
        wrong=any(m.wrong for m in measured),
    )
