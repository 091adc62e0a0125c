"""A ReLU moves behind a max pool or a reshape that reads it alone, into the program that follows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold import _native

pytestmark = pytest.mark.skipif(_native.module is None, reason="no C++ module for this torch")


class Layers(nn.Module):
    """reads: whether something else reads the ReLU too, which then stays where it is."""

    def __init__(self, kind: str, reads: bool = False) -> None:
        super().__init__()
        self.conv, self.reads = nn.Conv2d(3, 8, 3, padding=1), reads
        self.after = {"pool": nn.MaxPool2d(2), "padded": nn.MaxPool2d(3, 2, 1), "norm": nn.GroupNorm(4, 8)}[kind]
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        return self.after(x).sum() + x.sin().sum() if self.reads else self.after(x)


def saved(model: nn.Module, path: Path) -> object:
    dims = {2: torch.export.Dim("height", min=8, max=512), 3: torch.export.Dim("width", min=8, max=512)}
    x = torch.randn(2, 3, 64, 80)
    fourfold.save(torch.export.export(model, (x,), dynamic_shapes=(dims,)), path)
    return fourfold.load(path)


@pytest.mark.parametrize("kind", ["pool", "padded", "norm"])
def test_saved(kind: str, tmp_path: Path) -> None:
    model = Layers(kind)
    loaded = saved(model, tmp_path / "layers.ff")
    if kind != "padded":  # without loop nests torch pools with padding, of symbolic sizes
        assert "aten::relu" not in str(loaded)
    x = torch.randn(2, 3, 50, 62)
    x[0, :, 20, 20], x[0, :, 30, 30] = math.nan, math.inf
    for given in (x, torch.zeros(2, 3, 9, 8), torch.randn(2, 3, 64, 80)):
        torch.testing.assert_close(loaded(given), model(given), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["pool", "padded", "norm"])
def test_compiled(kind: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    model, x = Layers(kind), torch.randn(2, 3, 64, 80)
    function = torch.compile(model, backend="fourfold", dynamic=dynamic)
    torch.testing.assert_close(function(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["pool", "norm"])
def test_read_twice(kind: str, tmp_path: Path) -> None:
    model, x = Layers(kind, reads=True), torch.randn(2, 3, 64, 80)
    torch.testing.assert_close(saved(model, tmp_path / "layers.ff")(x), model(x), rtol=1e-4, atol=1e-3)
