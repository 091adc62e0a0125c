"""``elementwise``: softshrink and axpby against torch's one-pass operators, and against copying as many bytes; on the
CPU also so few elements that the call is what is timed, and views and broadcasts, which are not read in one piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.precision import FLOAT32, Precision
from benchmarks.problem import BOTH, COLD, NO_GRAD, OURS, Candidate, Contender, Problem, Rate, Target
from benchmarks.request import Request
from fourfold import reference

ELEMENTS = {"cuda": (10**5, 10**6, 10**7, 10**8), "mps": (10**5, 10**6, 10**7), "cpu": (10**5, 10**6, 10**7)}
FEW = 64  # whose time is the call's
LARGE = 10**7  # from here on memory is what an elementwise operator waits for
OF_COPY = 0.95
COPY = "copy_ of as many bytes"
TENSORS = {"softshrink": 2, "axpby": 3}  # read and written
TWO_PASSES = "a*x + b*y"
TWO_PASS_COUNT = 10**6  # the size that the target over two passes is for
ONE_PASS = {"softshrink": "F.softshrink", "axpby": "torch.add(alpha=)"}
VIEWS = "views and broadcasts"


@dataclasses.dataclass(frozen=True)
class Layout:
    """words: what is computed of. shapes: of the tensors that are drawn. view: of these the inputs."""

    words: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    view: Callable[..., tuple[Tensor, ...]] = lambda *drawn: drawn


LAYOUTS = (
    Layout("rows of 2 and a column", "axpby", ((500_000, 2), (500_000, 1))),
    Layout(
        "32x64x56x56, channels last, and channels",
        "axpby",
        ((32, 64, 56, 56), (1, 64, 1, 1)),
        lambda x, y: (x.to(memory_format=torch.channels_last), y),
    ),
    Layout("a 1,000x1,000 matrix and its transpose", "axpby", ((1000, 1000),), lambda x: (x, x.t())),
    Layout("a 1,000x1,000 matrix and a row", "axpby", ((1000, 1000), (1000,))),
    Layout("the first 4 of 8 columns", "softshrink", ((500_000, 8),), lambda x: (x[:, :4],)),
    Layout("every other column of 1,000", "softshrink", ((2000, 1000),), lambda x: (x[:, ::2],)),
)


def problems(request: Request) -> Iterator[Problem]:
    if request.device.type == "cpu" and not request.sizes and not request.precisions:
        for op in TENSORS:
            yield call_problem(op)
        for layout in LAYOUTS[:1] if request.quick else LAYOUTS:
            yield view_problem(layout)
    counts = request.sizes.get("elements") or ELEMENTS[request.device.type]
    if request.quick and not request.sizes:
        counts = counts[1:2]
    for op in TENSORS:
        for precision in request.precisions_or(("float32", "bfloat16", "float16")):
            for count in counts:
                yield problem(op, count, precision, request.device)


def problem(op: str, count: int, precision: Precision, device: torch.device | str = "cpu") -> Problem:
    on_gpu = torch.device(device).type != "cpu"
    moved = TENSORS[op] * count * precision.dtype.itemsize
    targets = [Target(NO_GRAD, 1.0, ONE_PASS[op], 1, op)]
    if op == "axpby" and count == TWO_PASS_COUNT:
        targets.append(Target(NO_GRAD, 2.5, TWO_PASSES, 1, "axpby at 1M"))
    if on_gpu:
        targets = [Target(COLD, OF_COPY, COPY)] if count >= LARGE else []
    return Problem(
        title=f"{op} of {count:,} elements, {precision.words}, {moved / 1e6:,.1f} MB read and written",
        parameters=(),
        inputs=tuple(draw((count,), precision, device, seed) for seed in range(TENSORS[op] - 1)),
        definition=lambda *inputs: (getattr(reference, op)(*inputs),),
        longest_sum=1,
        sizes={"elements": count},
        precision=precision,
        rounding=2 * precision.unit,  # the result is rounded once, and a product before it where there is no fma
        phases=(COLD, NO_GRAD) if on_gpu else (NO_GRAD,),
        rate=Rate("GB/s", lambda seconds: moved / seconds / 1e9),
        targets=tuple(targets),
        kind=op,
    )


def call_problem(op: str) -> Problem:
    """Few elements, with gradients of all inputs."""
    few = problem(op, FEW, FLOAT32)
    targets = tuple(Target(phase, 1.0, ONE_PASS[op], 1, f"{op} of {FEW} elements") for phase in (NO_GRAD, BOTH))
    return dataclasses.replace(
        few,
        title=f"{op} of {FEW} elements, float32",
        inputs=(),
        parameters=few.inputs,
        gradients=(draw((FEW,), FLOAT32, "cpu", 2),),
        phases=(NO_GRAD, BOTH),
        rate=None,
        targets=targets,
        threads=(1,),
    )


def view_problem(layout: Layout) -> Problem:
    op = layout.op
    inputs = layout.view(*(draw(shape, FLOAT32, "cpu", seed) for seed, shape in enumerate(layout.shapes)))
    return dataclasses.replace(
        problem(op, 1, FLOAT32),
        title=f"{op} of {layout.words}, float32",
        inputs=inputs,
        sizes={"elements": max(x.numel() for x in inputs)},
        rate=None,
        targets=(Target(NO_GRAD, 0.9, ONE_PASS[op], 1, f"{op} of {VIEWS}"),),
        threads=(1,),
    )


def draw(shape: tuple[int, ...], precision: Precision, device: torch.device | str, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=precision.dtype)


def copy_problem(problem: Problem) -> Problem:
    """A copy that moves as many bytes: of half the elements that the operator reads and writes together."""
    op, count = problem.kind, problem.sizes["elements"]
    source = draw((TENSORS[op] * count // 2,), problem.precision, problem.device, 2)
    return Problem(
        title=COPY,
        parameters=(),
        inputs=(source,),
        definition=lambda x: (x,),
        longest_sum=1,
        precision=problem.precision,
        phases=problem.phases,
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    op = problem.kind
    one_pass = {"softshrink": nn.functional.softshrink, "axpby": lambda x, y: torch.add(y, x, alpha=2)}
    rows = [row(ONE_PASS[op], one_pass[op], problem), row(OURS, getattr(fourfold, op), problem)]
    if problem.rate is None:
        return rows
    if op == "axpby":
        a, b = 2.0, 1.0
        rows.insert(1, row(TWO_PASSES, lambda x, y: a * x + b * y, problem))
    copied = copy_problem(problem)
    target = torch.empty_like(copied.inputs[0])
    return [row(COPY, target.copy_, copied), *rows]


def row(name: str, call: Callable[..., Tensor], problem: Problem) -> Contender:
    def build() -> Candidate:
        parameters = [p.clone().requires_grad_() for p in problem.parameters]
        return Candidate(lambda *inputs: (call(*inputs, *parameters),), parameters)

    return Contender(name, build, problem)
