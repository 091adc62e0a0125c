"""The gradients of a tensor's parts become one stack, with the bits of their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from compiled import compiled, draw
from fourfold.compiler.pipeline.record import Record

aten = torch.ops.aten
PARTS = (aten.select_backward.default, aten.slice_backward.default)


def recurrence(x: Tensor) -> Tensor:
    v, total = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        v = 0.9 * v + x[t]
        total = total + v
    return total


def loop(steps: Iterable[Tensor]) -> Tensor:
    v, total = 0, 0
    for x in steps:
        v = 0.9 * v + x
        total = total + v * v
    return total


# A function; the numbers of stacks, concatenations and gradients of parts in its backward.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, int, int]]] = {
    "every index": (recurrence, (1, 0, 0)),
    "from the end": (lambda x: x[-1] * 2 + x[-2] * x[0], (0, 1, 0)),
    "another dimension": (lambda x: x[:, 0] * x[:, 1] * x[:, 2] * x[:, 3], (1, 0, 0)),
    "some indices": (lambda x: x[1] * x[3], (0, 1, 0)),
    "an index twice": (lambda x: x[1].sin() + x[1].cos() + x[0], (0, 1, 0)),
    "halves": (lambda x: x[:3] * x[3:], (0, 1, 0)),
    "an index and a part": (lambda x: x[0] * x[1:3].sum(0), (0, 1, 0)),
    "parts that overlap": (lambda x: x[:4] * x[2:], (0, 1, 0)),
    "differences of neighbours": (lambda x: x[:, 1:] - x[:, :-1], (0, 1, 0)),
    "second differences": (lambda x: x[..., 2:] - 2 * x[..., 1:-1] + x[..., :-2], (0, 1, 0)),
    "an index within a part": (lambda x: x[2:5] * x[3], (0, 1, 0)),
    "many shifted parts": (lambda x: x[:2] * x[1:3] * x[2:4] * x[3:5] * x[4:], (0, 1, 0)),
    "two dimensions": (lambda x: x[0].sum() * x[:, 0].sum(), (0, 0, 2)),
    "one part": (lambda x: x[2] * 3, (0, 0, 1)),
    "in steps": (lambda x: x[::2] * x[1::2], (1, 0, 0)),
    "some in steps": (lambda x: x[::3] * x[1::3], (1, 0, 0)),
    "in steps of two sizes": (lambda x: x[::3] * x[::2][:2], (0, 0, 3)),
    "the whole as well": (lambda x: (x * x[0]) + x[1] * x[2], (0, 1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    function, counts = CASES[name]
    record = Record()
    x = draw(6, 4, 5)
    got, expected = compiled(function, record)(x), function(x)
    weight = draw(*got.shape, gradient=False, seed=3)
    (own,), (theirs,) = torch.autograd.grad(got, x, weight), torch.autograd.grad(expected, x, weight)
    torch.testing.assert_close(own, theirs)
    assert own.stride() == theirs.stride()
    assert counted(record) == counts


def counted(record: Record) -> tuple[int, int, int]:
    """The numbers of stacks, concatenations and gradients of parts in the backward."""
    targets = [node.target for node in record.captured[0].backward.graph.graph.nodes]
    return targets.count(aten.stack.default), targets.count(aten.cat.default), sum(map(targets.count, PARTS))


def test_additions_keep_their_order() -> None:
    """Each element's summands are rounded in eager's order."""

    def function(x: Tensor) -> Tensor:
        return x[0] * 1e8 + x[1] * 3 + x[0] * 0.3 - x[0] * 1e8 + x[2] + x.sum(0) * 0.7

    x = draw(3, 64)
    (own,) = torch.autograd.grad(compiled(function)(x).sum(), x)
    (theirs,) = torch.autograd.grad(function(x).sum(), x)
    assert torch.equal(own, theirs)


def test_additions_of_shifted_parts_keep_their_order() -> None:
    def function(x: Tensor) -> Tensor:
        return x[4:] * 1e8 + x[2:-2] * 3 - x[:-4] * 1e8 + x[1:-3] * 0.3

    x = draw(64, 3)
    (own,) = torch.autograd.grad(compiled(function)(x).sum(), x)
    (theirs,) = torch.autograd.grad(function(x).sum(), x)
    assert torch.equal(own, theirs)


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize(
    "places",
    [
        [(t, t + 3) for t in range(6)],
        [(t, t + 3) for t in reversed(range(6))],
        [(0, t) for t in range(1, 8)],
        [(0, t) for t in range(7, 0, -1)],
        [(0, 1), (2, 3), (4, 5), (6, 7), (1, 2), (0, 7), (3, 8)],
        [(2, 4), (2, 4), (1, 3), (2, 4), (3, 4), (5, 8), (2, 4)],
    ],
)
def test_additions_of_parts_that_overlap_keep_their_order(places: list[tuple[int, int]], is_behind: bool) -> None:
    """Also after another summand, whose elements are then each added to."""
    weights = [float(w) for w in 10 ** draw(len(places), gradient=False).mul(4)]

    def function(x: Tensor) -> Tensor:
        total = 0.0
        for (start, stop), weight in zip(places, weights, strict=True):
            total = total + (x[start:stop] * weight).sum()
        return (x * 0.7).sum() + total if is_behind else total

    x = draw(8, 16)
    (own,) = torch.autograd.grad(compiled(function)(x), x)
    (theirs,) = torch.autograd.grad(function(x), x)
    assert torch.equal(own, theirs)


@pytest.mark.parametrize("width", [2, 7, None])
def test_the_graph_grows_with_the_number_of_parts(width: int | None) -> None:
    """Not with its square. None: parts that begin at the first element."""

    def operators(steps: int) -> int:
        x, record = draw(steps, 3), Record()
        parts = [(t + 1 - (width or t + 1), t + 1) for t in range((width or 1) - 1, steps)]
        ours = compiled(lambda x: loop([x[start:stop].sum(0) for start, stop in parts]), record)
        torch.autograd.grad(ours(x).sum(), x)
        return len(record.captured[0].backward.graph.graph.nodes)

    few, more, most = map(operators, (20, 30, 40))
    assert most - more < 1.2 * (more - few)


# A function of a tensor with a dynamic size, which reads a fixed number of steps; the counts in its backward.
UNKNOWN: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, int, int]]] = {
    "the first": (lambda x: loop([x[t] for t in range(4)]), (1, 0, 1)),
    "some": (lambda x: x[1] * x[3], (0, 1, 1)),
    "the last": (lambda x: loop([x[-t] for t in range(1, 4)]), (1, 0, 1)),
    "first and last": (lambda x: x[0] * x[1] * x[-1] * x[-2], (2, 0, 2)),
    "parts": (lambda x: loop([x[t : t + 1] for t in range(4)]), (0, 1, 1)),
    "windows": (lambda x: loop([x[t : t + 2] for t in range(4)]), (0, 1, 1)),
    "the last parts": (lambda x: x[-2:] * x[-4:-2] * x[:2], (0, 1, 2)),
    "parts as large as the tensor": (lambda x: x[1:] * x[:-1], (0, 0, 2)),
    "parts of its rows": (lambda x: loop([x[1:, :, t] for t in range(4)]), (1, 0, 1)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_sizes_that_are_not_known(name: str) -> None:
    function, counts = UNKNOWN[name]
    record = Record()
    ours = compiled(function, record)
    for rows in (6, 9):
        x = draw(rows, 3, 4)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad(function(x).sum(), x))
    assert len(record.captured) == 1
    assert counted(record) == counts


@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_behind_a_dimension_of_any_size(dynamic: bool) -> None:
    """With symbolic sizes, x[:, t] is traced as a selection from a full slice."""
    record = Record()

    def function(x: Tensor) -> Tensor:
        return loop([x[:, t] for t in range(x.shape[1])])

    ours = compiled(function, record)
    for rows in (4, 6) if dynamic else (4,):
        x = draw(rows, 5, 3)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad(function(x).sum(), x))
    assert len(record.captured) == 1
    assert counted(record) == (1, 0, 0)
