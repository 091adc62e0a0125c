"""``elementwise``: softshrink and axpby against torch's one-pass operators, and against copying as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.precision import Precision
from benchmarks.problem import COLD, NO_GRAD, OURS, Candidate, Contender, Problem, Rate, Target
from benchmarks.request import Request
from fourfold import reference

ELEMENTS = {"cuda": (10**5, 10**6, 10**7, 10**8), "cpu": (10**5, 10**6, 10**7)}
LARGE = 10**7  # from here on memory is what an elementwise operator waits for
SMALL = 10**5  # below, Python and the dispatcher are
OF_COPY = 0.95
COPY = "copy_ of as many bytes"
TENSORS = {"softshrink": 2, "axpby": 3}  # read and written
TWO_PASSES = "a*x + b*y"
TWO_PASS_COUNT = 10**6  # the size that the target over two passes is for
ONE_PASS = {"softshrink": "F.softshrink", "axpby": "torch.add(alpha=)"}


def problems(request: Request) -> Iterator[Problem]:
    counts = request.sizes.get("elements") or ELEMENTS[request.device.type]
    if request.quick and not request.sizes:
        counts = counts[1:2]
    for op in TENSORS:
        for precision in request.precisions_or(("float32", "bfloat16", "float16")):
            for count in counts:
                yield problem(op, count, precision, request.device)


def problem(op: str, count: int, precision: Precision, device: torch.device | str = "cpu") -> Problem:
    on_gpu = torch.device(device).type == "cuda"
    moved = TENSORS[op] * count * precision.dtype.itemsize
    targets = [Target(NO_GRAD, 1.0, ONE_PASS[op], 1, op)] if count >= SMALL else []
    if op == "axpby" and count == TWO_PASS_COUNT:
        targets.append(Target(NO_GRAD, 2.5, TWO_PASSES, 1, "axpby at 1M"))
    if on_gpu:
        targets = [Target(COLD, OF_COPY, COPY)] if count >= LARGE else []
    return Problem(
        title=f"{op} of {count:,} elements, {precision.words}, {moved / 1e6:,.1f} MB read and written",
        parameters=(),
        inputs=tuple(draw(count, precision, device, seed) for seed in range(TENSORS[op] - 1)),
        definition=lambda *inputs: (getattr(reference, op)(*inputs),),
        longest_sum=1,
        sizes={"elements": count},
        precision=precision,
        rounding=2 * precision.unit,  # the result is rounded once, and a product before it where there is no fma
        phases=(COLD, NO_GRAD) if on_gpu else (NO_GRAD,),
        rate=Rate("GB/s", lambda seconds: moved / seconds / 1e9),
        targets=tuple(targets),
    )


def draw(count: int, precision: Precision, device: torch.device | str, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(count, generator=generator, device=device, dtype=precision.dtype)


def copy_problem(problem: Problem) -> Problem:
    """A copy that moves as many bytes: of half the elements that the operator reads and writes together."""
    op, count = problem.title.split()[0], problem.sizes["elements"]
    source = draw(TENSORS[op] * count // 2, problem.precision, problem.device, 2)
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
    op = problem.title.split()[0]
    copied = copy_problem(problem)
    target = torch.empty_like(copied.inputs[0])
    one_pass = {"softshrink": nn.functional.softshrink, "axpby": lambda x, y: torch.add(y, x, alpha=2)}

    def row(name: str, call: Callable[..., Any], own: Problem | None = None) -> Contender:
        return Contender(name, lambda: Candidate(lambda *inputs: (call(*inputs),), ()), own)

    rows = [row(COPY, target.copy_, copied), row(ONE_PASS[op], one_pass[op])]
    if op == "axpby":
        a, b = 2.0, 1.0
        rows.append(row(TWO_PASSES, lambda x, y: a * x + b * y))
    return [*rows, row(OURS, getattr(fourfold, op))]
