"""The pass that turns writes of slices and rows, as functionalization traces them, into concatenations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.passes.scatters import scatters
from graphs import assert_alike, operators, traced

x, y = torch.randn(6, 9), torch.randn(6, 9)
slice_scatter, select_scatter = torch.slice_scatter, torch.select_scatter


def into_new(x: Tensor, y: Tensor) -> Tensor:
    out = select_scatter(torch.empty(3, 6, 9), x * y, 0, 0)
    return select_scatter(select_scatter(out, x.exp(), 0, -1), y, 0, 1)


def one_over_another(x: Tensor, y: Tensor) -> Tensor:
    out = slice_scatter(x, y[:, 2:6].exp(), 1, 2, 6)
    return slice_scatter(out, y[:, 4:8].sin(), 1, 4, -1)


def with_copies(x: Tensor, y: Tensor) -> Tensor:
    """As ``out[:, 0] = y[:, 0].double(); out[:, 1:] = 3`` are traced."""
    out = torch.zeros(6, 9)
    out = select_scatter(out, torch.ops.aten.copy(out[:, 0], (x[:, 0] * y[:, 0]).double()), 1, 0)
    return slice_scatter(out, torch.ops.aten.fill(out[:, 1:], 3), 1, 1)


def with_broadcasts(x: Tensor, y: Tensor) -> Tensor:
    return slice_scatter(x, torch.ops.aten.copy(x[2:5], y[0] * 2), 0, 2, 5) + 1


def one_value_at_several_places(x: Tensor, y: Tensor) -> Tensor:
    value = y[0] * 2
    out = select_scatter(select_scatter(x, value, 0, 0), value, 0, 1)
    rows = value.expand(3, 9)
    return slice_scatter(slice_scatter(out, rows, 0, 2, 5), rows, 0, 3, 6)


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (into_new, 3),
        (one_over_another, 4),
        (with_copies, 2),
        (with_broadcasts, 3),
        (one_value_at_several_places, 4),
        (lambda x, y: slice_scatter(x, y * 2, 0, 0, 6), 1),  # all of it
        (lambda x, y: slice_scatter(x, y[:2], 0, 4).relu(), 2),
        (lambda x, y: select_scatter(slice_scatter(x, y[:2].exp(), 0, 4), y[:, 0].sin(), 1, 3), 3),  # two dimensions
    ],
)
def test_what_is_concatenated(function: Callable[..., Tensor], parts: int) -> None:
    module = clean_up(scatters(traced(function, x, y)))
    names = operators(module)
    assert not {"slice_scatter", "select_scatter", "copy", "fill"} & set(names)
    joins = [node for node in module.graph.nodes if node.target is torch.ops.aten.cat.default]
    assert [len(node.args[0]) for node in joins][-1:] == ([parts] if parts > 1 else [])
    assert_alike(module, function, x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: slice_scatter(x, y, 0, 0, 6) @ y.t(),  # torch computes the parts and reads the whole
        lambda x, y: slice_scatter(x, y[:3].exp(), 0, 0, 6, 2),
        lambda x, y: slice_scatter(x, y[:0].exp(), 0, 3, 3),
        lambda x, y: slice_scatter(x.t(), y.t()[:2].exp(), 0, 3, 5),  # its result lies like x
        lambda x, y: torch.diagonal_scatter(x, y[:, 0].exp()),
    ],
)
def test_what_stays(function: Callable[..., Tensor]) -> None:
    module = clean_up(scatters(traced(function, x, y)))
    assert "cat" not in operators(module)
    assert_alike(module, function, x, y)


def test_sizes_that_are_unknown() -> None:
    """The dimension's must be known; others need not be."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return slice_scatter(x.new_zeros(4, x.shape[1]), x[:2].exp(), 0, 1, 3)

    for dynamic in (False, True):
        module = clean_up(scatters(traced(function, x, y, dynamic=dynamic)))
        assert "cat" in operators(module)
    module = clean_up(scatters(traced(lambda x, y: slice_scatter(x, y[:2].exp(), 0, 1, 3), x, y, dynamic=True)))
    assert "slice_scatter" in operators(module)
