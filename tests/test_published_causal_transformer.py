"""examples/models/causal_transformer: steps with rings, against the same layers on a whole sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example

Files = Callable[[int, int], tuple[Any, Path]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The module with so many layers and places in the ring, and a file that it saved."""

    @functools.cache
    def saved(layers: int, ring: int) -> tuple[Any, Path]:
        module, path = example("causal_transformer"), tmp_path_factory.mktemp("models") / "transformer.ff"
        module.LAYERS, module.RING = layers, ring
        module.save(str(path))
        return module, path

    return saved


@torch.no_grad()
def whole(module: Any, x: Tensor, window: int) -> Tensor:
    """Of a sequence, (steps, width): each position attends to a window that ends with it."""
    model, place = module.CausalTransformer(), torch.arange(len(x))
    distance = place.unsqueeze(1) - place
    mask = (distance >= 0) & (distance < window)
    for layer in model.layers:
        q, k, v = layer.attention(x, place.view(-1, 1, 1, 1) * model.frequencies)
        x = layer(x, *(each.transpose(0, 1) for each in (q, k, v)), mask)
    return model.norm(x)


def sequence(steps: int, seed: int) -> Tensor:
    return torch.randn(steps, 512, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("layers", "ring", "steps"), [(2, 20, 50)])
def test_steps_are_the_sequence(files: Files, layers: int, ring: int, steps: int) -> None:
    (module, path), x = files(layers, ring), sequence(steps, 1)
    expected, stream = whole(module, x, ring), fourfold.load(path).stream()
    got = torch.cat([stream(each) for each in x.unsqueeze(1)])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert stream.state["place"].tolist() == [steps]
    without_limit = whole(module, x, window=steps)
    torch.testing.assert_close(without_limit[:ring], got[:ring], rtol=0, atol=1e-5)
    assert (without_limit[-1] - got[-1]).abs().max() > 1e-4


def test_streams_at_different_places(files: Files) -> None:
    """The second of three begins again."""
    module, path = files(2, 20)
    x = torch.stack([sequence(60, seed) for seed in range(3)])
    expected = torch.stack([whole(module, each, 20) for each in x])
    stream, rows, begin = fourfold.load(path).stream(), torch.arange(3), 27
    for step in range(60):
        if step == begin:
            stream.reset(rows == 1)
        places = torch.where((rows == 1) & (step >= begin), step - begin, step)
        torch.testing.assert_close(stream(x[rows, places]), expected[rows, places], rtol=0, atol=1e-5)
