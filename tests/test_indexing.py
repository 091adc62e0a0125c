"""Reads and sums at one tensor of indices are index_select and index_add, with torch's bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from compiled import compiled, draw
from fourfold.compiler.lowering import indexing
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "FEWEST", 0)


def targets_of(function: Callable[..., Tensor], *arguments: Tensor) -> set[str]:
    """Of the operators that torch runs, forward and backward."""
    record = Record()
    result = compiled(function, record)(*arguments)
    if result.requires_grad:
        result.sum().backward()
    halves = (record.captured[0].forward, record.captured[0].backward)
    return {str(node.target) for half in halves if half is not None for node in half.compiled.nodes}


def drawn(seed: int) -> tuple[int, Tensor, Tensor, Tensor]:
    """A dimension, a tensor, indices of which some count from the end, and factors."""
    choose = random.Random(seed)
    sizes = [choose.choice((1, 2, 5, 16, 40)) for _ in range(choose.randint(1, 4))]
    dim, dtype = choose.randrange(len(sizes)), choose.choice((torch.float32, torch.float64))
    shape = choose.choice(((7,), (1,), (3, 4), (2, 1, 3)))
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(-sizes[dim], sizes[dim], shape, generator=generator)
    index = index.int() if choose.random() < 0.2 else index
    x = draw(*sizes, dtype=dtype, seed=seed)
    factor = draw(*sizes[:dim], *shape, *sizes[dim + 1 :], dtype=dtype, gradient=False, seed=seed + 1)
    return dim, x, index, factor


@pytest.mark.parametrize("seed", range(40))
def test_random_ones(seed: int) -> None:
    dim, x, index, factor = drawn(seed)

    def function(x: Tensor, index: Tensor, factor: Tensor) -> Tensor:
        return x[(slice(None),) * dim + (index,)] * factor

    found = []
    for call in (compiled(function), function):
        x.grad = None
        result = call(x, index, factor)
        result.backward(factor)
        found.append((result, x.grad))
    (mine, gradient), (theirs, expected) = found
    assert mine.stride() == theirs.stride()
    assert torch.equal(mine, theirs) and torch.equal(gradient, expected)


def test_rows_are_selected_and_added() -> None:
    x, index = draw(50, 8), torch.randint(50, (3, 20))
    targets = targets_of(lambda x, i: x[i] * 2, x, index)
    assert {"aten.index_select.default", "aten.index_add.default"} <= targets
    assert not {"aten.index.Tensor", "aten.index_put.default"} & targets
    x = draw(50, 8, gradient=False)
    for function in (lambda x, i: x[:, i] * 2, lambda x, i: x[i, i] * 2, lambda x, i: x[:, i > 3] * 2):
        assert "aten.index_select.default" not in targets_of(function, x, torch.arange(8))


def test_indices_beyond_the_size_raise() -> None:
    call, x = compiled(lambda x, i: x[i] + 1), draw(5, 4, gradient=False)
    for wrong in (5, -6):
        with pytest.raises(IndexError, match="out of range"):
            call(x, torch.tensor([0, wrong]))


def test_few_elements_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "aten.index.Tensor" in targets_of(lambda x, i: x[i] + 1, draw(5, 4, gradient=False), torch.tensor([0, 1]))


def test_in_files(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return x[index].tanh()

    x, index = draw(50, 8, gradient=False), torch.randint(-50, 50, (30,))
    fourfold.save(torch.export.export(Rows(), (x, index)), tmp_path / "rows.ff")
    loaded = fourfold.load(tmp_path / "rows.ff")
    assert "index_select" in str(loaded)
    torch.testing.assert_close(loaded(x, index), x[index].tanh())
