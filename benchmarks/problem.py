"""What a table compares: a problem in one precision, the rows that solve it, and exact results in float64."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.targets import BACKWARD, BOTH, FORWARD, NO_GRAD, PHASES
from fourfold.cli.timing import with_float64


@dataclass(frozen=True)
class Precision:
    """name: on the command line. words: in a heading. autocast: the dtype to which tensors of ``dtype`` are cast."""

    name: str
    words: str
    dtype: torch.dtype
    tf32: bool = False
    autocast: torch.dtype | None = None

    @property
    def products(self) -> torch.dtype:
        return self.autocast or self.dtype

    @property
    def unit(self) -> float:
        """The unit roundoff of a product's factors; TF32 keeps 10 of the 23 bits after the point."""
        return 2.0**-11 if self.tf32 else torch.finfo(self.products).eps / 2

    def under_autocast(self, call: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        """Each call enters autocast anew, as in a training loop, so that cached casts of weights don't survive a
        call."""
        if self.autocast is None:
            return call

        def cast(*inputs: Any) -> Any:
            with torch.autocast(device.type, self.autocast):
                return call(*inputs)

        return cast

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Sets torch's TF32 switches by their older names, which Inductor reads; using the newer ones makes that an
        error."""
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = self.tf32
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before


FLOAT32 = Precision("float32", "float32", torch.float32)
PRECISIONS = {
    precision.name: precision
    for precision in (
        FLOAT32,
        Precision("tf32", "float32 with TF32 products", torch.float32, tf32=True),
        Precision("bfloat16", "bfloat16", torch.bfloat16),
        Precision("float16", "float16", torch.float16),
        Precision("float64", "float64", torch.float64),
        Precision("autocast", "bfloat16 autocast", torch.float32, autocast=torch.bfloat16),
    )
}
ON_GPU = ("float32", "tf32", "bfloat16", "float16")


class Unavailable(Exception):
    """A row can't run here; ``str()`` is the reason, which the table shows."""


@dataclass(frozen=True)
class Candidate:
    """A call on the problem's inputs, and its parameters in the problem's order."""

    call: Callable[..., tuple[Tensor, ...]]
    parameters: Sequence[Tensor]


@dataclass(frozen=True)
class Contender:
    """A row of the table; ``build`` may raise Unavailable.

    own: replaces the table's problem where the row computes something else of the same size. tool: "aten" for the
    tutorials' extensions, or torch.compile's backend; --skip uses this name. left_out, uncaptured: why it is not
    measured, or not as a CUDA graph.
    """

    name: str
    build: Callable[[Problem], Candidate]
    own: Callable[[Problem], Problem] = lambda problem: problem
    tool: str = ""
    left_out: str = ""
    uncaptured: str = ""


@dataclass(frozen=True)
class Rate:
    """What a table shows besides seconds: µs per step, or GB per second."""

    heading: str
    of: Callable[[float], float]


def largest_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest error relative to each tensor's largest exact value; NaN counts as infinite."""
    return worst((wide(r, e) - e).abs().max() / (e.abs().max() or 1.0) for r, e in zip(results, exact, strict=True))


def largest_norm(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest ‖result - exact‖ / ‖exact‖, steadier than single elements where errors accumulate."""
    pairs = [(wide(r, e).double(), e.double()) for r, e in zip(results, exact, strict=True)]
    return worst((r - e).norm() / (e.norm() or 1.0) for r, e in pairs)


def wide(result: Tensor, exact: Tensor) -> Tensor:
    return with_float64(result).view_as(exact)


def worst(errors: Iterable[Any]) -> float:
    values = [float(error) for error in errors]
    return math.inf if any(map(math.isnan, values)) else max(values)


@dataclass(frozen=True)
class Problem:
    title: str
    parameters: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    definition: Callable[..., tuple[Tensor, ...]]  # takes the inputs, then the parameters
    longest_sum: int  # terms of the longest sum in it
    rows: Sequence[Contender] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    precision: Precision = FLOAT32
    rounding: float = 0.0  # allowed error from rounding results, and factors of products, to the precision
    distance: Callable[[Sequence[Tensor], Sequence[Tensor]], float] = largest_error
    phases: tuple[str, ...] = PHASES
    gradients: tuple[Tensor, ...] = ()  # of the outputs; if empty, the backward starts from the sum of the outputs
    rate: Rate | None = None
    baseline: str = ""  # the row that ratios refer to; if it was not measured, the first measured row
    works: tuple[str, ...] = ()  # the suite's targets that it belongs to
    threads: Collection[int] | None = None  # the thread counts at which it is measured; None: all
    batch_sizes: Tensor | None = None  # for packed input
    reset: Tensor | None = None  # where sequences restart
    kind: str = ""  # which of the suite's layers or functions
    source: str = ""  # the publication, or the function of a package, that defines it
    keeps: bool = False  # whether to count the bytes that each row saves for the backward
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext  # of checks and timing

    @property
    def device(self) -> torch.device:
        return (*self.inputs, *self.parameters)[0].device

    @property
    def trains(self) -> bool:
        return any(phase in self.phases for phase in (FORWARD, BACKWARD, BOTH))

    @property
    def tolerance(self) -> float:
        """The rounding error of a float32 sum grows as the square root of its length; eight times that, for a chain of
        sums."""
        return 8 * torch.finfo(torch.float32).eps * math.sqrt(self.longest_sum) + self.rounding

    def prepared(self, candidate: Candidate) -> Candidate:
        """The candidate that is timed, in the problem's precision."""
        return Candidate(self.precision.under_autocast(candidate.call, self.device), candidate.parameters)

    def exact(self) -> list[Tensor]:
        """Outputs and gradients of parameters, computed in float64 from the values rounded to the problem's
        precision."""
        parameters = [with_float64(p).requires_grad_() for p in self.parameters]
        inputs = [with_float64(x) if x.is_floating_point() else x for x in self.inputs]
        return self.results(Candidate(lambda *inputs: self.definition(*inputs, *parameters), parameters), inputs)

    def results(self, candidate: Candidate, inputs: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The values that are checked: the outputs, then, where gradients are timed, those of the parameters."""
        inputs = self.inputs if inputs is None else inputs
        if not self.trains:
            with torch.no_grad():
                return list(candidate.call(*inputs))
        for parameter in candidate.parameters:
            parameter.grad = None
        outputs = candidate.call(*inputs)
        self.backward(outputs)
        gradients = [p.grad for p in candidate.parameters]
        if any(gradient is None for gradient in gradients):
            raise RuntimeError("a parameter got no gradient")
        return [output.detach() for output in outputs] + gradients

    def run_once(self, candidate: Candidate) -> list[list[Tensor]]:
        """Runs everything that is timed once, so that first-call work is done; returns what is checked."""
        with torch.no_grad():
            outputs = list(candidate.call(*self.inputs))
        return [outputs, self.results(candidate)] if self.trains else [outputs]

    def error(self, results: Sequence[Sequence[Tensor]], exact: Sequence[Tensor]) -> float:
        """The largest error of all results. ``exact`` starts with the outputs; a forward without gradient returns only
        those."""
        return max(self.distance(some, exact[: len(some)]) for some in results)

    def backward(self, outputs: tuple[Tensor, ...]) -> None:
        if self.gradients:
            torch.autograd.backward(outputs, [g.to(o.dtype) for g, o in zip(self.gradients, outputs, strict=True)])
        else:
            total(outputs).backward()


def bytes_kept(problem: Problem, candidate: Candidate) -> int:
    """Bytes that a forward saves for its backward besides inputs and parameters; each storage counts once."""
    given = {tensor.untyped_storage().data_ptr() for tensor in (*problem.inputs, *candidate.parameters)}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = candidate.call(*problem.inputs)
    del outputs  # kept until here: two tensors that reuse a freed storage would count as one
    return sum(kept.values())


def total(outputs: tuple[Tensor, ...]) -> Tensor:
    return sum((output.sum() for output in outputs[1:]), outputs[0].sum())


def normal(generator: torch.Generator, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
    """Returns a function that draws tensors of a shape, the same on every device."""
    return lambda *shape: torch.randn(shape, generator=generator).to(device, dtype)


def functional(problem: Problem, call: Callable[..., tuple[Tensor, ...]] | None = None) -> Candidate:
    """A candidate from a function of inputs and parameters; by default the definition."""
    function = call or problem.definition
    parameters = [p.clone().requires_grad_() for p in problem.parameters]
    return Candidate(lambda *inputs: function(*inputs, *parameters), parameters)


def forward_only(problem: Problem) -> Problem:
    return dataclasses.replace(problem, phases=(NO_GRAD,))


def compiled(module: nn.Module, backend: str = "") -> nn.Module:
    return torch.compile(module, backend=backend) if backend else module
