"""``pointwise``: functions of elementwise operators and row reductions under torch.compile's backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from benchmarks import allocation
from benchmarks.elementwise import COPY, copy
from benchmarks.functions import FUNCTIONS, Function, gelu_tanh, width
from benchmarks.other_functions import OTHERS
from benchmarks.problem import FLOAT32, Candidate, Contender, Problem, Rate, largest_error
from benchmarks.request import Request
from benchmarks.targets import AOT_EAGER, BACKENDS, BOTH, COLD, NO_GRAD, OURS

ORDINARY = f"{OURS}, ordinary numbers"
ELEMENTS = (10**3, 10**5, 10**6, 10**7)
QUICK_ELEMENTS = (10**3, 10**5)
FEW = 10**3  # so few that call overhead dominates
MANY = 10**5  # from here on no function may be slower than with Inductor
LARGE = 10**7  # results are fresh pages in each call, unless malloc keeps memory
LARGE_ON_GPU = "functions of 10 million elements on a GPU"
WITH_FRESH_PAGES = ("sin2_cos2", "swiglu", "layer_norm", "adam")  # they take most of a large call, in every row
LAYOUT_ELEMENTS = 10**6
SPREAD_ELEMENTS = 4 * 10**5
ROUNDINGS = 64  # successive roundings; Black-Scholes divides their error by a spread of at least 0.03
CANCELLED = 1e-12  # a float64 value below it is rounding error around zero

View = Callable[[Tensor], Tensor]


def as_drawn(x: Tensor) -> Tensor:
    return x


def transposed(x: Tensor) -> Tensor:
    """The same matrix, stored column by column; a vector is first viewed as rows."""
    return matrix(x).t().contiguous().t()


def matrix(x: Tensor) -> Tensor:
    return x if x.ndim > 1 else x.view(-1, 1000)


def every_second(x: Tensor) -> Tensor:
    """The same values as every second column of a matrix twice as wide."""
    return torch.stack((x, x), dim=-1).flatten(-2)[..., ::2]


# Description of the layout, function, and a view for each argument.
LAYOUTS: tuple[tuple[str, str, tuple[View, ...]], ...] = (
    ("a transposed matrix", "sin2_cos2", (transposed,)),
    ("every second column", "gelu_tanh", (every_second,)),
    ("a matrix and a transposed one", "silu_gating", (matrix, transposed)),
    ("every second column", "layer_norm", (every_second, as_drawn, as_drawn)),
    ("a transposed matrix", "rms_norm", (transposed, as_drawn)),
    ("matrices and a transposed gradient", "adam", (matrix, transposed, matrix, matrix)),
)


def draw_spread(spread: float, count: int, generator: Generator) -> tuple[Tensor]:
    return (spread * torch.randn(count, generator=generator),)


def draw_hidden(share: float, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Rows in which a share of the elements is hidden; no row is hidden completely."""
    shape = count // width(count), width(count)
    hidden = torch.rand(shape, generator=generator) < share
    hidden[:, 0] = False
    return torch.randn(shape, generator=generator), hidden


def draw_mask(share: float, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The mask of draw_hidden, as the bias that Hugging Face adds."""
    x, hidden = draw_hidden(share, count, generator)
    return x, torch.zeros_like(x).masked_fill(hidden, torch.finfo(x.dtype).min)


# Most exponentials of large activations and of masked rows are nearly zero, and processors may take a hundred times as
# long for subnormal numbers. By name: the function, how to draw its arguments for a spread or share, the value for
# ordinary numbers, and the others.
SPREADS: dict[str, tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, ...]], float, tuple[float, ...]]] = {
    "gelu": (F.gelu, draw_spread, 1, (5, 12, 40, 100)),
    "gelu_tanh": (gelu_tanh, draw_spread, 1, (12, 100)),
    "silu": (F.silu, draw_spread, 1, (12, 40, 100)),
    "sigmoid": (torch.sigmoid, draw_spread, 1, (12, 40, 100)),
    "softmax with a mask of finfo.min": (lambda x, mask: torch.softmax(x + mask, -1), draw_mask, 0, (0.4,)),
    "softmax with a mask of -inf": (
        lambda x, hidden: torch.softmax(x.masked_fill(hidden, -torch.inf), -1),
        draw_hidden,
        0,
        (0.4,),
    ),
}


def spread(name: str, size: float) -> Function:
    call, draw, _, _ = SPREADS[name]
    words = f"of spread {size:g}" if draw is draw_spread else f"of which {size:.0%} is masked"
    return Function(f"{name}, {words}", call, partial(draw, size), 1)


LARGE_FUNCTIONS = [spread(name, size) for name, (*_, sizes) in SPREADS.items() for size in sizes]


def tables(request: Request) -> Iterator[Problem]:
    """Few elements come first, so that an interrupted run has every function. Kept memory comes last, because malloc no
    longer adapts afterwards."""
    every = FUNCTIONS | OTHERS
    chosen = request.kinds or (FUNCTIONS if request.quick else every)
    functions = [every[name] for name in chosen]
    keeps = allocation.can_be_kept() and not request.quick and not request.sizes and request.device.type == "cpu"
    for count in request.sizes.get("elements") or (QUICK_ELEMENTS if request.quick else ELEMENTS):
        for function in functions:
            if function.name in OTHERS and request.suite == "all" and count != MANY:
                continue  # they would take an hour
            if not keeps or count < LARGE:
                yield problem(function, count, device=request.device)
            elif function.name in WITH_FRESH_PAGES:
                yield dataclasses.replace(problem(function, count), threads=(1,))
    if request.sizes or request.device.type != "cpu":
        return
    layouts = [layout for layout in LAYOUTS if every[layout[1]] in functions]
    for layout in layouts[:1] if request.quick else layouts:
        yield strided_problem(*layout)
    if not request.kinds and not request.quick:
        yield from map(large_problem, LARGE_FUNCTIONS)
    for function in functions if keeps else ():
        found = problem(function, LARGE)
        yield dataclasses.replace(found, title=f"{found.title}, memory kept by malloc", around=allocation.kept)


def problem(function: Function, count: int, views: Sequence[View] = (), device: torch.device | str = "cpu") -> Problem:
    generator = Generator().manual_seed(0)
    drawn = [x.to(device) for x in function.draw(count, generator)]
    arguments = [view(x) for view, x in zip(views, drawn, strict=True)] if views else drawn
    outputs = function.results(*arguments)
    on_gpu = torch.device(device).type != "cpu"
    moved = sum(x.nbytes for x in (*arguments, *outputs))
    taking = function.gradients
    name = "other functions" if function.name in OTHERS else function.name
    many = (f"{name} from 100,000 elements on",) * (count >= MANY)
    if on_gpu:
        many = (LARGE_ON_GPU,) * (count >= LARGE)
    return Problem(
        title=f"{function.name} of {count:,} elements, float32",
        parameters=tuple(arguments[:taking]),
        inputs=tuple(arguments[taking:]),
        definition=lambda *given: function.results(*in_order(function, given)),
        longest_sum=function.terms(count),
        rows=[*rows_of(function, count), *([Contender(COPY, copy, partial(copied, moved))] if on_gpu else [])],
        sizes={"elements": count},
        rate=Rate("GB/s", lambda seconds: moved / seconds / 1e9) if on_gpu else None,
        rounding=ROUNDINGS * FLOAT32.unit,
        distance=distance,
        phases=((COLD,) if on_gpu else ()) + ((NO_GRAD, BOTH) if taking else (NO_GRAD,)),
        gradients=tuple(torch.randn(y.shape, generator=generator).to(device) for y in outputs) if taking else (),
        works=("every function of 1,000 elements",) if count == FEW and not on_gpu else many,
        kind=function.name,
    )


def copied(moved: int, problem: Problem) -> Problem:
    """A copy that moves as many bytes as the function reads and writes, without what it saves for the backward."""
    source = torch.randn(moved // 8, device=problem.device)  # float32
    return dataclasses.replace(
        problem,
        title=COPY,
        inputs=(source,),
        parameters=(),
        gradients=(),
        phases=(COLD, NO_GRAD),
        definition=lambda x: (x,),
    )


def strided_problem(words: str, name: str, views: tuple[View, ...]) -> Problem:
    found = problem(FUNCTIONS[name], LAYOUT_ELEMENTS, views)
    return dataclasses.replace(found, title=f"{found.title}, {words}", works=("strided arguments",), threads=(1,))


def large_problem(function: Function) -> Problem:
    """Large activations, or rows under a mask."""
    found = problem(function, SPREAD_ELEMENTS)
    rows = [*found.rows, ordinary(function)]
    return dataclasses.replace(found, rows=rows, works=("large activations and masks",), threads=(1,))


def distance(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Values below CANCELLED count as zero: where everything cancels, as in the gradient of sin² + cos², float64's
    result is its own rounding error, and no result would be correct relative to that."""
    return largest_error(results, [torch.where(e.abs() < CANCELLED, 0, e) for e in exact])


def rows_of(function: Function, count: int) -> list[Contender]:
    slow = "left out: of so many elements as long as plain PyTorch" * (count >= LARGE)
    rows = []
    for name, backend in BACKENDS.items():
        build = partial(candidate, function=function, backend=backend)
        rows.append(Contender(name, build, tool=backend, left_out=slow * (name == AOT_EAGER)))
    return rows


def ordinary(function: Function) -> Contender:
    """fourfold's row of the same function with numbers of spread 1, or a mask of zeros."""
    kind = function.name.split(", ")[0]
    same = spread(kind, SPREADS[kind][2])
    build = partial(candidate, function=same, backend="fourfold")
    return Contender(ORDINARY, build, lambda _: problem(same, SPREAD_ELEMENTS), "fourfold")


def candidate(problem: Problem, function: Function, backend: str) -> Candidate:
    call = torch.compile(function.call, backend=backend) if backend else function.call
    parameters = [laid_out_as(p).requires_grad_() for p in problem.parameters]

    def results(*inputs: Tensor) -> tuple[Tensor, ...]:
        found = call(*parameters, *inputs)
        return found if isinstance(found, tuple) else (found,)

    return Candidate(results, parameters)


def in_order(function: Function, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The order of a problem's tensors: arguments without gradient come first."""
    others = len(given) - function.gradients
    return (*given[others:], *given[:others])


def laid_out_as(x: Tensor) -> Tensor:
    """A copy with the same strides; clone() doesn't keep strides that leave gaps."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
