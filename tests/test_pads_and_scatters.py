"""Pads of several dimensions, rolls, and writes of slices and rows into new values: concatenations that programs
write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

import fourfold
from compiled import assert_same, compiled, draw, results_of
from fourfold import _native
from fourfold.compiler.analysis import parts
from nests import GENERATORS
from operator_events import events

pytestmark = pytest.mark.usefixtures("strict")
needs_plans = pytest.mark.skipif(_native.module is None, reason="Python runs the graphs, and concatenates")
x, y = draw(12, 20), draw(12, 20, seed=1)


@pytest.fixture(autouse=True)
def small_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of small concatenations of unequal parts are computed by parts."""
    monkeypatch.setattr(parts, "FEWEST_BYTES", 0)


def padded(x: Tensor, y: Tensor) -> Tensor:
    return F.pad(x * y, (1, 2, 2, 1)) * 2


def padded_in_turn(x: Tensor, y: Tensor) -> Tensor:
    """With two numbers, one of which another operator reads too."""
    inner = F.pad((x * y).view(3, 4, 20), (2, -1, 0, 1, 1, 0), value=0.5)
    return F.pad(inner.sin(), (1, 1), value=-1) + 1


def padded_within(x: Tensor, y: Tensor) -> Tensor:
    """Three dimensions: of the constants only the innermost ones are another number."""
    inner = F.pad((x * y).view(3, 4, 20), (1, 1), value=0.5)
    return F.pad(F.pad(inner, (0, 0, 1, 1)), (0, 0, 0, 0, 1, 1)) + 1


def scattered(x: Tensor, y: Tensor) -> Tensor:
    first = torch.slice_scatter(x, y[:, 2:5] * 0.5, 1, 2, 5) + 1
    return torch.select_scatter(first, y.sum(1), 1, -1).tanh()


def written(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:, 0], out[:, 1:] = y[:, 0] * 2, x[:, 1:] + y[:, :-1]
    return out


def written_in_rows(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(4, *x.shape)
    out[0], out[2], out[-1] = x * y, x.exp(), 3
    return out


def written_twice(x: Tensor, y: Tensor) -> Tensor:
    """The second write covers a part of the first, and the third all of the second."""
    out = x.clone()
    out[2:8] = y[2:8] * 2
    out[5:10] = x[5:10].exp()
    out[5:10] = y[:5].sin()
    return out + 1


def written_and_read(x: Tensor, y: Tensor) -> Tensor:
    """Between the writes, so that they are not one chain."""
    out = torch.zeros_like(x)
    out[0] = x[0] * y[0]
    for row in (1, 2, 3):
        out[row] = out[row - 1] * 0.5 + x[row]
    return out


def rolled(x: Tensor, y: Tensor) -> Tensor:
    """Rolls that join different parts, of a value that is also read whole."""
    both = x * y
    return (both - 0.5 * (both.roll(1, -1) + both.roll(-1, -1))).sin()


def rolled_in_planes(x: Tensor, y: Tensor) -> Tensor:
    """Along two dimensions; gelu is computed once, and its slices are read from memory."""
    both = F.gelu(x) + y
    return both.roll(1, 0) + both.roll(-1, 0) + both.roll(1, 1) + both.roll(-2, 1) - 4 * both


def rolled_and_padded(x: Tensor, y: Tensor) -> Tensor:
    """A roll's parts are cut where the constants of a pad end."""
    return F.pad(x[:, 1:-1] * y[:, 1:-1], (1, 1), value=0.5).cos() * x.roll(3, -1) + F.pad(y[:, :-1], (1, 0))


CASES = (padded, padded_in_turn, padded_within, scattered, written, written_in_rows, written_twice, written_and_read)
CASES += (rolled, rolled_in_planes, rolled_and_padded)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("fewest", [0, 1 << 16])
@pytest.mark.parametrize("function", CASES)
def test_results_and_gradients_are_eagers(
    function: Callable, fewest: int, generator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "FEWEST_BYTES", fewest)
    call = compiled(function, options={"generator": generator})
    for _ in range(2):
        assert_same(results_of(call, (x, y)), results_of(function, (x, y)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", CASES)
def test_other_dtypes(function: Callable, dtype: torch.dtype) -> None:
    own = x.detach().to(dtype), y.detach().to(dtype)
    tolerance = {} if dtype is torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    assert_same(results_of(compiled(function), own), results_of(function, own), **tolerance)


@pytest.mark.parametrize("function", [padded, scattered, written, written_in_rows, rolled])
def test_any_sizes(function: Callable) -> None:
    call = compiled(function, dynamic=True)
    for rows in (12, 9, 3):
        own = draw(rows, 20), draw(rows, 20, seed=1)
        assert_same(results_of(call, own), results_of(function, own))


@pytest.mark.parametrize("function", CASES)
def test_tangents_are_eagers(function: Callable) -> None:
    """torch's operators write them into the parts."""
    call, tangents = compiled(function), []
    for each in (function, call, call):
        with forward_ad.dual_level():
            own = forward_ad.make_dual(x.detach(), y.detach().cos())
            tangents.append(forward_ad.unpack_dual(each(own, y.detach())).tangent)
    for tangent in tangents[1:]:
        torch.testing.assert_close(tangent, tangents[0])


@pytest.mark.parametrize("function", CASES)
def test_models_in_files(function: Callable, tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return function(x, y)

    own = x.detach(), y.detach()
    fourfold.save(torch.export.export(Model(), own), tmp_path / "model.fourfold")
    loaded = fourfold.load(tmp_path / "model.fourfold")
    for _ in range(3):
        torch.testing.assert_close(loaded(*own), function(*own))


@needs_plans
@pytest.mark.parametrize("generator", GENERATORS)
def test_constants_fill_their_parts(generator: str) -> None:
    """Of pads of several dimensions the whole is filled first; and no scatter runs."""
    own, options = (x.detach(), y.detach()), {"generator": generator}
    ran = events(compiled(padded, options=options), *own, memory=True)
    assert ran.count("aten::fill_") == 1 and ran.count("[memory]") == 1
    for function in (padded, padded_in_turn, scattered, written, written_twice, rolled, rolled_and_padded):
        ran = events(compiled(function, options=options), *own)
        assert not {"aten::slice_scatter", "aten::select_scatter", "aten::constant_pad_nd", "aten::cat"} & set(ran)
