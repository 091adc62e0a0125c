"""Every formula with torch's equivalent, and calls of both with values at the ends of ranges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fourfold
from fourfold import reference

# Values are rounded once, and gradients are computed from rounded values. Relative, because the largest exceed any
# absolute bound. bfloat16 keeps n of a GRU with 8 bits, and then 1 - n² has fewer.
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2**-3, torch.float16: 2**-7}
# For cancelling terms near 1, such as 1 - σ.
ABSOLUTE = {torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-8}


def special(dtype: torch.dtype) -> Tensor:
    """Signed zeros, subnormal numbers, where exp overflows or underflows, the largest number, infinities and NaN."""
    info = torch.finfo(dtype)
    values = [0.0, info.tiny / 4, info.tiny, 1e-3, 0.5, 1, 20, 87.3, 88, 88.7, 89, 104, 708, 709.7, 710, 746, 1e4, 1e38]
    positive = torch.tensor([*values, info.max, float("inf")], dtype=torch.float64)
    return torch.cat([positive, -positive, torch.tensor([float("nan")])]).to(dtype)


@dataclass(frozen=True)
class Formula:
    """``function`` is fourfold's and ``own`` torch's, with the same arguments. ``calls`` gives the arguments of each
    call for a row of values, those that require a gradient first; their rows are independent."""

    op: str
    name: str
    function: Callable[..., Any]
    own: Callable[..., Any]
    calls: Callable[[Tensor], Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]]

    @property
    def id(self) -> str:
        return f"{self.op}-{self.name}" if self.name else self.op


def _each(values: Tensor) -> Iterator[tuple]:
    yield (values,), ()


def _pairs(values: Tensor) -> Iterator[tuple]:
    yield (values.repeat_interleave(len(values)), values.repeat(len(values))), ()


def _activation(name: str, own: Callable[[Tensor], Tensor]) -> Formula:
    def network(x: Tensor) -> Tensor:
        one = x.new_ones(1, 1)
        return fourfold.mlp_layers(x.unsqueeze(1), [one, one], None, name).squeeze(1)

    return Formula("mlp_layers", name, network, own, _each)


def _first(values: Tensor) -> Tensor:
    """Rows of two elements, the second zero, because bfloat16 is multiplied in pairs."""
    return torch.stack([values, torch.zeros_like(values)], dim=1)


def _cells(gates: int, states: int) -> Callable[[Tensor], Iterator[tuple]]:
    """Calls of a cell with two units, whose gates get x and h with either sign; they include every pair of x, h and
    c."""

    def calls(values: Tensor) -> Iterator[tuple]:
        one, other = (_first(v) for v in (values.repeat_interleave(len(values)), values.repeat(len(values))))
        zero = torch.zeros_like(one)
        given = [(one, other), (zero, other)] if states == 1 else [(one, zero, other), (zero, one, other)]
        for signs in itertools.product((1.0, -1.0), repeat=gates):
            by_x, by_h = (values.new_tensor(s).repeat_interleave(2) for s in (signs, signs[::-1]))
            for tensors in given:
                yield tensors, (_first(by_x), _first(by_h))

    return calls


def _lltm(function: Callable[..., tuple]) -> Callable[..., tuple]:
    def cell(x: Tensor, h: Tensor, c: Tensor, by_x: Tensor, by_h: Tensor) -> tuple:
        return function(x, h, c, torch.cat([by_h, by_x], dim=1))

    return cell


def _one_step(op: str) -> Callable[..., tuple]:
    """A sequence's operator as a cell."""

    def step(x: Tensor, *rest: Tensor) -> tuple:
        return function(x.unsqueeze(0), *rest)[1]

    function = getattr(fourfold, op)
    return step


def _lltm_sequence(x: Tensor, h: Tensor, c: Tensor, weights: Tensor) -> tuple:
    return fourfold.lltm(x.unsqueeze(0), h, c, weights)[1]


def _lstm_cell(x: Tensor, h: Tensor, c: Tensor, by_x: Tensor, by_h: Tensor) -> tuple:
    return torch.lstm_cell(x, (h, c), by_x, by_h)


FORMULAS = [
    Formula("softshrink", "", fourfold.softshrink, functional.softshrink, _each),
    Formula("axpby", "", lambda x, y: fourfold.axpby(x, y, 0.5, -1), lambda x, y: 0.5 * x - y, _pairs),
    _activation("relu", torch.relu),
    _activation("tanh", torch.tanh),
    _activation("gelu", functional.gelu),
    _activation("silu", functional.silu),
    Formula("lltm_cell", "", _lltm(fourfold.lltm_cell), _lltm(reference.lltm_cell), _cells(3, 2)),
    Formula("lltm", "", _lltm(_lltm_sequence), _lltm(reference.lltm_cell), _cells(3, 2)),
    Formula("lstm", "", _one_step("lstm"), _lstm_cell, _cells(4, 2)),
    Formula("gru", "", _one_step("gru"), torch.gru_cell, _cells(3, 1)),
]
