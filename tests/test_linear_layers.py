"""Linear layers of tensors that aren't contiguous: one product, not a batch of them with the expanded weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold import _native

pytestmark = pytest.mark.skipif(_native.module is None, reason="no C++ module for this torch")


class Layers(nn.Module):
    """linear: of strided rows, of 4 dimensions, and of a convolution's transposed output."""

    def __init__(self, outputs: int = 40, bias: bool = True) -> None:
        super().__init__()
        self.linear, self.heads = nn.Linear(32, outputs, bias), nn.Linear(16, outputs, bias)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (time, batch, 32)."""
        return (
            self.linear(x.transpose(0, 1)),
            self.linear(x.transpose(0, 1)).relu(),
            self.heads(x.unflatten(-1, (2, 16)).permute(1, 2, 0, 3)),
            self.linear(self.conv(x.permute(1, 2, 0)).transpose(1, 2)),
        )


def saved(model: nn.Module, x: Tensor, path: Path) -> object:
    dims = {0: torch.export.Dim("time", min=1, max=512), 1: torch.export.Dim("batch", min=1, max=64)}
    fourfold.save(torch.export.export(model, (x,), dynamic_shapes=(dims,)), path)
    return fourfold.load(path)


def expect_alike(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for own, other in zip(ours, theirs, strict=True):
        assert own.stride() == other.stride()
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("bias", [True, False])
def test_saved(bias: bool, tmp_path: Path) -> None:
    model = Layers(bias=bias)
    loaded = saved(model, torch.randn(7, 3, 32), tmp_path / "layers.ff")
    text = str(loaded)
    assert "bmm" not in text
    assert (text.count("aten::addmm("), text.count("aten::mm(")) == ((3, 1) if bias else (0, 4))
    for time, batch in ((7, 3), (40, 2), (5, 1), (1, 4), (1, 1)):
        x = torch.randn(time, batch, 32)
        for own, other in zip(loaded(x), model(x), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    torch._dynamo.reset()
    model, x = Layers(), torch.randn(7, 3, 32)
    function = torch.compile(model, backend="fourfold", dynamic=dynamic)
    expect_alike(function(x), model(x))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(x)
    assert "aten::bmm" not in {event.name for event in profile.events()}


@pytest.mark.parametrize(("outputs", "dtype"), [(8, torch.float32), (40, torch.bfloat16)])
def test_left_to_torch_or_rounded_twice(outputs: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """Few columns stay a batch of products; in bfloat16 the sum with the bias stays a sum."""
    model = Layers(outputs).to(dtype)
    x = torch.randn(7, 3, 32).to(dtype)
    loaded = saved(model, x, tmp_path / "layers.ff")
    assert ("bmm" in str(loaded)) == (outputs == 8) and "addmm" not in str(loaded)
    for own, other in zip(loaded(x), model(x), strict=True):
        torch.testing.assert_close(own, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_matrix_of_each_product_stays(dynamic: bool) -> None:
    """Expanded along its rows or columns, and with the sizes of a shared one."""
    torch._dynamo.reset()
    x, w, square = torch.randn(32, 7, 32), torch.randn(32, 48), torch.randn(32, 32)

    def along_rows(x: Tensor, w: Tensor) -> Tensor:
        return torch.matmul(x, w.unsqueeze(1).expand(-1, 32, -1))

    def along_columns(x: Tensor, w: Tensor) -> Tensor:
        return torch.matmul(x, w.unsqueeze(-1).expand(-1, -1, 32))

    for function, matrix in ((along_rows, w), (along_rows, square), (along_columns, square)):
        compiled = torch.compile(function, backend="fourfold", dynamic=dynamic)
        torch.testing.assert_close(compiled(x, matrix), function(x, matrix), rtol=1e-5, atol=1e-4)
