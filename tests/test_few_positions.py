"""Convolutions with few positions, which compiled graphs and saved models compute as matrix products."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import fourfold
import seeds
from compiled import assert_near, compiled
from operator_events import events
from saved_models import reloaded, rewritten


def drawn(rng: random.Random) -> tuple[nn.Module, Tensor]:
    dims = rng.choice((1, 1, 2, 2, 3))
    transposed = rng.random() < 0.3
    kernel = [rng.choice((1, 2, 3, 4) if dims > 1 else (1, 2, 3, 5, 16)) for _ in range(dims)]
    inputs, outputs, groups = rng.choice((1, 2, 6, 33)), rng.choice((1, 2, 8, 31)), 1
    kind = rng.choice(("dense", "dense", "groups", "depthwise"))
    if kind == "groups":
        groups, inputs, outputs = 3, 3 * inputs, 3 * outputs
    elif kind == "depthwise":
        groups, outputs = inputs, inputs * rng.choice((1, 2))
    stride = [rng.choice((1, 1, 2, 3)) for _ in range(dims)]
    dilation = [rng.choice((1, 1, 2)) for _ in range(dims)]
    padding = [rng.choice((0, 0, 1, 3)) for _ in range(dims)]
    around = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    image = [rng.choice((1, 2, 5)) if transposed else size + rng.choice((0, 1, 4)) for size in around]
    settings = {
        "stride": stride,
        "dilation": dilation,
        "padding": padding,
        "groups": groups,
        "bias": rng.random() < 0.6,
    }
    if transposed:
        settings["output_padding"] = [rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)]
    name = f"Conv{'Transpose' if transposed else ''}{dims}d"
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16))
    x = torch.randn(rng.choice((1, 1, 2, 5)), *image, inputs, dtype=dtype).movedim(-1, 1)
    if rng.random() < 0.6:
        x = x.contiguous()
    elif rng.random() < 0.5:
        x = torch.randn(*x.shape[:-1], 2 * x.shape[-1], dtype=dtype)[..., ::2]
    module = getattr(nn, name)(inputs, outputs, kernel, **settings).to(dtype).eval()
    return module, x


def is_possible(module: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return module(x).numel() > 0
    except RuntimeError:
        return False


def test_random_convolutions(tmp_path: Path) -> None:
    products = 0
    for seed in seeds.of_this_run(least=8):
        torch.manual_seed(seed)
        module, x = drawn(random.Random(seed))
        if not is_possible(module, x):
            continue
        with torch.no_grad():
            expected = module(x)
            loaded = reloaded(module, (x,), tmp_path)
            for call in (loaded, compiled(module)):
                got = call(x)
                assert_near(got, expected)
                assert x.dim() == 3 or got.stride() == expected.stride()
            for _ in range(4):  # the last with windows that are known
                other = torch.randn_like(x)
                assert_near(loaded(other), module(other))
            products += "aten::convolution" not in events(loaded, x)
    assert products > 0


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("transposed", [False, True])
def test_groups_are_apart(tmp_path: Path, number: float, transposed: bool) -> None:
    """What is not finite in one group stays there."""
    module = (nn.ConvTranspose1d if transposed else nn.Conv1d)(8, 8, 3, groups=2).eval()
    x = torch.randn(1, 8, 9)
    x[0, 1, 4] = number
    with torch.no_grad():
        expected = module(x)
        assert expected[:, 4:].isfinite().all() and not expected[:, :4].isfinite().all()
        for call in (reloaded(module, (x,), tmp_path), compiled(module)):
            for _ in range(5):
                torch.testing.assert_close(call(x), expected, equal_nan=True)


def test_a_stream_runs_no_convolution(tmp_path: Path) -> None:
    """Frames of an audio model: all of torch's convolutions are replaced, with any of their settings."""
    model = nn.Sequential(
        nn.Conv1d(1, 64, 128, stride=64),
        nn.ReLU(),
        nn.Conv1d(64, 32, 3, padding=1, dilation=2),
        nn.ConvTranspose1d(32, 8, 4, stride=2),
        nn.Conv1d(8, 8, 3, groups=8),
    ).eval()
    x = torch.randn(1, 1, 256)
    with torch.no_grad():
        for call in (reloaded(model, (x,), tmp_path), compiled(model)):
            assert not {"aten::convolution", "aten::_convolution"} & set(events(call, x))
            assert_near(call(x), model(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stream_of_16_bits_runs_no_convolution(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Sequential(
        nn.Conv1d(1, 64, 128, stride=64), nn.ReLU(), nn.Conv1d(64, 32, 3, padding=1), nn.Conv1d(32, 8, 1, groups=2)
    )
    model, x = model.to(dtype).eval(), torch.randn(1, 1, 256, dtype=dtype)
    with torch.no_grad():
        loaded = reloaded(model, (x,), tmp_path)
        for _ in range(6):
            other = torch.randn_like(x)
            assert_near(loaded(other), model(other))
        assert not {"aten::convolution", "aten::_convolution"} & set(events(loaded, x))


def test_gradients_are_torchs() -> None:
    model = nn.Sequential(nn.Conv1d(3, 16, 3), nn.Tanh(), nn.Conv1d(16, 2, 2))
    x = torch.randn(1, 3, 7, requires_grad=True)
    expected = torch.autograd.grad(model(x).square().sum(), (x, *model.parameters()))
    got = torch.autograd.grad(compiled(model)(x).square().sum(), (x, *model.parameters()))
    for mine, theirs in zip(got, expected, strict=True):
        assert_near(mine, theirs)


def test_any_number_of_positions(tmp_path: Path) -> None:
    module = nn.Conv1d(4, 8, 3, padding=1).eval()
    length = torch.export.Dim("length", min=1, max=4096)
    loaded = reloaded(module, (torch.randn(1, 4, 5),), tmp_path, ({2: length},))
    with torch.no_grad():
        for size in (1, 2, 31, 256, 257, 2000):
            x = torch.randn(1, 4, size)
            assert_near(loaded(x), module(x))
    assert "aten::convolution" in events(loaded, torch.randn(1, 4, 2000))


HUGE = 2**63 - 1
HOSTILE: list[dict[str, Any]] = [
    {"padding": [HUGE], "dilation": [4]},
    {"padding": [2**63 - 2]},
    {"padding": [3], "dilation": [HUGE]},
    {"padding": [HUGE], "dilation": [4], "transposed": True},
    {"stride": [2**62], "transposed": True},
    {"stride": [-1]},
    {"padding": [-1]},
    {"output_padding": [-1]},
    {"output_padding": [HUGE], "transposed": True},
    {"groups": HUGE},
]


@pytest.mark.parametrize("arguments", HOSTILE, ids=str)
def test_a_file_with_other_arguments_gets_torchs_answer(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Sizes that overflow: the call computes what torch does, or raises, and reads no other memory."""
    module, x = nn.Conv1d(2, 2, 3, padding=1).eval(), torch.randn(1, 2, 6)
    reloaded(module, (x,), tmp_path)
    given = {"stride": [1], "padding": [1], "dilation": [1], "transposed": False, "output_padding": [0], "groups": 1}

    def change(header: dict[str, Any], inner: dict[str, Any]) -> None:
        (step,) = [step for step in inner["graph"]["steps"] if step.get("operator") == "aten::convolution"]
        step["arguments"] |= arguments

    loaded = fourfold.load(rewritten(tmp_path / "model.ff", tmp_path / "other.ff", change))
    try:
        with torch.no_grad():
            expected = torch.ops.aten.convolution(x, module.weight, module.bias, *(given | arguments).values())
    except RuntimeError:
        with pytest.raises(RuntimeError):
            loaded(x)
    else:
        assert_near(loaded(x), expected)


def test_modes_and_transforms_see_torchs_operators(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)).eval(), torch.randn(1, 2, 6)
    loaded = reloaded(model, (x,), tmp_path)
    with torch.no_grad():
        assert_near(torch.func.functionalize(loaded)(x), model(x))
        with FlopCounterMode(display=False) as counter:
            loaded(x)
        assert counter.get_total_flops() == 2 * (4 * 3 * 2 * 3 + 12 * 2)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert loaded(x).shape == (1, 2)
        assert_near(make_fx(loaded)(x)(x), model(x))
