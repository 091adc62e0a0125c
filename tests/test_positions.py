"""argmax, argmin, and max and min along a dimension are programs where loop nests run, with torch's positions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiled import compiled, draw
from fourfold.compiler.lowering import positions
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict")
SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0)
FUNCTIONS: dict[str, Callable[..., object]] = {
    "argmax": torch.argmax, "argmin": torch.argmin, "max": torch.max, "min": torch.min
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "FEWEST", 0)


def left_to_torch(function: Callable[..., object], *arguments: object, **settings: object) -> bool:
    record = Record()
    compiled(function, record, **settings)(*arguments)
    targets = {node.target for node in record.captured[0].forward.compiled.nodes}
    return not targets.isdisjoint(positions.POSITIONS)


def drawn(seed: int) -> tuple[Callable[..., object], Tensor]:
    """Of tensors with ties, zeros of both signs, infinities and NaN, some behind an elementwise operator."""
    choose = random.Random(seed)
    function, dtype = choose.choice(list(FUNCTIONS.values())), choose.choice(positions.COMPARED)
    shape = [choose.choice((1, 2, 3, 7, 16, 33, 100)) for _ in range(choose.randint(1, 3))]
    dim, keepdim, is_fused = choose.randrange(-len(shape), len(shape)), choose.random() < 0.5, choose.random() < 0.5
    x = (3 * draw(*shape, gradient=False, seed=seed)).to(dtype)
    if dtype.is_floating_point:
        picked = torch.tensor(choose.choices(SPECIAL, k=x.numel())).reshape(shape).to(dtype)
        share = choose.choice((0.0, 0.02, 0.3))
        x = torch.where(torch.tensor([choose.random() < share for _ in range(x.numel())]).reshape(shape), picked, x)
    return lambda x: function(x * 2 if is_fused else x, dim, keepdim), x


def assert_same(got: object, expected: object) -> None:
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for mine, theirs in pairs:
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("generator", ["llvm", "interpreter"])
@pytest.mark.parametrize("seed", range(60))
def test_random_ones(seed: int, generator: str) -> None:
    function, x = drawn(seed)
    call = compiled(function, options={"generator": generator})
    for _ in range(2):
        assert_same(call(x), function(x))


def test_they_are_programs_where_nests_run() -> None:
    x = draw(70, 130, gradient=False)
    for function in FUNCTIONS.values():
        assert not left_to_torch(lambda x, f=function: f(x, 1), x, options={"generator": "llvm"})
        assert not left_to_torch(lambda x, f=function: f(x, 0), x, options={"generator": "llvm"})
        assert left_to_torch(lambda x, f=function: f(x, 1), x, options={"generator": "interpreter"})


def test_of_few_elements_or_long_rows_torch_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nests = {"options": {"generator": "llvm"}}
    assert left_to_torch(lambda x: x.argmax(0), draw(positions.LONGEST + 1, gradient=False), **nests)
    monkeypatch.undo()
    assert left_to_torch(lambda x: x.argmax(1), draw(4, 10, gradient=False), **nests)


@pytest.mark.parametrize("dim", [0, 1])
def test_dynamic_sizes(dim: int) -> None:
    call = compiled(lambda x: x.exp().argmax(dim), dynamic=True)
    for rows in (5, 9, 40):
        x = draw(rows, 12, gradient=False, seed=rows)
        assert_same(call(x), x.argmax(dim))


def test_gradients_go_to_the_positions() -> None:
    x = draw(50, 30)
    call = compiled(lambda x: x.sin().max(1).values)
    for function in (call, lambda x: x.sin().max(1).values):
        x.grad = None
        function(x).sum().backward()
        if function is call:
            own = x.grad
    torch.testing.assert_close(own, x.grad)
    assert (own != 0).sum() == 50
