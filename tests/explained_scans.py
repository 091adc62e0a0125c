"""Steps of loops that run as nests and in other ways, and fourfold.explain's report on a scan over a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from fourfold.explaining import Explanation
from fourfold.explaining.data import Scan


def parameter(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(sizes) / 3)


def explained(step: Callable[..., Any], init: Any, xs: Any, **settings: Any) -> tuple[Explanation, Scan]:
    def run(init: Any, xs: Any) -> Any:
        return fourfold.scan(step, init, xs, **settings)

    explanation = fourfold.explain(run, init, xs)
    (scan,) = explanation.scans
    return explanation, scan


def lstm_step(weight: Tensor, recurrent: Tensor) -> Callable[..., Any]:
    def lstm(carry: Any, x: Tensor) -> Any:
        h, c = carry
        i, f, g, o = (x @ weight + h @ recurrent).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h, c), h

    return lstm


def spiking(carry: Any, x: Tensor) -> Any:
    v, i = carry
    i = i + 0.2 * (x - i)
    v = v + 0.1 * (i - v)
    spike = torch.sigmoid(10 * (v - 0.1))
    return (v * (1 - spike), i), spike


def counting(carry: Any, x: Tensor) -> Any:
    total, most, count = carry
    return (total + x, torch.maximum(most, x), count + (x > 0).long()), total * most


def biquad(carry: Any, x: Tensor) -> Any:
    x1, x2, y1, y2 = carry
    y = 0.2 * x + 0.4 * x1 + 0.2 * x2 + 0.5 * y1 - 0.3 * y2
    return (x, x1, y, y1), y


def twice(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h) + x
    return h, (h, h * 2)


def summed_up(h: Tensor, x: Tensor) -> Any:
    h = torch.cumsum(torch.tanh(h) + x, -1) * 0.1
    return h, h
