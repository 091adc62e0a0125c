"""Contiguous copies of tensors in another order in memory, which graphs make by transposing tiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold import _native
from fourfold.cli.timing import pinned_threads

pytestmark = pytest.mark.skipif(_native.module is None, reason="no C++ module for this torch")
ORDERS = ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1), (0, 1, 3, 2))
SIZES = ((1, 3, 64, 40), (2, 16, 17, 33), (3, 9, 8, 64), (1, 40, 1, 130), (4, 8, 31, 5))
COPIES = "aten::copy_"


class Copies(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        permuted = [x.permute(order) for order in ORDERS]
        turned = [each.contiguous() for each in (*permuted, x.expand(3, *x.shape).permute(4, 1, 2, 3, 0))]
        return *turned, *(each.reshape(-1) for each in permuted)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.conv = nn.LSTM(24, 16, bidirectional=True), nn.Conv2d(24, 8, 1)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (24, height, width)."""
        return self.lstm(x.permute(1, 2, 0))[0], self.conv(x.permute(2, 1, 0).contiguous().permute(2, 1, 0)[None])


def saved(model: nn.Module, x: Tensor, path: Path, dims: dict[int, object]) -> object:
    fourfold.save(torch.export.export(model, (x,), dynamic_shapes=(dims,)), path)
    return fourfold.load(path)


def names_of(loaded: object, x: Tensor) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loaded(x)
    return [event.name for event in profile.events()]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> object:
    dims = {k: torch.export.Dim(f"s{k}", min=1, max=256) for k in range(4)}
    return saved(Copies(), torch.zeros(2, 16, 17, 33), tmp_path_factory.mktemp("models") / "copies.ff", dims)


@pytest.mark.parametrize("sizes", SIZES)
def test_values(copies, sizes: tuple[int, ...]) -> None:
    for x in (torch.randn(sizes), torch.randn([size + 3 for size in sizes])[:-3, 1:-2, 3:, 2:-1]):
        for _ in range(5):  # the last are steady calls
            for ours, theirs in zip(copies(x), Copies()(x), strict=True):
                assert torch.equal(ours, theirs) and ours.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.complex64, torch.complex128])
def test_elements_of_other_sizes(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.randn(2, 16, 17, 33).mul(50).to(dtype)
    loaded = saved(Copies(), x, tmp_path / "copies.ff", {0: torch.export.Dim("batch")})
    for given in (x, x.conj()):
        for ours, theirs in zip(loaded(given), Copies()(given), strict=True):
            assert torch.equal(ours, theirs)


def test_threads(copies) -> None:
    x = torch.randn(2, 16, 200, 170)
    with pinned_threads(4):
        assert all(map(torch.equal, copies(x), Copies()(x)))


def test_torch_copies_short_dimensions_alone(copies) -> None:
    assert names_of(copies, torch.randn(8, 16, 20, 33)).count(COPIES) == 1


def test_layers(tmp_path: Path) -> None:
    """torch copies neither a layer's strided input in each direction, nor a convolution's."""
    torch.set_num_threads(2)  # with one, torch's convolution copies its bias
    model, x = Layers(), torch.randn(24, 40, 50)
    optimized = Layers()
    optimized.load_state_dict(model.state_dict())
    fourfold.optimize(optimized)
    loaded = saved(optimized, x, tmp_path / "layers.ff", {1: torch.export.Dim("height", min=2, max=256)})
    for _ in range(5):
        for ours, theirs in zip(loaded(x), model(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # sums in another order
    assert COPIES not in names_of(loaded, x)
