"""Late decompositions of the positions of extremes: ``argmax``, ``argmin``, and ``max`` and ``min`` along a dimension.

The position is the least among those whose element is the extreme. torch's kernels for CPUs take elements one by one:
in loop nests, of 2^13 elements on and along at most 2^16, the pieces are 1.1 to 160 times as fast, of float32,
bfloat16 and int64, along the innermost dimension and others. The interpreter is slower than torch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.compiler.analysis.views import has_hints, hint

aten = torch.ops.aten
COMPARED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
FEWEST = 2**13  # elements: of fewer, torch's kernel takes no longer than a call
LONGEST = 2**16  # along the dimension: torch's kernels of values are as fast at 2^17, of int64 faster
NO_POSITION = 2**31 - 1


def extremes(x: Tensor, dim: int, keepdim: bool = False, *, of: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """The values and the positions, of equal numbers the first, and of a row with NaN its first NaN, as torch's."""
    if not suits(x, dim):
        return NotImplemented
    values = of(x, [dim], keepdim=True)
    found = x == values
    if x.is_floating_point():
        found = found | (x != x)
    places = torch.arange(x.shape[dim], dtype=torch.int32, device=x.device)
    places = places.view([-1 if k == dim % x.dim() else 1 for k in range(x.dim())])
    positions = torch.where(found, places, NO_POSITION).amin([dim], keepdim=keepdim).to(torch.int64)
    return values if keepdim else values.squeeze(dim), positions


def suits(x: Tensor, dim: int) -> bool:
    if x.device.type != "cpu" or x.dtype not in COMPARED or x.dim() == 0 or not has_hints(x):
        return False
    return hint(x.numel()) >= FEWEST and isinstance(x.shape[dim], int) and x.shape[dim] <= LONGEST


def position(x: Tensor, dim: int | None = None, keepdim: bool = False, *, of: Callable[..., Tensor]) -> object:
    return NotImplemented if dim is None or not suits(x, dim) else extremes(x, dim, keepdim, of=of)[1]


POSITIONS: dict[object, Callable[..., object]] = {
    aten.argmax.default: functools.partial(position, of=torch.amax),
    aten.argmin.default: functools.partial(position, of=torch.amin),
    aten.max.dim: functools.partial(extremes, of=torch.amax),
    aten.min.dim: functools.partial(extremes, of=torch.amin),
}
