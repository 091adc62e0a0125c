"""The pass that computes overlapping slices, and concatenations of concatenations, from slices of the operands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fourfold.compiler.analysis.parts import flatten
from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.passes.sink_slices import sink_slices
from graphs import assert_alike, operators, traced

x, y, row, column = torch.randn(6, 9), torch.randn(6, 9), torch.randn(9), torch.randn(6, 1)


def neighbours(d: Tensor) -> Tensor:
    return d[:, 1:] - d[:, :-1]


def both(d: Tensor) -> Tensor:
    """Slices of a result, and of a value computed from it."""
    n = -d
    return torch.cat((n[:, :1], n[:, 1:] + d[:, :-1], d[:, -1:]), 1)


def of_three(d: Tensor) -> Tensor:
    return d[2:] + d[1:-1] + d[:-2]


@pytest.mark.parametrize(
    ("function", "moves"),
    [
        (lambda x, y, row, column: neighbours(x * y), True),
        (lambda x, y, row, column: both(x.sign() * y), True),
        (lambda x, y, row, column: of_three((x + row) * column), True),
        (lambda x, y, row, column: neighbours(torch.where(x > y, x[:, :1], row)), True),
        (lambda x, y, row, column: neighbours(neighbours(x * y)), True),
        # Read as a whole too, in registers.
        (lambda x, y, row, column: (neighbours(d := x * y), d * 2), True),
        (lambda x, y, row, column: (d := x * y) - torch.cat((d[:, 7:], d[:, :7]), 1), True),
        (lambda x, y, row, column: (d := x * y) - torch.cat((d[:, 6:], d[:, 3:6], d[:, :3]), 1), False),  # by parts
        # Expensive to compute again, needed as a whole in memory, read from what another slice of it has, no longer in
        # memory.
        (lambda x, y, row, column: neighbours(x.exp() * y), False),
        (lambda x, y, row, column: (neighbours(d := x * y), d), False),
        (lambda x, y, row, column: ((d := x * y)[:, :5], d[:, 3:] * 2), False),
        (lambda x, y, row, column: neighbours(x * (y @ y.t() @ y).sin()), False),
        # Disjoint parts, which by_parts computes separately; a slice for each pair; steps; rows and columns.
        (lambda x, y, row, column: (d := x * y)[:, :4].sum(1) + d[:, 4:].sum(1), False),
        (lambda x, y, row, column: (d := x * y)[:, :1] + sum(d[:, k : k + 2].sum(1, True) for k in range(8)), False),
        (lambda x, y, row, column: (d := x * y)[:, ::2] + d[:, :5], False),
        (lambda x, y, row, column: neighbours(d := x * y)[1:] + d[1:, 1:] - d[:-1, 1:], False),
    ],
)
def test_what_moves(function: Callable[..., object], moves: bool) -> None:
    given = x, y, row, column
    before = traced(function, *given)
    names = operators(clean_up(before))
    module = clean_up(sink_slices(traced(function, *given)))
    assert (operators(module) != names) == moves
    assert_alike(module, function, *given)
    if moves:  # slices only read memory
        slices = module.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
        assert all(node.args[0].op == "placeholder" or node.args[0].target is slices[0].target for node in slices)


def test_concatenations_of_concatenations_are_one() -> None:
    def nested(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x, torch.cat((y, torch.cat((x * 2, y), 1)), 1)), 1)

    module = traced(nested, x, y)
    flatten(module.graph)
    assert operators(clean_up(module)).count("cat") == 1
    assert_alike(module, nested, x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.cat((x, torch.cat((y, y), 0)[:6]), 1),
        lambda x, y: torch.cat((x, y, torch.cat((x, y), 0).view(6, 18)), 1),
        lambda x, y: (torch.cat((x, z := torch.cat((x, y), 1)), 1), z * 2),
    ],
)
def test_other_concatenations_stay(function: Callable[..., object]) -> None:
    module = traced(function, x, y)
    count = operators(module).count("cat")
    flatten(module.graph)
    assert operators(clean_up(module)).count("cat") == count
    assert_alike(module, function, x, y)
