"""Saved models whose attentions share a bool mask: it is converted once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fourfold

pytestmark = [
    pytest.mark.usefixtures("strict"),
]


class Attentions(nn.Module):
    """views: whether each layer has a view of the mask of its own."""

    def __init__(self, layers: int, views: bool = False):
        super().__init__()
        self.layers, self.views = layers, views

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        mask = torch.arange(x.shape[-2]) <= place.view(-1, 1, 1)
        for _ in range(self.layers):
            x = x + F.scaled_dot_product_attention(x, x * 2, x, mask.unsqueeze(1) if self.views else mask[:, None])
        return x


def saved(path: Path, model: nn.Module, *given: Tensor) -> fourfold.Model:
    batch = {0: torch.export.Dim("batch", max=64)}
    fourfold.save(torch.export.export(model, given, dynamic_shapes=(batch, batch)), path)
    return fourfold.load(path)


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The last sequence sees nothing."""
    torch.manual_seed(0)
    return torch.randn(3, 2, 5, 4).to(dtype), torch.tensor([2, 4, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("views", [False, True])
def test_values(views: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    model, given = Attentions(3, views), drawn(dtype)
    loaded = saved(tmp_path / "model.ff", model, *given)
    for batch in (3, 2, 1):
        own = [each[-batch:] for each in given]
        torch.testing.assert_close(loaded(*own), model(*own), equal_nan=True)


def test_one_program_converts_the_mask(tmp_path: Path) -> None:
    text = str(saved(tmp_path / "model.ff", Attentions(3, views=True), *drawn()))
    assert sum(line.startswith("program") and "where" in line for line in text.splitlines()) == 1
    steps = text.partition("return")[0]
    assert steps.count("aten::scaled_dot_product_attention") == 3 and "aten::where" not in steps


def test_one_attention_keeps_its_mask(tmp_path: Path) -> None:
    assert "where" not in str(saved(tmp_path / "model.ff", Attentions(1), *drawn()))


class Masks(nn.Module):
    """Two masks, of which one is read by attentions of two dtypes."""

    def forward(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        other, y = torch.arange(5) >= place.view(-1, 1, 1, 1) - 1, x.double()
        attended = F.scaled_dot_product_attention(x, x, x, mask) + F.scaled_dot_product_attention(x, x, x, other)
        return attended, F.scaled_dot_product_attention(y, y, y, mask, scale=2.0)


def test_several_masks(tmp_path: Path) -> None:
    model, given = Masks(), drawn()
    for mine, theirs in zip(saved(tmp_path / "model.ff", model, *given)(*given), model(*given), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
