"""What one table compares: a problem, the contenders that solve it, and the targets that fourfold is to meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.precision import FLOAT32, Precision
from fourfold.cli.timing import with_float64

COLD, NO_GRAD, FORWARD, BACKWARD, BOTH = (
    "forward, cold cache",
    "forward, no grad",
    "forward",
    "backward",
    "forward+backward",
)
PHASES = (NO_GRAD, FORWARD, BACKWARD, BOTH)
SAVED = "memory kept for the backward"  # what a target may be about beside the phases
OURS = "fourfold"


@dataclass(frozen=True)
class Candidate:
    """One way to compute: a call on the benchmark's inputs, and its parameters in the order of the others'."""

    call: Callable[..., tuple[Tensor, ...]]
    parameters: Sequence[Tensor]


@dataclass(frozen=True)
class Contender:
    """A row of the table; ``build`` may raise Unavailable.

    problem: its own, where it computes something else of the same size. uncaptured: why a CUDA graph can't hold it.
    """

    name: str
    build: Callable[[], Candidate]
    problem: Problem | None = None
    uncaptured: str = ""


@dataclass(frozen=True)
class Target:
    """What fourfold's own row, called without a graph, is to reach in a phase.

    limit: with a rival, how many times as fast as that row at least, or how many times less memory; without, the
    rate's largest value. threads: it holds at this number only. work: its line in the summary of all targets.
    row: which of fourfold's rows is meant.
    """

    phase: str
    limit: float
    rival: str = ""
    threads: int | None = None
    work: str = ""
    row: str = OURS


@dataclass(frozen=True)
class Rate:
    """What a table shows beside the seconds: µs a step, or GB a second."""

    heading: str
    of: Callable[[float], float]


def largest_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Largest difference over all tensors, each in units of its own largest exact value; NaN counts as infinite."""
    return worst((_wide(r, e) - e).abs().max() / (e.abs().max() or 1.0) for r, e in zip(results, exact, strict=True))


def largest_norm(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest ‖result - exact‖ / ‖exact‖ over all tensors, steadier than a single element where errors add up."""
    return worst((_wide(r, e) - e).norm() / (e.norm() or 1.0) for r, e in zip(results, exact, strict=True))


def _wide(result: Tensor, exact: Tensor) -> Tensor:
    return with_float64(result).view_as(exact)


def worst(errors: Any) -> float:
    values = [float(error) for error in errors]
    return math.inf if any(map(math.isnan, values)) else max(values)


@dataclass(frozen=True)
class Problem:
    """What every contender gets, in the precision's dtype and on one device, and the definition to check against."""

    title: str
    parameters: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    definition: Callable[..., tuple[Tensor, ...]]  # of the inputs, then the parameters
    longest_sum: int  # how many terms the longest sum in it has
    sizes: Mapping[str, int] = field(default_factory=dict)
    precision: Precision = FLOAT32
    rounding: float = 0.0  # what is allowed for results, and factors of products, being rounded to the precision
    distance: Callable[[Sequence[Tensor], Sequence[Tensor]], float] = largest_error
    phases: tuple[str, ...] = PHASES
    gradients: tuple[Tensor, ...] = ()  # of the outputs; without any, the outputs are summed
    rate: Rate | None = None
    baseline: str = ""  # the label of the row that ratios are to; the first that was measured where this one was not
    targets: tuple[Target, ...] = ()
    threads: Collection[int] | None = None  # at which numbers of them it is measured; None: at any that is asked for
    batch_sizes: Tensor | None = None  # of packed input
    reset: Tensor | None = None  # where sequences start anew
    kind: str = ""  # which of a benchmark's layers it is, for plots
    keeps: bool = False  # whether to count what each row keeps for the backward
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # what everything is built, checked and timed in

    @property
    def device(self) -> torch.device:
        return (*self.inputs, *self.parameters)[0].device

    @property
    def trains(self) -> bool:
        return any(phase in self.phases for phase in (FORWARD, BACKWARD, BOTH))

    def prepared(self, candidate: Candidate) -> Candidate:
        """The candidate as it is timed, in the problem's precision."""
        return Candidate(self.precision.under_autocast(candidate.call, self.device), candidate.parameters)

    @property
    def tolerance(self) -> float:
        """A float32 sum's rounding error grows as the root of its length; eight times that, for a chain of sums."""
        return 8 * torch.finfo(torch.float32).eps * math.sqrt(self.longest_sum) + self.rounding

    def exact(self) -> list[Tensor]:
        """Outputs and parameters' gradients in float64, of the numbers as they are in the problem's precision."""
        parameters = [with_float64(p).requires_grad_() for p in self.parameters]
        inputs = [with_float64(x) if x.is_floating_point() else x for x in self.inputs]
        return self.results(Candidate(lambda *inputs: self.definition(*inputs, *parameters), parameters), inputs)

    def results(self, candidate: Candidate, inputs: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The outputs, then, where gradients are timed, the parameters': what is checked."""
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
        """Everything that is timed, once, so that whatever is built at a first call is built; gives what is checked."""
        with torch.no_grad():
            outputs = list(candidate.call(*self.inputs))
        return [outputs, self.results(candidate)] if self.trains else [outputs]

    def error(self, results: Sequence[Sequence[Tensor]], exact: Sequence[Tensor]) -> float:
        """The largest of all; outputs come first in ``exact``, and a forward without gradient gives no more."""
        return max(self.distance(some, exact[: len(some)]) for some in results)

    def backward(self, outputs: tuple[Tensor, ...]) -> None:
        if self.gradients:
            torch.autograd.backward(outputs, [g.to(o.dtype) for g, o in zip(self.gradients, outputs, strict=True)])
        else:
            total(outputs).backward()


def bytes_kept(problem: Problem, candidate: Candidate) -> int:
    """What a forward keeps for its backward beside inputs and parameters, each storage once."""
    given = {tensor.untyped_storage().data_ptr() for tensor in (*problem.inputs, *candidate.parameters)}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = candidate.call(*problem.inputs)
    del outputs  # which must live until here: storages that are freed and used again would be counted once
    return sum(kept.values())


def total(outputs: tuple[Tensor, ...]) -> Tensor:
    return sum((output.sum() for output in outputs[1:]), outputs[0].sum())
