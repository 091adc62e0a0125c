"""One benchmark: several modules that compute the same, checked against float64, then timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fourfold.bench import timing
from fourfold.bench.aten import Unavailable, first_sentence

NO_GRAD, FORWARD, BACKWARD, BOTH = PHASES = ("forward, no grad", "forward", "backward", "forward+backward")


@dataclass(frozen=True)
class Candidate:
    """One way to compute: a call on the benchmark's inputs, and its parameters in the order of the others'."""

    call: Callable[..., tuple[Tensor, ...]]
    parameters: Sequence[Tensor]


@dataclass(frozen=True)
class Contender:
    """A row of the table; ``build`` may raise Unavailable."""

    name: str
    build: Callable[[], Candidate]


@dataclass
class Row:
    """What became of a contender: figures, or the reason why there are none."""

    name: str
    reason: str = ""
    wrong: bool = False
    error: float = math.nan  # the largest relative error against float64
    first_call: float = math.nan  # seconds until it was built and forward and backward had run once
    samples: Mapping[str, list[float]] = field(default_factory=dict)  # seconds of an iteration, by phase

    def statistics(self, phase: str) -> timing.Statistics:
        return timing.summarise(self.samples[phase])


@dataclass(frozen=True)
class Problem:
    """What every contender gets: parameters and inputs in float32, and the definition to check against."""

    title: str
    parameters: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    definition: Callable[..., tuple[Tensor, ...]]  # of the inputs, then the parameters
    longest_sum: int  # how many terms the longest sum in it has

    @property
    def tolerance(self) -> float:
        """A float32 sum's rounding error grows as the root of its length; eight times that, for a chain of sums."""
        return 8 * torch.finfo(torch.float32).eps * math.sqrt(self.longest_sum)

    def exact(self) -> list[Tensor]:
        """Outputs and parameters' gradients in float64."""
        parameters = [p.double().requires_grad_() for p in self.parameters]
        inputs = [x.double() for x in self.inputs]
        return outputs_and_gradients(lambda *inputs: self.definition(*inputs, *parameters), inputs, parameters)


def outputs_and_gradients(
    call: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """The outputs, then the gradients of the outputs' sum by the parameters: the work that is timed."""
    for parameter in parameters:
        parameter.grad = None
    outputs = call(*inputs)
    total(outputs).backward()
    gradients = [p.grad for p in parameters]
    if any(gradient is None for gradient in gradients):
        raise RuntimeError("a parameter got no gradient")
    return [output.detach() for output in outputs] + gradients


def run_once(candidate: Candidate, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Everything that is timed, once, so that whatever is built at a first call is built; gives what is checked."""
    with torch.no_grad():
        candidate.call(*inputs)
    return outputs_and_gradients(candidate.call, inputs, candidate.parameters)


def total(outputs: tuple[Tensor, ...]) -> Tensor:
    return sum((output.sum() for output in outputs[1:]), outputs[0].sum())


def largest_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Largest difference over all tensors, each in units of its own largest exact value; NaN counts as infinite."""
    errors = []
    for result, truth in zip(results, exact, strict=True):
        difference = (result.double().view_as(truth) - truth).abs().max().item()
        scale = truth.abs().max().item() or 1.0  # a gradient that is all zeros has to be met exactly
        errors.append(math.inf if math.isnan(difference) else difference / scale)
    return max(errors)


def compare(problem: Problem, contenders: Sequence[Contender], repeats: int) -> list[Row]:
    """Check every contender, then time those that are right; the first is the baseline of every ratio."""
    exact = problem.exact()
    rows, samples = [], {}
    for contender in contenders:
        row, candidate = prepare(problem, contender, exact)
        rows.append(row)
        if candidate is not None:
            samples[contender.name] = sampler(candidate, problem.inputs)
    measured = timing.interleave(samples, repeats)
    for row in rows:
        row.samples = measured.get(row.name, {})
    return rows


def prepare(problem: Problem, contender: Contender, exact: Sequence[Tensor]) -> tuple[Row, Candidate | None]:
    """Build a contender, give it the problem's parameters, run it once with the clock on and check what comes out."""
    start = time.perf_counter()
    try:
        candidate = contender.build()
    except Unavailable as unavailable:
        return Row(contender.name, reason=str(unavailable)), None
    with torch.no_grad():
        for own, given in zip(candidate.parameters, problem.parameters, strict=True):
            own.copy_(given.view_as(own))
    results = run_once(candidate, problem.inputs)
    seconds = time.perf_counter() - start
    error = largest_error(results, exact)
    if not error <= problem.tolerance:
        reason = f"WRONG: relative error {error:.1e}, tolerance {problem.tolerance:.1e}; not timed"
        return Row(contender.name, reason=reason, wrong=True, error=error, first_call=seconds), None
    return Row(contender.name, error=error, first_call=seconds), candidate


def left_out() -> Candidate:
    raise Unavailable("left out by --skip")


def inductor(make: Callable[[Callable[[nn.Module], nn.Module]], Candidate], inputs: Sequence[Tensor]) -> Candidate:
    """What ``make`` gives when it is handed torch.compile; compiled here, where a failure becomes a reason."""
    torch.compiler.reset()  # Inductor builds the number of threads into its code
    try:
        candidate = make(torch.compile)
        run_once(candidate, inputs)
    except RuntimeError as error:  # Dynamo's and Inductor's own errors too
        raise Unavailable(f"can't be compiled: {first_sentence(error)}") from error
    return candidate


def sampler(candidate: Candidate, inputs: Sequence[Tensor]) -> timing.Sample:
    """The tutorial's loop: forward and backward timed apart, gradients cleared in between; first, forward without."""

    def sample(iterations: int) -> dict[str, float]:
        clock, call = time.perf_counter, candidate.call
        with torch.no_grad():
            start = clock()
            for _ in range(iterations):
                call(*inputs)
            no_grad = clock() - start
        forward = backward = 0.0
        for _ in range(iterations):
            for parameter in candidate.parameters:
                parameter.grad = None
            start = clock()
            outputs = call(*inputs)
            middle = clock()
            total(outputs).backward()
            backward += clock() - middle
            forward += middle - start
        seconds = (no_grad, forward, backward, forward + backward)
        return {phase: value / iterations for phase, value in zip(PHASES, seconds, strict=True)}

    return sample
