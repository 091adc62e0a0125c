"""Functions of large activations and of masked rows, most of whose exponentials are next to nothing: processors may
take a hundred times as long where numbers fall below the normal ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from benchmarks.functions import Function, gelu_tanh, width

ELEMENTS = 4 * 10**5
ORDINARY = "fourfold, ordinary numbers"  # the same function of numbers of spread 1, with a mask of zeros


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """As attention adds its mask."""
    return torch.softmax(x + mask, -1)


def filled_softmax(x: Tensor, hidden: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(hidden, -torch.inf), -1)


def draw_spread(spread: float, count: int, generator: Generator) -> tuple[Tensor]:
    return (spread * torch.randn(count, generator=generator),)


def draw_hidden(share: float, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Rows of which a share is hidden, none of them whole."""
    shape = count // width(count), width(count)
    hidden = torch.rand(shape, generator=generator) < share
    hidden[:, 0] = False
    return torch.randn(shape, generator=generator), hidden


def draw_mask(share: float, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """As draw_hidden, by what Hugging Face adds."""
    x, hidden = draw_hidden(share, count, generator)
    return x, torch.zeros_like(x).masked_fill(hidden, torch.finfo(x.dtype).min)


# By name: what is called, how it is drawn for a share or a spread, that of ordinary numbers, and the others.
DRAWN: dict[str, tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, ...]], float, tuple[float, ...]]] = {
    "gelu": (F.gelu, draw_spread, 1, (5, 12, 40, 100)),
    "gelu_tanh": (gelu_tanh, draw_spread, 1, (12, 100)),
    "silu": (F.silu, draw_spread, 1, (12, 40, 100)),
    "sigmoid": (torch.sigmoid, draw_spread, 1, (12, 40, 100)),
    "softmax with a mask of finfo.min": (masked_softmax, draw_mask, 0, (0.4,)),
    "softmax with a mask of -inf": (filled_softmax, draw_hidden, 0, (0.4,)),
}


def function(name: str, size: float) -> Function:
    call, draw, _, _ = DRAWN[name]
    words = f"of which {size:.0%} is masked" if draw is not draw_spread else f"of spread {size:g}"
    return Function(f"{name}, {words}", call, partial(draw, size), 1)


FUNCTIONS = {
    made.name: made for name, (_, _, _, sizes) in DRAWN.items() for made in (function(name, size) for size in sizes)
}


def ordinary(name: str) -> Function:
    """Of one of FUNCTIONS that of ordinary numbers."""
    kind = name.split(", ")[0]
    return function(kind, DRAWN[kind][2])
