"""``pointwise``: functions of elementwise operators and of reductions over rows under torch.compile's backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import torch
from torch import Generator, Tensor

from benchmarks import allocation, large
from benchmarks.backends import AOT_EAGER, BACKENDS, INDUCTOR, PLAIN
from benchmarks.comparison import left_out
from benchmarks.functions import FUNCTIONS, Function
from benchmarks.precision import FLOAT32
from benchmarks.problem import BOTH, NO_GRAD, OURS, Candidate, Contender, Problem, Target, largest_error
from benchmarks.request import Request

ELEMENTS = (10**3, 10**5, 10**6, 10**7)
QUICK_ELEMENTS = (10**3, 10**5)
FEW = 10**3  # whose time is the call's
MANY = 10**5  # from here on no function is to be slower than Inductor's
LARGE = 10**7  # whose results are fresh pages in each call, unless malloc keeps memory
WITH_FRESH_PAGES = ("sin2_cos2", "swiglu", "layer_norm", "adam")  # of them most of a large call, whatever the row
LAYOUT_ELEMENTS = 10**6
SHARED = 1.5
ROUNDINGS = 64  # one after the other; in Black-Scholes what they leave is divided by a spread of 0.03 at the least
CANCELLED = 1e-12  # below it a float64 number is what rounding left of zero

View = Callable[[Tensor], Tensor]


def as_drawn(x: Tensor) -> Tensor:
    return x


def transposed(x: Tensor) -> Tensor:
    """The same matrix, whose columns lie in one piece; of a vector rows are made first."""
    return matrix(x).t().contiguous().t()


def matrix(x: Tensor) -> Tensor:
    return x if x.ndim > 1 else x.view(-1, 1000)


def every_second(x: Tensor) -> Tensor:
    """The same numbers as every second column of twice as many."""
    return torch.stack((x, x), dim=-1).flatten(-2)[..., ::2]


@dataclasses.dataclass(frozen=True)
class Layout:
    """words: how a function's arguments lie. views: one for each of them."""

    words: str
    function: str
    views: tuple[View, ...]


LAYOUTS = (
    Layout("a transposed matrix", "sin2_cos2", (transposed,)),
    Layout("every second column", "gelu_tanh", (every_second,)),
    Layout("a matrix and a transposed one", "silu_gating", (matrix, transposed)),
    Layout("every second column", "layer_norm", (every_second, as_drawn, as_drawn)),
    Layout("a transposed matrix", "rms_norm", (transposed, as_drawn)),
    Layout("matrices and a transposed gradient", "adam", (matrix, transposed, matrix, matrix)),
)


def problems(request: Request) -> Iterator[Problem]:
    """At a few elements first, so that a run cut short has every function; what is kept by malloc comes last, as malloc
    no longer adapts after it."""
    functions = [FUNCTIONS[name] for name in request.kinds or FUNCTIONS]
    keeps = allocation.can_be_kept() and not request.quick and not request.sizes
    for count in request.sizes.get("elements") or (QUICK_ELEMENTS if request.quick else ELEMENTS):
        for function in functions:
            if not keeps or count < LARGE:
                yield problem(function, count)
            elif function.name in WITH_FRESH_PAGES:
                yield dataclasses.replace(problem(function, count), threads=(1,))
    if request.sizes:
        return
    layouts = [layout for layout in LAYOUTS if FUNCTIONS[layout.function] in functions]
    for layout in layouts[:1] if request.quick else layouts:
        yield strided_problem(layout)
    if not request.kinds and not request.quick:
        yield from map(large_problem, large.FUNCTIONS)
    if keeps:
        for function in functions:
            yield kept_problem(function)


def problem(function: Function, count: int, views: Sequence[View] = ()) -> Problem:
    generator = Generator().manual_seed(0)
    drawn = function.draw(count, generator)
    arguments = [view(x) for view, x in zip(views, drawn, strict=True)] if views else drawn
    outputs = function.results(*arguments)
    taking = function.gradients
    return Problem(
        title=f"{function.name} of {count:,} elements, float32",
        parameters=tuple(arguments[:taking]),
        inputs=tuple(arguments[taking:]),
        definition=lambda *given: function.results(*in_order(function, given)),
        longest_sum=function.terms(count),
        sizes={"elements": count},
        rounding=ROUNDINGS * FLOAT32.unit,
        distance=distance,
        phases=(NO_GRAD, BOTH) if taking else (NO_GRAD,),
        gradients=tuple(torch.randn(y.shape, generator=generator) for y in outputs) if taking else (),
        targets=targets(function, count),
        kind=function.name,
    )


def strided_problem(layout: Layout) -> Problem:
    function = FUNCTIONS[layout.function]
    found = problem(function, LAYOUT_ELEMENTS, layout.views)
    aims = tuple(dataclasses.replace(target, work="strided arguments", limit=1.0) for target in found.targets)
    return dataclasses.replace(found, title=f"{found.title}, {layout.words}", targets=aims, threads=(1,))


def large_problem(name: str) -> Problem:
    """Of large activations, or of rows under a mask."""
    found = problem(large.FUNCTIONS[name], large.ELEMENTS)
    aims = ((PLAIN, 0.95), (large.ORDINARY, 1 / 1.2))
    work = "large activations and masks"
    phases = (NO_GRAD, BOTH)
    aimed = tuple(Target(phase, limit, rival, work=work) for phase in phases for rival, limit in aims)
    return dataclasses.replace(found, targets=aimed, threads=(1,))


def ordinary_problem(name: str) -> Problem:
    return problem(large.ordinary(name), large.ELEMENTS)


def kept_problem(function: Function) -> Problem:
    """The largest size without fresh pages."""
    found = problem(function, LARGE)
    title = f"{found.title}, memory kept by malloc"
    return dataclasses.replace(found, title=title, around=allocation.kept)


def distance(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Where everything cancels, as in the gradient of sin² + cos², float64 has its own rounding, in units of which
    nothing would be right."""
    return largest_error(results, [torch.where(e.abs() < CANCELLED, 0, e) for e in exact])


def targets(function: Function, count: int) -> tuple[Target, ...]:
    phases = (NO_GRAD, BOTH) if function.gradients else (NO_GRAD,)
    if count == FEW:
        work = f"every function of {FEW:,} elements"
        training = (Target(BOTH, 2.5, INDUCTOR, work=work), Target(BOTH, 1.3, PLAIN, work=work))
        return (Target(NO_GRAD, 1.3, INDUCTOR, work=work), *(training if function.gradients else ()))
    if count < MANY:
        return ()
    work = f"{function.name} from {MANY:,} elements on"
    return tuple(Target(phase, SHARED if function.shares else 1.0, INDUCTOR, work=work) for phase in phases)


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    torch.compiler.reset()  # each table compiles for its own shape, and Inductor for its number of threads
    builds: dict[str, Callable[[], Candidate]]
    builds = {name: partial(candidate, problem, backend) for name, backend in BACKENDS.items()}
    if problem.sizes["elements"] >= LARGE:
        builds[AOT_EAGER] = partial(left_out, "left out: of so many elements as long as plain PyTorch")
    rows = [Contender(name, left_out if BACKENDS[name] in skip else build) for name, build in builds.items()]
    if problem.kind not in large.FUNCTIONS:
        return rows
    same = ordinary_problem(problem.kind)
    return [*rows, Contender(large.ORDINARY, partial(candidate, same, BACKENDS[OURS]), same)]


def function_of(problem: Problem) -> Function:
    if problem.kind in FUNCTIONS:
        return FUNCTIONS[problem.kind]
    return large.FUNCTIONS.get(problem.kind) or large.ordinary(problem.kind)


def candidate(problem: Problem, backend: str) -> Candidate:
    function = function_of(problem)
    call = torch.compile(function.call, backend=backend) if backend else function.call
    parameters = [laid_out_as(p).requires_grad_() for p in problem.parameters]

    def results(*inputs: Tensor) -> tuple[Tensor, ...]:
        found = call(*parameters, *inputs)
        return found if isinstance(found, tuple) else (found,)

    return Candidate(results, parameters)


def in_order(function: Function, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A function's arguments, of which a problem names those without gradient first."""
    others = len(given) - function.gradients
    return (*given[others:], *given[:others])


def laid_out_as(x: Tensor) -> Tensor:
    """New memory with the same strides, which clone() does not keep where they leave gaps."""
    return torch.empty_strided(x.shape, x.stride()).copy_(x)
