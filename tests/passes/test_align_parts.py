"""The pass that cuts concatenations which meet in elementwise operators at the same places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fourfold.compiler.analysis import parts
from fourfold.compiler.passes.align_parts import align_parts
from graphs import assert_alike, traced

x, y = torch.randn(6, 9), torch.randn(6, 9)


@pytest.fixture(autouse=True)
def small_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FEWEST_BYTES", 0)


def roll(x: Tensor, shift: int, dim: int = 1) -> Tensor:
    shift %= x.shape[dim]
    return torch.cat((x.narrow(dim, x.shape[dim] - shift, shift), x.narrow(dim, 0, x.shape[dim] - shift)), dim)


def lengths(module: GraphModule) -> list[tuple[int, ...]]:
    """Of the parts of each concatenation."""
    found = []
    for node in module.graph.find_nodes(op="call_function", target=parts.CONCATENATION):
        own, dim = parts.parts_of(node)
        found.append(tuple(part.meta["val"].shape[dim] for part in own))
    return found


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: roll(x, 1) + roll(y, -1), [(1, 7, 1)] * 2),
        (lambda x, y: (roll(x, 2) * 2).exp() - roll(y, -1) * x, [(2, 6, 1)] * 2),
        (lambda x, y: roll(x, 1) * roll(y, 3) * roll(x, -3), [(1, 2, 3, 3)] * 3),
        (lambda x, y: roll(x, 1) + torch.cat((x.new_zeros(6, 4), y[:, 4:]), 1), [(1, 3, 5)] * 2),
        (lambda x, y: roll(x, 1) + roll(y, -1) + roll(x, 1, 0) + roll(y, -1, 0), [(1, 7, 1)] * 2 + [(1, 4, 1)] * 2),
        # Alike already, in no common operator, along different dimensions, in too many parts, as operands of a product.
        (lambda x, y: roll(x, 2) + roll(y, 2), [(2, 7)] * 2),
        (lambda x, y: (roll(x, 1) * 2, roll(y, -1) + 1), [(1, 8), (8, 1)]),
        (lambda x, y: roll(x, 1) + roll(y, 1, 0), [(1, 8), (1, 5)]),
        (lambda x, y: roll(x, 1) + roll(y, -1) + roll(x, 2) + roll(y, -2), [(1, 8), (8, 1), (2, 7), (7, 2)]),
        (lambda x, y: roll(x, 1) @ roll(y, -1).t(), [(1, 8), (8, 1)]),
    ],
)
def test_parts_of_concatenations(function: Callable[..., object], expected: list[tuple[int, ...]]) -> None:
    module = align_parts(traced(function, x, y))
    assert sorted(lengths(module)) == sorted(expected)
    assert_alike(module, function, x, y)


def test_sizes_that_are_not_known() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x[:, 8:], x[:, :8]), 1) + torch.cat((y[:, 1:], y[:, :1]), 1)

    module = align_parts(traced(function, x, y, dynamic=True))
    assert len(lengths(module)) == 2 and all(len(each) == 2 for each in lengths(module))


def test_small_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of their own for few bytes take longer than a copy."""
    monkeypatch.setattr(parts, "FEWEST_BYTES", 1 << 16)
    assert lengths(align_parts(traced(lambda x, y: roll(x, 1) + roll(y, -1), x, y))) == [(1, 8), (8, 1)]
