"""Memory layouts for the case table's tensors: each makes a copy of a tensor with the same values in another layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from machine import devices
from op_cases import SIMULATED, Case, has_dtype
from simulated import elementwise_operators


def strided(value: Any) -> Any:
    """The same tensor in memory that is neither contiguous nor dense: every other element of every other row."""
    if isinstance(value, list):
        return [strided(element) for element in value]
    if not isinstance(value, Tensor):
        return value
    room = value.new_zeros([2 * size + 1 for size in reversed(value.shape)])
    view = room[tuple(slice(1, None, 2) for _ in value.shape)].permute(list(reversed(range(value.dim()))))
    return view.copy_(value)


def shifted(value: Any, by: int = 1) -> Any:
    """The same tensor, contiguous, `by` elements after an aligned address."""
    if isinstance(value, list):
        return [shifted(element, by) for element in value]
    if not isinstance(value, Tensor):
        return value
    return value.new_empty(value.numel() + by)[by:].view(value.shape).copy_(value)


def shifted_one_by_one(args: tuple) -> Iterator[tuple]:
    """The arguments with a single tensor misaligned, each in turn: finds kernels that check one address and load from
    another."""
    for place, value in enumerate(args):
        if isinstance(value, list):
            choices = [(k, e) for k, e in enumerate(value) if isinstance(e, Tensor)]
        else:
            choices = [(None, value)] if isinstance(value, Tensor) else []
        for k, tensor in choices:
            for by in (1, 2, 3):
                moved = shifted(tensor, by)
                replaced = moved if k is None else [*value[:k], moved, *value[k + 1 :]]
                yield (*args[:place], replaced, *args[place + 1 :])


def far_apart(value: Tensor) -> Tensor:
    """The same tensor with more than 2^32 elements between its rows; these are never touched, so they use no memory."""
    row = value[0].numel()
    stride = 2**32 + row
    room = value.new_empty((len(value) - 1) * stride + row)
    return room.as_strided(value.shape, (stride, *value[0].contiguous().stride())).copy_(value)


# Small cases that together use all GPU kernels with vector loads.
SHIFTED_NAMES = ("vector", "vectors", "short", "bias-row", "tutorial", "relu")


LAYOUTS = {"contiguous": lambda value: value, "strided": strided, "shifted": shifted}


def laid_out(
    pairs: list[tuple[Case, torch.dtype]], layouts: Iterable[str] = LAYOUTS
) -> list[tuple[Case, torch.dtype, str, str]]:
    """Each case and dtype in each layout on each device, except combinations that can't fail alone: operators that are
    not elementwise handle layouts before dtypes, and only the dtype's size matters there; a CPU, whose vectors need not
    be aligned, only distinguishes 16 bits from more. In a simulator one dtype is strided: the same host code runs on
    CPUs. On a real GPU nothing is left out."""
    sizes = dict.fromkeys(LAYOUTS, SIZES if SIMULATED else SIZES_OF_CPUS)
    if SIMULATED:
        sizes["strided"] = (torch.float32,)
    return [
        (case, dtype, layout, device)
        for device in devices()
        for case, dtype in pairs
        for layout in layouts
        if device != "cpu" or layout == "contiguous" or case.op in ELEMENTWISE or dtype in sizes[layout]
        if has_dtype(dtype, device)
    ]


ELEMENTWISE = elementwise_operators()  # their kernels, one per dtype, support strides
SIZES_OF_CPUS = (torch.float32, torch.bfloat16)
SIZES = (torch.float64, *SIZES_OF_CPUS)
