"""The analysis that finds writes of slices into tensors of which nothing reads the old values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiled import assert_same, compiled, results_of
from fourfold import _native
from fourfold.compiler.analysis.writes import writes
from graphs import traced
from operator_events import events

aten = torch.ops.aten
x, y = torch.randn(6, 9), torch.randn(6, 9)


def write(into: Tensor, value: Tensor, rows: tuple[int, int], columns: tuple[int, int], step: int = 1) -> Tensor:
    """As functionalization traces ``into[rows, columns] = value``."""
    slice = into[rows[0] : rows[1]]
    return aten.slice_scatter(into, aten.slice_scatter(slice, value, 1, *columns, step), 0, *rows)


def one(x: Tensor, y: Tensor) -> Tensor:
    return write(x * 2, y[1:4, 2:6], (1, 4), (2, 6))


def two(x: Tensor, y: Tensor) -> Tensor:
    return write(one(x, y), y[:2, ::2].sin(), (0, 2), (0, 9), 2) + 1


def row_of_slice(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(6, 9)
    return aten.slice_scatter(out, aten.select_scatter(out[:, 1:-1], y[:, 0], 1, -1), 1, 1, -1)


def reads_the_slice_before(x: Tensor, y: Tensor) -> Tensor:
    out = x * 2
    return write(out, out[1:4, 2:6].sin() + out[2:5, 2:6].cos(), (1, 4), (2, 6))


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (one, 1),
        (two, 2),
        (row_of_slice, 1),
        (reads_the_slice_before, 1),
        (lambda x, y: write(out := x * 2, out[2:5, 3:7], (1, 4), (2, 6)), 1),
        # Something reads the old values, or it is an input or a view.
        (lambda x, y: (out := x * 2, write(out, y[1:4, 2:6], (1, 4), (2, 6))), 0),
        (lambda x, y: write(out := x * 2, y[1:4, 2:6], (1, 4), (2, 6)) + out[2], 0),
        (lambda x, y: write(x, y[1:4, 2:6], (1, 4), (2, 6)), 0),
        (lambda x, y: write(x.view(9, 6), y[1:4, 2:6], (1, 4), (2, 6)), 0),
        # The whole is written after all.
        (lambda x, y: aten.slice_scatter(out := x * 2, write(out[:4], y[1:3, 2:6], (1, 3), (2, 6)), 0, 1, 5), 1),
    ],
)
def test_what_is_found(function: Callable[..., object], count: int) -> None:
    assert len(writes(traced(function, x, y))) == count


def diffused(u: Tensor, v: Tensor) -> Tensor:
    """A step with boundaries, as simulations are written."""
    out = torch.zeros_like(u)
    out[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - v[1:-1, 1:-1])
    out[0, 1:-1], out[-1, ::2] = 1, v[0, ::2]
    out[1:-1, 0] = out[1:-1, 1]
    return out


def moved(x: Tensor, y: Tensor) -> Tensor:
    """The places that are read and written overlap."""
    out = x * y
    out[1:4, 2:6] = out[2:5, 3:7]
    out[0] = out[1] + out[0] * 2
    return out


def reads_before_another_write(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What a scatter within another one has read is written before the outer one."""
    first, second = x * 2, y * 2
    inner = torch.slice_scatter(first[1:4], second[0:3, 2:6], 1, 2, 6)
    second = torch.slice_scatter(second, x[3:6].sin(), 0, 0, 3)
    return torch.slice_scatter(first, inner, 0, 1, 4), second


def joined(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The program's result has its memory in the concatenation."""
    out = (x + y) * 2
    both = torch.cat((out, y.sin() * 2))
    out[1:4, 2:6] = y[1:4, 2:6]
    return out, both


WRITTEN = (one, two, row_of_slice, reads_the_slice_before, diffused, moved, joined, reads_before_another_write)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", WRITTEN)
def test_compiled_functions(function: Callable[..., Tensor], dynamic: bool) -> None:
    call = compiled(function, dynamic=dynamic)
    for _ in range(2):
        own = x.clone().requires_grad_(), y.clone().requires_grad_()
        assert_same(results_of(call, own), results_of(function, own))


@pytest.mark.skipif(_native.module is None, reason="Python runs the graphs, and copies the whole")
def test_no_scatter_runs() -> None:
    for function in (diffused, moved):
        ran = events(compiled(function), x, y)
        assert not {"aten::slice_scatter", "aten::select_scatter"} & set(ran)
