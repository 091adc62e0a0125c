"""Gradients of parts of a tensor are one stack, with the bits that adding them up gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiled import compiled, draw
from fourfold.compiler.record import Record

aten = torch.ops.aten
PARTS = (aten.select_backward.default, aten.slice_backward.default)


def recurrence(x: Tensor) -> Tensor:
    v, total = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        v = 0.9 * v + x[t]
        total = total + v
    return total


# A function; how many stacks, concatenations and gradients of parts its backward has.
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
    "many shifted parts": (lambda x: x[:2] * x[1:3] * x[2:4] * x[3:5] * x[4:], (0, 1, 1)),
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
    targets = [node.target for node in record.captured[0].backward.graph.graph.nodes]
    found = tuple(targets.count(t) for t in (aten.stack.default, aten.cat.default)), sum(map(targets.count, PARTS))
    assert (*found[0], found[1]) == counts


def test_additions_keep_their_order() -> None:
    """Each element's summands are rounded as eager rounds them."""

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


def test_sizes_that_are_not_known_stay_sums() -> None:
    record = Record()
    ours = compiled(lambda x: x[0] * x[1], record, dynamic=True)
    for rows in (3, 5):
        x = draw(rows, 4)
        torch.testing.assert_close(torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad((x[0] * x[1]).sum(), x))
    assert len(record.captured) == 1
