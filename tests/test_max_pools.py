"""Max pools over few places whose indices nothing reads are maxima of strided slices, with the same bits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import fourfold
from compiled import compiled, draw, results_of
from fourfold.compiler.lowering import max_pools
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict")
POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)
SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0)
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEWEST", "FEWEST_SIDE_BY_SIDE", "FEWEST_PADDED"):
        monkeypatch.setattr(max_pools, name, 0)


def assert_bits(got: Tensor, expected: Tensor) -> None:
    """Layouts and bits, zeros' signs included; NaN is NaN."""
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    if expected.is_floating_point():
        assert torch.equal(got.isnan(), expected.isnan())
        got, expected = got.nan_to_num(7, math.inf, -math.inf), expected.nan_to_num(7, math.inf, -math.inf)
    own = BITS[expected.element_size()]
    assert torch.equal(got.contiguous().view(own), expected.contiguous().view(own))


def special(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Half of the windows of few elements hold nothing but special values."""
    x = draw(*shape, gradient=False, seed=seed)
    if not dtype.is_floating_point:
        return (x * 9).to(dtype)
    chosen = random.Random(seed).choices(range(len(SPECIAL)), k=x.numel())
    values = torch.tensor(SPECIAL)[torch.tensor(chosen)].reshape(shape)
    return torch.where(draw(*shape, gradient=False, seed=seed + 1) > -0.7, values, x).to(dtype)


def left_to_torch(function: Function, *arguments: Tensor, **settings: object) -> bool:
    record = Record()
    compiled(function, record, **settings)(*arguments)
    return any("max_pool" in str(node.target) for node in record.captured[0].forward.compiled.nodes)


def drawn(seed: int) -> tuple[Function, Tensor]:
    """A pool between elementwise operators, and its input."""
    choose = random.Random(seed)
    dims = choose.choice((1, 2, 2, 2, 3))
    kernel = [1]
    while not 1 < math.prod(kernel) <= max_pools.MOST_PLACES:
        kernel = [choose.choice((1, 2, 3)) for _ in range(dims)]
    stride = [choose.choice((size, 1, 2)) for size in kernel]
    padding = [choose.choice((0, size // 2)) for size in kernel]
    dilation = [choose.choice((1, 1, 2)) for _ in kernel]
    dtype = choose.choice((*FLOATS, *FLOATS, *(INTEGERS if dims > 1 else ())))
    settings = (kernel, stride, padding, dilation, choose.random() < 0.3)
    sizes = [choose.randint(1, 2)] * choose.randint(0, 1), [choose.randint(1, 5)], choose.choices(range(6, 15), k=dims)
    x = special(*sum(sizes, []), dtype=dtype, seed=seed)
    if dims == 2 and x.dim() == 4 and choose.random() < 0.3:
        x = x.contiguous(memory_format=torch.channels_last)
    before, after = choose.choice((lambda x: x, lambda x: x.neg())), choose.choice((lambda x: x, lambda x: x * 2))
    return lambda x: after(POOLS[dims](before(x), *settings)), x


@pytest.mark.parametrize("generator", ["llvm", "interpreter"])
@pytest.mark.parametrize("seed", range(40))
def test_random_pools(seed: int, generator: str) -> None:
    function, x = drawn(seed)
    call, expected = compiled(function, options={"generator": generator}), function(x)
    for _ in range(2):
        assert_bits(call(x), expected)


def test_the_sweep_is_decomposed() -> None:
    """All that is contiguous, and in loop nests what isn't, but for padding with a stride."""
    chosen = [drawn(seed) for seed in range(40)]
    kept = {"llvm": 0, "interpreter": 0}
    for generator in kept:
        left = [left_to_torch(*each, options={"generator": generator}) for each in chosen]
        assert not any(is_left for is_left, (_, x) in zip(left, chosen, strict=True) if x.is_contiguous())
        kept[generator] = sum(left)
    assert kept["llvm"] < kept["interpreter"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("generator", ["llvm", "interpreter"])
def test_zeros_and_nan(generator: str, dtype: torch.dtype) -> None:
    """All windows of two places out of the special values, along rows and columns: the first zero stays."""
    pairs = torch.tensor([[a, b] for a in SPECIAL for b in SPECIAL]).repeat(1, 3).reshape(1, 1, 36, 6).to(dtype)
    for x, kernel in ((pairs, (1, 2)), (pairs.transpose(2, 3).contiguous(), (2, 1))):
        call = compiled(lambda x, kernel=kernel: F.max_pool2d(x, kernel), options={"generator": generator})
        expected = F.max_pool2d(x, kernel)
        for _ in range(2):
            assert_bits(call(x), expected)
    assert expected.signbit().logical_and(expected == 0).any()


def test_operators_before_it_join_its_program() -> None:
    """Those whose every element is read about once."""

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d((x * 1.5 + 0.5).relu(), 2).neg()

    x = special(1, 3, 10, 13)
    assert_bits(compiled(function)(x), function(x))
    explained = fourfold.explain(function, x)
    assert "in 1 program" in str(explained) and "outside programs" not in str(explained)


class Model(nn.Module):
    def __init__(self, function: Function):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("seed", range(12))
def test_saved(seed: int, tmp_path: Path) -> None:
    function, x = drawn(seed)
    fourfold.save(torch.export.export(Model(function), (x,)), tmp_path / "model.ff")
    assert (b"max_pool" in (tmp_path / "model.ff").read_bytes()) is not x.is_contiguous()
    model = fourfold.load(tmp_path / "model.ff")
    for _ in range(2):
        assert_bits(model(x), function(x))


DYNAMIC = (
    ((2, 2), (2, 2), (0, 0), 1),
    ((3, 3), (2, 2), (1, 1), 1),
    ((2, 1), (2, 1), (0, 0), 1),
    ((2, 2), (1, 2), 1, 2),
)


@pytest.mark.parametrize("settings", DYNAMIC)
def test_dynamic_sizes(settings: tuple, tmp_path: Path) -> None:
    """Of any length, compiled once and saved."""

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d(x.neg(), *settings) * 2

    sizes = {2: Dim("h", min=8, max=100), 3: Dim("w", min=8, max=100)}
    program = torch.export.export(Model(function), (special(2, 3, 12, 14),), dynamic_shapes=[sizes])
    fourfold.save(program, tmp_path / "model.ff")
    assert b"max_pool" not in (tmp_path / "model.ff").read_bytes()
    record = Record()
    for call in (fourfold.load(tmp_path / "model.ff"), compiled(function, record, dynamic=True)):
        for shape in ((12, 14), (13, 15), (9, 31), (9, 31)):
            x = special(2, 3, *shape)
            assert_bits(call(x), function(x))
    assert len(record.captured) == 1
    assert not left_to_torch(function, special(2, 3, 12, 14), dynamic=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        lambda x: F.max_pool2d(x, 4),
        lambda x: F.max_pool2d(x[:, :, :8, :8].char().contiguous(), 2),
        lambda x: F.max_pool2d(x.transpose(2, 3), 2),
        lambda x: F.max_pool2d(x[:, :, 1:], 2),
        lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 3, 2, 1),
    ],
)
def test_what_stays(function: Function) -> None:
    x = special(2, 3, 12, 13)
    assert left_to_torch(function, x)
    assert_bits(compiled(function)(x), function(x))


def test_gradients() -> None:
    """The gradient reads the indices."""

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d(x.relu(), 2)

    x = draw(2, 3, 12, 13)
    assert left_to_torch(function, x)
    for got, expected in zip(results_of(compiled(function), (x,)), results_of(function, (x,)), strict=True):
        assert_bits(got, expected)
    with torch.no_grad():
        assert not left_to_torch(function, x)


def test_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert left_to_torch(lambda x: F.max_pool2d(x, 2), special(1, 3, 12, 13))
    assert not left_to_torch(lambda x: F.max_pool2d(x, 2), special(1, 3, 100, 100))
