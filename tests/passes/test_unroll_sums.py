"""The pass that unrolls reductions over a few elements whose results another reduction reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fourfold
from compiled import compiled
from fourfold.compiler.lowering import ROWS
from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.passes.fuse import fuse
from fourfold.compiler.passes.unroll_sums import unroll_sums
from graphs import assert_alike, operators, traced

pytestmark = pytest.mark.filterwarnings("ignore:fourfold could not compute")
a, b = torch.randn(30, 4), torch.randn(7, 4)


def distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(-(a[:, None] - b).square().sum(-1).sqrt(), -1)


@pytest.mark.parametrize(
    "function",
    [
        distances,
        lambda a, b: (a[:, None] * b).abs().amax(-1).sum(-1),
        lambda a, b: torch.logsumexp((a[:, None] * b * 2).amin(-1, keepdim=True), 1),
        lambda a, b: (a.t()[:, :, None] + b.t()[:, None]).relu().sum(0).mean(1),  # over the first dimension
        lambda a, b: ((a[:, None] - b) * torch.ones(()) + b[0]).square().sum(-1).amin(-1),
        lambda a, b: torch.where(a[:, None] > b, a[:, None], 0.5).sum(-1).amax(-1),
    ],
)
def test_what_is_unrolled(function: Callable[..., Tensor]) -> None:
    """One program computes both reductions; the other's operand is never in memory."""
    module = fuse(clean_up(unroll_sums(traced(function, a, b))))
    (group,) = (node.target for node in fused_nodes(module.graph))
    assert sum(node.target in ROWS for node in group.members) == 1
    assert_alike(module, function, a, b)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a[:, None] - b).square().sum(-1),  # nothing reduces its result
        lambda a, b: (a * 2).square().sum(-1).sum(),  # in memory in any case
        lambda a, b: ((d := (a[:, None] - b).square()).sum(-1).amin(-1), d),
        lambda a, b: (a[:, None] - b).square().sum((1, 2)).exp().sum(),
        lambda a, b: (a.repeat(1, 5)[:, None] - b.repeat(1, 5)).square().sum(-1).amin(-1),  # of 20 elements
        lambda a, b: (a.cumsum(0).exp()[:, None].softmax(-1) - b).square().sum(-1).amin(-1),  # computed from rows
        lambda a, b: (a[:, None] - b).bool().sum(-1).amin(-1),
    ],
)
def test_what_stays(function: Callable[..., object]) -> None:
    given = clean_up(traced(function, a, b))
    names = operators(given)
    assert operators(clean_up(unroll_sums(given))) == names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("inner", [2, 3, 16])
def test_values_and_gradients(inner: int, dtype: torch.dtype) -> None:
    """As exact as eager mode's, in each dtype: sums of 16 bits are in float32."""
    given = [torch.randn(n, inner, dtype=torch.float64) for n in (50, 8)]
    results = []
    for function, to in ((compiled(distances), dtype), (distances, dtype), (distances, torch.float64)):
        own = [x.to(dtype).to(to).requires_grad_() for x in given]
        result = function(*own)
        results.append([result, *torch.autograd.grad(result.square().sum(), own)])
    for mine, eagers, exact in zip(*results, strict=True):
        errors = [(each.double() - exact).abs().max().item() for each in (mine, eagers)]
        assert errors[0] <= max(2 * errors[1], 64 * torch.finfo(dtype).eps * exact.abs().max().item())


def test_dtypes_that_promote() -> None:
    """A slice of a vector is no number, whose dtype would not count."""

    def scaled(a: Tensor, w: Tensor) -> Tensor:
        return ((a * w).sum(-1) * 1e-60).softmax(-1)

    wide = torch.full((4,), 1e60, dtype=torch.float64)
    torch.testing.assert_close(compiled(scaled)(a, wide), scaled(a, wide))
    call = compiled(scaled, options={"round": "eager"})
    low, other = a.bfloat16(), b[0] + 1
    torch.testing.assert_close(call(low, other), scaled(low, other))


def test_an_operator_with_a_memory_format() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax((x * x[:, :1]).clone(memory_format=torch.channels_last).sum(-1), -1)

    x = torch.randn(7, 9, 3, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_what_is_not_a_number() -> None:
    own = a.clone(), b.clone()
    own[0][3, 1], own[0][5, 0], own[1][2, 3] = torch.nan, torch.inf, -torch.inf
    for reduce in (torch.sum, torch.amax, torch.amin):

        def function(a: Tensor, b: Tensor, reduce: Callable[..., Tensor] = reduce) -> Tensor:
            return reduce(a[:, None] * b, -1).amin(-1)

        torch.testing.assert_close(compiled(function)(*own), function(*own), equal_nan=True)


def test_one_program_reads_what_is_given() -> None:
    half = fourfold.explain(distances, a, b).graphs[0].forward
    assert len(half.programs) == 1 and half.programs[0].operators[-1] == "_softmax"
    assert {one.operator for one in half.outside} <= {"clone"}  # b, turned
