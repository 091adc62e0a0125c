"""Conversions, copies, and tensors that hold one number."""

from __future__ import annotations

import torch

from fourfold.compiler.ir.dtypes import INT64, ROUNDED
from fourfold.compiler.ir.values import Value
from fourfold.compiler.lowering.call import CONSTANT, Argument, Call, Operand, pointwise

aten, prims = torch.ops.aten, torch.ops.prims


@pointwise(prims.convert_element_type.default, aten._to_copy.default)
def convert(call: Call, x: Argument) -> Value:
    """Explicit conversions round, even within a program."""
    given = x.dtype if isinstance(x, Operand) else None
    if call.dtype == torch.uint8 and given is not None and given.is_floating_point:
        return call(call.rounded(x, given), INT64)
    value = call(x)
    if given in ROUNDED and given != call.dtype and (call.dtype in ROUNDED or not call.dtype.is_floating_point):
        value = call(call.rounded(x, given))
    return value if given == call.dtype else call.rounded(value)


@pointwise(aten.copy.default)
def copy(call: Call, src: Argument) -> Value:
    return convert(call, src)


pointwise(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)(lambda x: x)

ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
ONES = (aten.ones.default, aten.ones_like.default, aten.new_ones.default)
# Operators whose result is filled with one number; programs write it as a constant.
CONSTANT |= {
    **dict.fromkeys(ZEROS, lambda *arguments, **settings: 0),
    **dict.fromkeys(ONES, lambda *arguments, **settings: 1),
    **dict.fromkeys(
        (aten.full.default, aten.full_like.default, aten.fill.Scalar), lambda like, value, **settings: value
    ),
    aten.new_full.default: lambda like, size, value, **settings: value,
    aten.scalar_tensor.default: lambda value, **settings: value,
}
