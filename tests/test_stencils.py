"""Depthwise convolutions and average pools over few places are sums of shifted slices, where loop nests run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
from compiled import assert_same, compiled, draw, results_of
from fourfold.compiler.lowering import stencils
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict")
SIZES = ((3, 1, 1, 3), (3, 1, 3, 3), (3, 1, 11, 1))


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stencils, "FEWEST", 0)


def given(*kernel: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = draw(2, 3, 12, 13, dtype=dtype), draw(*kernel, seed=1, dtype=dtype)
    return x, weight, draw(3, seed=2, dtype=dtype)


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, groups=3)


def around(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, padding=(weight.shape[2] - 1, 1), groups=3).relu()


def dilated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One number in a list stands for both dimensions."""
    return F.conv2d(x.sin(), weight, bias, padding=[1], dilation=(1, 2), groups=3) + F.conv2d(
        x, weight, stride=[1], padding=(1, 1), dilation=[1], groups=3
    ).sum((2, 3), True)


def causal(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    line = weight[:, :, 0]
    return F.silu(F.conv1d(x.flatten(2), line, bias, padding=line.shape[2] - 1, groups=3)[..., : 12 * 13])


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.avg_pool2d(x * 2, tuple(weight.shape[2:]), 1)


FUNCTIONS = (plain, around, dilated, causal, pooled)


def left_to_torch(function: Callable[..., Tensor], *arguments: Tensor, **options: object) -> set[str]:
    record = Record()
    compiled(function, record, options=options)(*arguments)
    names = {str(node.target) for node in record.captured[0].forward.compiled.nodes}
    return {name for name in names if "conv" in name or "pool" in name}


@pytest.mark.parametrize("kernel", SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_and_gradients(function: Callable[..., Tensor], kernel: tuple[int, ...]) -> None:
    call, own = compiled(function, options={"generator": "llvm"}), given(*kernel)
    for _ in range(2):
        assert_same(results_of(call, own), results_of(function, own))
    assert not left_to_torch(function, *own, generator="llvm") or function is causal and kernel[3] == 1


@pytest.mark.parametrize(
    ("dtype", "round"), [(torch.float64, "stored"), (torch.float16, "eager"), (torch.bfloat16, "stored")]
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_dtypes(function: Callable[..., Tensor], dtype: torch.dtype, round: str) -> None:
    """16 bits are rounded once, as by torch's kernels, which add in float32."""
    own = given(3, 1, 3, 3, dtype=dtype)
    call = compiled(function, options={"generator": "llvm", "round": round})
    tolerance = {} if dtype is torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    assert_same(results_of(call, own), results_of(function, own), **tolerance)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_one_gradient_alone(wanted: tuple[bool, bool]) -> None:
    x, weight, bias = (each.detach() for each in given(3, 1, 3, 3))
    own = x.requires_grad_(wanted[0]), weight.requires_grad_(wanted[1]), bias
    assert_same(results_of(compiled(around), own), results_of(around, own))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, weight, bias: F.conv2d(x, weight, stride=2, groups=3),
        lambda x, weight, bias: F.conv2d(x, weight[:1].expand(1, 3, 3, 3)),
        lambda x, weight, bias: F.conv2d(x, weight.repeat(2, 1, 1, 1), groups=3),
        lambda x, weight, bias: F.conv2d(x, weight.repeat(1, 1, 2, 1), groups=3),  # 18 places
        lambda x, weight, bias: F.conv2d(x, weight[:, :, :1, :1], groups=3),
        lambda x, weight, bias: F.conv_transpose2d(x, weight, groups=3),
        lambda x, weight, bias: F.conv2d(x.contiguous(memory_format=torch.channels_last), weight, groups=3),
        lambda x, weight, bias: F.avg_pool2d(x, 3),
        lambda x, weight, bias: F.avg_pool2d(x, 3, 1, padding=1),
    ],
)
def test_what_stays(function: Callable[..., Tensor]) -> None:
    own = given(3, 1, 3, 3)
    assert left_to_torch(function, *own, generator="llvm")
    assert_same(results_of(compiled(function), own), results_of(function, own))


def test_where_it_would_not_pay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the interpreter, in files, whose programs C++ runs so, and for few elements."""
    own = tuple(each.detach() for each in given(3, 1, 3, 3))
    assert left_to_torch(plain, *own, generator="interpreter")

    class Model(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return around(x, weight, bias)

    fourfold.save(torch.export.export(Model(), own), tmp_path / "model.ff")
    assert b"aten::convolution" in (tmp_path / "model.ff").read_bytes()
    torch.testing.assert_close(fourfold.load(tmp_path / "model.ff")(*own), around(*own))
    monkeypatch.undo()
    assert left_to_torch(plain, *own, generator="llvm")
    larger = torch.randn(1, 3, 100, 100), *own[1:]
    assert not left_to_torch(plain, *larger, generator="llvm")


@pytest.mark.parametrize(
    ("kernel", "padding", "is_torchs"),
    [((3, 3), 0, True), ((1, 7), 0, False), ((1, 7), (0, 3), True), ((4, 1), (3, 0), False), ((2, 2), 0, True)],
)
def test_many_channels(kernel: tuple[int, int], padding: object, is_torchs: bool) -> None:
    x, weight = draw(2, 16, 12, 13, gradient=False), draw(16, 1, *kernel, seed=1, gradient=False)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=padding, groups=16)

    assert bool(left_to_torch(function, x, weight, generator="llvm")) == is_torchs
