"""``elementwise``: softshrink and axpby against ATen's one-pass operators, and against a copy of as many bytes; on the
CPU also with few elements, where call overhead dominates, and with views and broadcasts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.problem import FLOAT32, Candidate, Contender, Precision, Problem, Rate, functional
from benchmarks.request import Request
from benchmarks.targets import BOTH, COLD, NO_GRAD, OURS
from fourfold import reference

ELEMENTS = {"cuda": (10**5, 10**6, 10**7, 10**8), "mps": (10**5, 10**6, 10**7), "cpu": (10**5, 10**6, 10**7)}
FEW = 64  # so few that call overhead dominates
LARGE = 10**7  # from here on an elementwise operator is limited by memory
TENSORS = {"softshrink": 2, "axpby": 3}  # tensors that are read or written
COPY, TWO_PASSES = "copy_ of as many bytes", "a*x + b*y"
# Description, operator, shapes of the random tensors, and a function that makes the arguments from them as views.
LAYOUTS: tuple[tuple[str, str, tuple[tuple[int, ...], ...], Callable[..., tuple[Tensor, ...]]], ...] = (
    ("rows of 2 and a column", "axpby", ((500_000, 2), (500_000, 1)), lambda *drawn: drawn),
    (
        "32x64x56x56, channels last, and channels",
        "axpby",
        ((32, 64, 56, 56), (1, 64, 1, 1)),
        lambda x, y: (x.to(memory_format=torch.channels_last), y),
    ),
    ("a 1,000x1,000 matrix and its transpose", "axpby", ((1000, 1000),), lambda x: (x, x.t())),
    ("a 1,000x1,000 matrix and a row", "axpby", ((1000, 1000), (1000,)), lambda *drawn: drawn),
    ("the first 4 of 8 columns", "softshrink", ((500_000, 8),), lambda x: (x[:, :4],)),
    ("every other column of 1,000", "softshrink", ((2000, 1000),), lambda x: (x[:, ::2],)),
)


def tables(request: Request) -> Iterator[Problem]:
    if request.device.type == "cpu" and not request.sizes and not request.precisions:
        yield from map(call_problem, TENSORS)
        for layout in LAYOUTS[:1] if request.quick else LAYOUTS:
            yield view_problem(*layout)
    counts = request.sizes.get("elements") or ELEMENTS[request.device.type][slice(1, 2) if request.quick else slice(4)]
    for op, precision, count in product(TENSORS, request.precisions_or(("float32", "bfloat16", "float16")), counts):
        yield problem(op, count, precision, request.device)


def problem(op: str, count: int, precision: Precision = FLOAT32, device: torch.device | str = "cpu") -> Problem:
    on_gpu = torch.device(device).type != "cpu"
    moved = TENSORS[op] * count * precision.dtype.itemsize
    on_cpu_works = (op, *(["axpby at 1M"] if op == "axpby" and count == 10**6 else []))
    return Problem(
        title=f"{op} of {count:,} elements, {precision.words}, {moved / 1e6:,.1f} MB read and written",
        parameters=(),
        inputs=tuple(draw((count,), precision, device, seed) for seed in range(TENSORS[op] - 1)),
        definition=lambda *inputs: (getattr(reference, op)(*inputs),),
        longest_sum=1,
        rows=[Contender(COPY, copy, copied), *ROWS[op]],
        sizes={"elements": count},
        precision=precision,
        rounding=2 * precision.unit,  # the result is rounded once, and the product before it if there is no fma
        phases=(COLD, NO_GRAD) if on_gpu else (NO_GRAD,),
        rate=Rate("GB/s", lambda seconds: moved / seconds / 1e9),
        works=(f"{op}, 10 million elements or more",) * (count >= LARGE) if on_gpu else on_cpu_works,
        kind=op,
    )


def call_problem(op: str) -> Problem:
    """Few elements, with gradients of all inputs."""
    few = problem(op, FEW)
    return dataclasses.replace(
        few,
        title=f"{op} of {FEW} elements, float32",
        inputs=(),
        parameters=few.inputs,
        rows=ONE_PASS[op],
        gradients=(draw((FEW,), FLOAT32, "cpu", 2),),
        phases=(NO_GRAD, BOTH),
        rate=None,
        works=(f"{op} of {FEW} elements",),
        threads=(1,),
    )


def view_problem(
    words: str, op: str, shapes: tuple[tuple[int, ...], ...], view: Callable[..., tuple[Tensor, ...]]
) -> Problem:
    inputs = view(*(draw(shape, FLOAT32, "cpu", seed) for seed, shape in enumerate(shapes)))
    return dataclasses.replace(
        problem(op, 1),
        title=f"{op} of {words}, float32",
        inputs=inputs,
        rows=ONE_PASS[op],
        sizes={"elements": max(x.numel() for x in inputs)},
        rate=None,
        works=(f"{op} of views and broadcasts",),
        threads=(1,),
    )


def draw(shape: tuple[int, ...], precision: Precision, device: torch.device | str, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=precision.dtype)


def copied(problem: Problem) -> Problem:
    """A copy that moves as many bytes: half the elements that the operator reads and writes."""
    shape = (TENSORS[problem.kind] * problem.sizes["elements"] // 2,)
    source = draw(shape, problem.precision, problem.device, 2)
    return dataclasses.replace(problem, title=COPY, inputs=(source,), definition=lambda x: (x,))


def copy(problem: Problem) -> Candidate:
    into = torch.empty_like(problem.inputs[0])
    return functional(problem, lambda x: (into.copy_(x),))


def row(name: str, call: Callable[..., Tensor]) -> Contender:
    return Contender(name, partial(functional, call=lambda *inputs: (call(*inputs),)))


ROWS = {
    "softshrink": [row("F.softshrink", nn.functional.softshrink), row(OURS, fourfold.softshrink)],
    "axpby": [
        row("torch.add(alpha=)", lambda x, y: torch.add(y, x, alpha=2)),
        row(TWO_PASSES, lambda x, y: 2.0 * x + 1.0 * y),
        row(OURS, fourfold.axpby),
    ],
}
ONE_PASS = {op: [row for row in rows if row.name != TWO_PASSES] for op, rows in ROWS.items()}
