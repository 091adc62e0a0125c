"""Gradients of maxima in low precision: elements that the backward recomputes are compared with their own maximum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiled import compiled

BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "rms": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
    "sum": lambda x: (x * 1.7 + 0.3).tanh() * x.sum(-1, keepdim=True),
}
LARGEST: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda y: y / (1 + y.abs().amax(-1, keepdim=True)),
    "amax without its dimension": lambda y: y.amax(-1),
    "amin": lambda y: y - y.amin(-1, keepdim=True),
    "amax of two dimensions": lambda y: y.view(-1, 5, y.shape[-1]).amax((1, 2)),
    "max": lambda y: y / y.max(),
    "min": lambda y: y - y.min(),
    "infinite norm": lambda y: F.normalize(y, p=torch.inf, dim=-1),
    "both ends": lambda y: (y - y.amin(-1, keepdim=True)) / (1 + y.amax(-1, keepdim=True) - y.amin(-1, keepdim=True)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("before", BEFORE)
def test_gradients_are_those_of_float64_within_a_rounding(before: str, dtype: torch.dtype) -> None:
    """In a few rows another element is the largest after a rounding, and the gradient is at it."""
    inputs = torch.randn(len(LARGEST), 200, 12, generator=torch.Generator().manual_seed(0)).to(dtype)

    def function(*each: Tensor) -> list[Tensor]:
        return [largest(BEFORE[before](x)) for largest, x in zip(LARGEST.values(), each, strict=True)]

    def gradients(call: Callable[..., list[Tensor]], given: Tensor) -> list[Tensor]:
        each = [x.clone().requires_grad_() for x in given]
        sum(result.float().square().mean() for result in call(*each)).backward()
        return [x.grad for x in each]

    found = zip(LARGEST, gradients(compiled(function), inputs), gradients(function, inputs.double()), strict=True)
    for name, got, expected in found:
        assert got.isfinite().all(), name
        apart = (got - expected).norm(dim=-1)
        near = apart <= 0.1 * expected.norm(dim=-1) + 0.1 * expected.abs().max()
        assert near.float().mean() > 0.9, name
