"""examples/models/kraken_segmentation, against kraken's own layers with the weights as kraken reads them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example
from published import large

Page = Callable[[Tensor], Tensor]
# kraken passes channels-last images to torch's GroupNorm, which then loses precision: the heatmap's error against
# float64 is 4e-5, and with contiguous images 2e-6.
CONTIGUOUS, AS_KRAKEN = 1e-5, 1e-4


def drawn(height: int, lines: int) -> Tensor:
    from benchmarks.published.kraken_segmentation import drawn

    return drawn(height, lines)


@pytest.fixture(scope="module")
def package() -> Callable[..., Tensor]:
    """kraken's layers, as its VGSL specification lists them. The heatmap is computed as in kraken's inference."""
    coremltools = ModuleType("coremltools")  # alone: it imports packages that kraken's layers don't need
    coremltools.__path__ = [str(large("coremltools", "google", "PIL"))]
    spec = importlib.util.spec_from_file_location("kraken_layers", large("kraken") / "lib/vgsl/layers.py")
    assert spec is not None and spec.loader is not None
    layers: Any = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, coremltools=coremltools):
        spec.loader.exec_module(layers)
        proto = importlib.import_module("coremltools.proto.Model_pb2")
    file = proto.Model.FromString((large("kraken") / "blla.mlmodel").read_bytes())
    channels, *blocks = file.description.metadata.userDefined["vgsl"].strip("[]").split()
    size = int(channels.split(",")[-1])
    modules: list[Any] = []
    for block in blocks:
        matched = re.fullmatch(r"(\D+)\{(\w+)\}([\dl,]+)", block)
        assert matched is not None, block
        kind, name, numbers = matched.groups()
        n = [int(number) for number in re.findall(r"\d+", numbers)]
        if kind == "Gn":
            modules.append(layers.GroupNorm(size, n[0]))
        elif kind in ("Lbx", "Lby"):
            modules.append(layers.TransposedSummarizingRNN(size, n[0], "b", kind == "Lby", summarize=False))
            size = modules[-1].output_size
        elif kind == "Cr":
            modules.append(layers.ActConv2D(size, n[2], n[:2], n[3:] or [1, 1], "r"))
            size = n[2]
        else:
            assert (kind, numbers) == ("O", "2l4")
            modules.append(layers.ActConv2D(size, n[1], [1, 1], [1, 1], "s"))
        modules[-1].deserialize(name, file)

    def heatmap(page: Tensor, contiguous: bool = True) -> Tensor:
        x = page
        with torch.no_grad():
            for module in modules:
                x, _ = module(x.contiguous() if contiguous else x, None)
            return torch.sigmoid(torch.nn.functional.interpolate(x, size=page.shape[2:]))

    return heatmap


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, package: Callable[..., Tensor]) -> Page:
    path = tmp_path_factory.mktemp("kraken") / "blla.ff"
    example("kraken_segmentation").save(str(path))
    return fourfold.load(path)


@pytest.mark.parametrize(("height", "lines"), [(600, 12), (301, 4)])
def test_a_page(package: Callable[..., Tensor], loaded: Page, height: int, lines: int) -> None:
    page = drawn(height, lines)
    got = loaded(page)
    for contiguous, error in ((True, CONTIGUOUS), (False, AS_KRAKEN)):
        expected = package(page, contiguous)
        torch.testing.assert_close(got, expected, rtol=0, atol=error)
        assert torch.equal(got > 0.5, expected > 0.5)
    for place in (0.3, 0.5):
        baselines = got[0, 2, :, int(place * page.shape[3])] > 0.3
        assert (baselines[1:] & ~baselines[:-1]).sum() == lines


@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 160), (203, 46)])
def test_other_sizes(package: Callable[..., Tensor], loaded: Page, height: int, width: int) -> None:
    page = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(height))
    torch.testing.assert_close(loaded(page), package(page), rtol=0, atol=CONTIGUOUS)


def test_errors(loaded: Page) -> None:
    with pytest.raises(ValueError, match="expected dimension 2 of page to be between 32 and 4096, but got 31"):
        loaded(torch.zeros(1, 3, 31, 64))
