"""Conversions, copies, and tensors that hold one number."""

from __future__ import annotations

import torch

from fourfold.compiler.lowering.call import CONSTANT, Argument, Call, Number, Operand, pointwise
from fourfold.compiler.dtypes import INT64, ROUNDED
from fourfold.compiler.ir import Value

aten, prims = torch.ops.aten, torch.ops.prims


def converted(call: Call, x: Argument) -> Value:
    """A user's conversion rounds, even within a program."""
    given = x.dtype if isinstance(x, Operand) else None
    value = call(x)
    if given in ROUNDED and given != call.dtype and (call.dtype in ROUNDED or not call.dtype.is_floating_point):
        value = call(call.rounded(x, given))
    rounded = ROUNDED.get(call.dtype)
    return call.op(rounded, value) if rounded and given != call.dtype else value


@pointwise(prims.convert_element_type.default)
def convert_element_type(call: Call, x: Argument, dtype: torch.dtype) -> Value:
    if call.dtype == torch.uint8 and isinstance(x, Operand) and x.dtype.is_floating_point:
        return call(call(call.rounded(x, x.dtype), INT64))
    return converted(call, x)


@pointwise(aten._to_copy.default)
def to_copy(call: Call, x: Argument, **settings: object) -> Value:
    return convert_element_type(call, x, call.dtype)


@pointwise(aten.copy.default)
def copy(call: Call, x: Argument, source: Argument, non_blocking: bool = False) -> Value:
    return convert_element_type(call, source, call.dtype)


@pointwise(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def copied(call: Call, x: Argument, memory_format: object = None) -> Value:
    return call(x)


def _second(like: object, value: Number, **settings: object) -> Number:
    return value


def _zero(*arguments: object, **settings: object) -> Number:
    return 0


def _one(*arguments: object, **settings: object) -> Number:
    return 1


# A program writes them where they are needed.
CONSTANT |= {
    aten.full.default: _second,
    aten.full_like.default: _second,
    aten.fill.Scalar: _second,
    aten.new_full.default: lambda like, size, value, **settings: value,
    aten.zeros.default: _zero,
    aten.zeros_like.default: _zero,
    aten.new_zeros.default: _zero,
    aten.ones.default: _one,
    aten.ones_like.default: _one,
    aten.new_ones.default: _one,
    aten.scalar_tensor.default: lambda value, **settings: value,
}
