"""A step of a causal transformer, whose ring of keys and values is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.published.case import LOADED, Case, example, over, ways_of
from benchmarks.targets import INDUCTOR, PLAIN

PACKAGES: tuple[str, ...] = ()
STEPS = 64  # different arguments, again and again


def plain() -> nn.Module:
    return example("causal_transformer").CausalTransformer()


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    transformer, path = example("causal_transformer"), folder / "transformer.ff"
    transformer.save(str(path))
    model, x = plain(), torch.randn(STEPS, 1, transformer.WIDTH)
    loaded = fourfold.load(path).stream()
    steps = ways_of(model, loaded)
    if not quick:
        steps[INDUCTOR] = torch.compile(model, dynamic=False)
    steps = {name: step if name == LOADED else with_rings(step, transformer) for name, step in steps.items()}
    for step in steps.values():
        for i in range(transformer.RING):
            step(x[i % STEPS])
    yield Case("causal transformer, a step", {name: over(step, x) for name, step in steps.items()}, PLAIN, unit="step")


def with_rings(call: Callable[..., Any], transformer: Any) -> Callable[[Tensor], Tensor]:
    """Rings and position are kept from call to call."""
    size = 1, transformer.HEADS, transformer.RING, transformer.SIZE
    keys, values = ([torch.zeros(size) for _ in range(transformer.LAYERS)] for _ in range(2))
    position = torch.zeros(1, dtype=torch.long)

    def step(x: Tensor) -> Tensor:
        nonlocal position
        y, position = call(x, position, keys, values)
        return y

    return step
