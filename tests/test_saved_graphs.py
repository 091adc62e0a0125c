"""Graphs of many kinds, saved and loaded: layers, computed sizes, indices, modes, torch's recurrent layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import fourfold

pytestmark = pytest.mark.slow


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return F.log_softmax(F.interpolate(self.second(x), scale_factor=2, mode="bilinear").mean((2, 3)), -1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 16)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.tokens(tokens))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4, mode="sum")

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        return self.bag(indices, offsets)


class Indices(nn.Module):
    def forward(self, x: Tensor, rows: Tensor, mask: Tensor) -> Any:
        y = x[rows].abs()
        z = y.index_put((torch.tensor([0]),), torch.zeros(4))
        return [y.topk(2).values, z.sort(-1)[1], x.masked_select(mask), torch.einsum("ij,kj->ik", x, y)]


class OfData(nn.Module):
    """A size that is read from a tensor."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        n = count.item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0])
        return x[:n] * 2


class Numbers(nn.Module):
    def forward(self, x: Tensor, k: int, factor: float) -> Any:
        return x.reshape(-1, k) * factor + k // 2, x.new_zeros(x.shape[0] % 3 + k), k * 2


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.layer(x).relu()
        return x + torch.empty(4).fill_(2)


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(x)


class TorchsScan(nn.Module):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        from torch._higher_order_ops.scan import scan

        return scan(lambda h, x: (h * 0.9 + x, (h * x).softmax(-1)), h, x)


class OurScan(nn.Module):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return fourfold.scan(lambda h, x: (h * 0.9 + x, (h * x).softmax(-1)), h, x, dim=1)


def image(batch: int, size: int = 16) -> Tensor:
    return torch.randn(batch, 3, size, size)


x, size = torch.randn(5, 4), Dim.AUTO
# A model, its export arguments, its dynamic sizes, its call arguments.
GRAPHS = {
    "convolutions": (Convolutions, (image(2),), ({0: size, 2: size, 3: size},), (image(3, 20),)),
    "channels last": (
        lambda: Convolutions().to(memory_format=torch.channels_last),
        (image(2).to(memory_format=torch.channels_last),),
        None,
        (image(2),),
    ),
    "encoder": (Encoder, (torch.randint(10, (3, 7)),), ({0: size, 1: size},), (torch.randint(10, (2, 9)),)),
    "bag": (
        Bag,
        (torch.randint(10, (6,)), torch.tensor([0, 2])),
        None,
        (torch.randint(10, (6,)), torch.tensor([0, 5])),
    ),
    "indices": (Indices, (x, torch.tensor([0, 3, 2]), x > 0), None, (x, torch.tensor([4, 3, -1]), x > 1)),
    "of data": (OfData, (x, torch.tensor(3)), None, (x, torch.tensor(2))),
    "numbers": (Numbers, (torch.randn(4, 6), 3, 1.5), ({0: size}, Dim.DYNAMIC, None), (torch.randn(8, 6), 4, 1.5)),
    "modes": (Modes, (x,), None, (x + 1,)),
    "GRU": (Gru, (torch.randn(2, 5, 4),), None, (torch.randn(2, 5, 4),)),
    "torch's scan": (
        TorchsScan,
        (torch.randn(6, 3, 4), torch.randn(3, 4)),
        ({0: size, 1: size}, {0: size}),
        (torch.randn(9, 5, 4), torch.randn(5, 4)),
    ),
    "scan along another dimension": (
        OurScan,
        (torch.randn(3, 6, 4), torch.randn(3, 4)),
        ({0: size, 1: size}, {0: size}),
        (torch.randn(5, 9, 4), torch.randn(5, 4)),
    ),
}


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # from torch.export, about its own nn.GRU
@pytest.mark.parametrize("name", GRAPHS)
def test_a_loaded_graph_computes_what_was_exported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    make, args, dynamic, given = GRAPHS[name]
    torch._dynamo.reset()  # torch's scan keeps checks of an earlier export's sizes, which would make sizes static
    model = make().eval()
    with torch.no_grad():
        fourfold.save(torch.export.export(model, args, dynamic_shapes=dynamic), tmp_path / "m.ff")
        wanted = pytree.tree_leaves(model(*given))
    found = pytree.tree_leaves(fourfold.load(tmp_path / "m.ff")(*given))
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=1e-5)
        else:
            assert mine == theirs


def test_sizes_of_a_scan_are_dynamic_after_an_export_with_static_ones(tmp_path: Path) -> None:
    model, args = OurScan(), (torch.randn(3, 6, 4), torch.randn(3, 4))
    with torch.no_grad():
        for dynamic in (None, ({1: size}, None), ({0: size, 1: size}, {0: size})):
            program = torch.export.export(model, args, dynamic_shapes=dynamic)
    fourfold.save(program, tmp_path / "m.ff")
    given = (torch.randn(5, 9, 4), torch.randn(5, 4))
    torch.testing.assert_close(fourfold.load(tmp_path / "m.ff")(*given), model(*given), rtol=2e-5, atol=1e-5)


def test_a_scan_of_other_steps_than_its_series_is_refused(tmp_path: Path) -> None:
    """The file's bounds reject such a call; without bounds, the loop does."""
    model = OurScan()
    args = (torch.randn(3, 6, 4), torch.randn(3, 4))
    fourfold.save(torch.export.export(model, args, dynamic_shapes=({1: Dim("n", min=0)}, None)), tmp_path / "m.ff")
    with pytest.raises(ValueError, match="loop: expected at least one step, but got 0|expected dimension 1 of x to be"):
        fourfold.load(tmp_path / "m.ff")(torch.randn(3, 0, 4), args[1])
