"""Runs a torch sample through the compiler and eager and compares values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from compiler_operators import OpInfo, SampleInput, tensors_of
from fourfold.compiler.pipeline.entry import backend
from fourfold.compiler.pipeline.record import CapturedGraph, Record

LOW = (torch.float16, torch.bfloat16, torch.complex32)
# Results are compared with torch.testing's own tolerance for their dtype, which is widened for two reasons. A program
# computes in float32 where eager rounds after each operation, so that either may be closer to the result in a wider
# dtype; agreeing with that or with eager is enough. `near` explains the other reason.
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


@dataclass
class Problem:
    """One sample as a function of its tensors."""

    call: Callable[..., list[Tensor]]
    tensors: list[Tensor]
    has_gradient: bool

    @classmethod
    def of(cls, entry: OpInfo, sample: SampleInput, has_gradient: bool) -> Problem:
        flat, structure = tree_flatten((sample.input, sample.args, sample.kwargs))

        def call(*tensors: Tensor) -> list[Tensor]:
            rest = iter(tensors)
            values = [next(rest) if isinstance(value, Tensor) else value for value in flat]
            first, args, kwargs = tree_unflatten(values, structure)
            return [r for r in tree_flatten(entry.op(first, *args, **kwargs))[0] if isinstance(r, Tensor)]

        return cls(call, tensors_of(sample), has_gradient)

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        found = []
        for tensor in self.tensors:
            leaf = tensor.detach()
            leaf = leaf.to(dtype) if dtype and leaf.is_floating_point() else leaf
            found.append(leaf.requires_grad_(tensor.requires_grad))
        return found

    def results(self, function: Callable[..., list[Tensor]], dtype: torch.dtype | None = None) -> list[Tensor | None]:
        """The results, and the gradients of a weighted sum of them."""
        leaves = self.leaves(dtype)
        outputs = list(function(*leaves))
        found: list[Tensor | None] = [o.detach() for o in outputs]
        smooth = [o for o in outputs if o.requires_grad]
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        if self.has_gradient and smooth and inputs:
            generator = torch.Generator().manual_seed(3)
            weights = [torch.randn(o.shape, generator=generator).to(o.device, o.dtype) for o in smooth]
            found += torch.autograd.grad(smooth, inputs, weights, allow_unused=True)
        return found

    def expected(self) -> list[Tensor | None] | None:
        """Eager's results, or None if torch raises: entries list dtypes that not all of a gradient's kernels
        support."""
        try:
            return self.results(self.call)
        except (NotImplementedError, RuntimeError):
            return None

    def compiled(self) -> tuple[Callable[..., list[Tensor]], CapturedGraph]:
        """Compiled by the backend, called as Dynamo calls it."""
        record = Record()
        return backend(module_of(self.call, len(self.tensors)), self.leaves(), record=record), record.captured[0]

    def traced(self) -> Callable[..., list[Tensor]]:
        """Run by AOTAutograd with torch's own operators."""
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(module_of(self.call, len(self.tensors)), self.leaves())


def module_of(call: Callable[..., list[Tensor]], count: int) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"x{k}") for k in range(count))
    graph.output(graph.call_function(call, inputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def expect_as_eager(
    problem: Problem,
    function: Callable[..., list[Tensor]],
    expected: list[Tensor | None],
    worse: float = 1,
    any_zeros: bool = False,
) -> None:
    """Compares values, dtypes, shapes, strides and the signs of zeros. worse: a factor on the tolerance; above 1, and
    with any_zeros, zeros may have any sign. On a GPU a gradient may be a sum of terms as large as the largest result:
    both torch and programs add them up in float32."""
    any_zeros = any_zeros or worse > 1
    results = [e for e in expected if e is not None and e.is_floating_point() and e.layout == torch.strided]
    on_gpu = [e[e.isfinite()].abs().amax().item() for e in results if e.device.type != "cpu" and e.isfinite().any()]
    near_enough = partial(near, worse=worse, summands=max(on_gpu, default=0))
    actual = problem.results(function)
    assert len(actual) == len(expected)
    wider: list[Tensor | None] | None = None
    traced: list[Tensor | None] | None = None
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert (a is None) == (e is None)
        if e is None or e.layout != torch.strided:
            continue
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        # Strides of tensors without elements are meaningless; and AOTAutograd's may differ from eager's with any
        # backend.
        if e.numel() and a.stride() != e.stride():
            traced = traced or problem.results(problem.traced())
            assert a.stride() == traced[k].stride(), f"{a.stride()} instead of {e.stride()}"
        right = near_enough(a, e) & (any_zeros or ~other_zeros(a, e))
        if not right.all() and e.dtype in WIDER:
            wider = wider or problem.results(problem.call, WIDER[e.dtype])
            right |= near_enough(a, wider[k].to(e.dtype)) & (any_zeros or ~other_zeros(a, wider[k]))
        assert right.all(), f"{int((~right).sum())} of {right.numel()} differ, such as {first(a, e, ~right)}"


def other_zeros(actual: Tensor, expected: Tensor) -> Tensor:
    """Zeros with another sign. A value that underflows keeps its sign."""
    zeros = (actual == 0) & (expected == 0)
    return zeros & (torch.signbit(actual) != torch.signbit(expected)) if expected.is_floating_point() else zeros & False


def near(actual: Tensor, expected: Tensor, worse: float, summands: float = 0) -> Tensor:
    """In low precision the summands were rounded before the sum, in eager and in a program: a small sum of large terms
    is only as accurate as a rounding of the largest. summands: how large they may be, if float32 is added up too."""
    if not expected.is_floating_point() and not expected.is_complex():
        return actual == expected
    rtol, atol = torch.testing._comparison.default_tolerances(expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    actual, exact = actual.to(wide), expected.to(wide)
    if summands and expected.dtype in (*LOW, torch.float32):
        atol = max(atol, torch.finfo(expected.dtype).eps * summands)
    if expected.dtype in LOW:
        finite = exact[torch.isfinite(exact)].abs()
        atol = max(atol, torch.finfo(expected.dtype).eps * finite.max().item() if finite.numel() else 0)
    return torch.isclose(actual, exact, rtol=worse * rtol, atol=worse * atol, equal_nan=True)


def first(actual: Tensor, expected: Tensor, where: Tensor) -> str:
    place = tuple(where.nonzero()[0].tolist())
    return f"{actual[place].item()!r} instead of {expected[place].item()!r} at {place}"
