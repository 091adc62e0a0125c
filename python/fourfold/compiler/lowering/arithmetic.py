"""Arithmetic, comparisons, logic and bits."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fourfold.compiler.lowering.call import (
    Argument,
    Call,
    Lowering,
    Number,
    Operand,
    direct,
    fits,
    overloads,
    pointwise,
    wrapped,
)
from fourfold.compiler.dtypes import BOOLEAN
from fourfold.compiler.ir import Value

aten = torch.ops.aten

# By torch's name, where the operation does just what the operator does.
DIRECT = ("neg", "atan2", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
for _name in DIRECT:
    pointwise(*overloads(getattr(aten, _name)))(direct(_name))


def is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype != torch.bool


@pointwise(aten.sign.default, aten.sgn.default)
def sign(call: Call, x: Argument) -> Value:
    return call(x) if call.dtype == torch.bool else call.op("sign", call.rounded(x))


def _unless_integer(operation: str) -> Lowering:
    return lambda call, x: call.op(operation, call.rounded(x)) if call.dtype.is_floating_point else call(x)


for _name in ("floor", "ceil", "trunc", "round"):
    pointwise(getattr(aten, _name).default)(_unless_integer(_name))


def _of_integers(dtype: torch.dtype, *arguments: object, **settings: object) -> str | None:
    return "integers, rounded to decimals" if not dtype.is_floating_point else None


@pointwise(aten.round.decimals, unless=_of_integers)
def round_decimals(call: Call, x: Argument, decimals: int = 0) -> Value:
    value, power = call.rounded(x), call(float(10 ** abs(decimals)))
    if decimals < 0:
        return call.op("mul", call.op("round", call.op("div", value, power)), power)
    return call.op("div", call.op("round", call.op("mul", value, power)), power)


@pointwise(aten.frac.default)
def frac(call: Call, x: Argument) -> Value:
    value = call.rounded(x)
    return call.op("sub", value, call.op("trunc", value))


# Comparisons and logic.


def _comparison(operation: str) -> Lowering:
    def lower(call: Call, a: Argument, b: Argument) -> Value:
        dtype = call.common(a, b)
        return call.op(operation, call.rounded(a, dtype), call.rounded(b, dtype))

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    pointwise(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_name))


def truth(call: Call, x: Argument) -> Value:
    return call(call.rounded(x, x.dtype) if isinstance(x, Operand) else x, BOOLEAN)


@pointwise(aten.logical_not.default)
def logical_not(call: Call, x: Argument) -> Value:
    return call.op("bitwise_not", truth(call, x))


for _name, _operation in (("and", "bitwise_and"), ("or", "bitwise_or"), ("xor", "bitwise_xor")):

    @pointwise(getattr(aten, f"logical_{_name}").default)
    def logical(call: Call, a: Argument, b: Argument, operation: str = _operation) -> Value:
        return call.op(operation, truth(call, a), truth(call, b))


def is_nan(call: Call, value: Value) -> Value:
    return call.op("ne", value, value)


@pointwise(aten.isnan.default)
def isnan(call: Call, x: Operand) -> Value:
    return is_nan(call, call.rounded(x, x.dtype)) if x.dtype.is_floating_point else call(False)


@pointwise(aten.isinf.default)
def isinf(call: Call, x: Operand) -> Value:
    return (
        call.op("eq", call.op("abs", call.rounded(x, x.dtype)), math.inf) if x.dtype.is_floating_point else call(False)
    )


@pointwise(aten.isposinf.default)
def isposinf(call: Call, x: Operand) -> Value:
    return call.op("eq", call.rounded(x, x.dtype), math.inf) if x.dtype.is_floating_point else call(False)


@pointwise(aten.isneginf.default)
def isneginf(call: Call, x: Operand) -> Value:
    return call.op("eq", call.rounded(x, x.dtype), -math.inf) if x.dtype.is_floating_point else call(False)


@pointwise(aten.signbit.default)
def signbit(call: Call, x: Operand) -> Value:
    if x.dtype == torch.bool:
        return call(False)
    one = call.op("copysign", 1, x.value) if x.dtype.is_floating_point else x.value
    return call.op("lt", one, 0)


def beyond(dtype: torch.dtype, *arguments: object, **settings: object) -> str | None:
    """torch raises an error where a number is none of the dtype's."""
    is_held = all(fits(argument, dtype) for argument in (*arguments, *settings.values()))
    return None if is_held else "a number that the dtype has not"


@pointwise(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, unless=beyond)
def where(call: Call, mask: Argument, yes: Argument, no: Argument) -> Value:
    return call.where(truth(call, mask), yes, no)


@pointwise(aten.masked_fill.Scalar, aten.masked_fill.Tensor, unless=beyond)
def masked_fill(call: Call, x: Argument, mask: Argument, value: Argument) -> Value:
    return call.where(truth(call, mask), value, x)


# Arithmetic.


@pointwise(aten.abs.default)
def abs_(call: Call, x: Argument) -> Value:
    return call(x) if call.dtype in (torch.uint8, torch.bool) else call.op("abs", call(x))


def scaled(call: Call, x: Argument, alpha: Number) -> Value:
    return call(x) if alpha == 1 else call.op("mul", call(x), call(alpha))


def _beyond_scale(dtype: torch.dtype, x: object, y: object, alpha: Number = 1) -> str | None:
    is_truth = isinstance(alpha, bool) and dtype != torch.bool
    return "a scale that torch refuses" if is_truth else beyond(dtype, alpha)


def _of_truth(dtype: torch.dtype, x: object, y: object, alpha: Number = 1) -> str | None:
    def is_truth(given: object) -> bool:
        fake = given.meta.get("val") if isinstance(given, Node) else given
        return isinstance(fake, bool) or isinstance(fake, torch.Tensor) and fake.dtype == torch.bool

    if is_truth(x) or is_truth(y):
        return "a difference with True or False, which torch refuses"
    return _beyond_scale(dtype, x, y, alpha)


@pointwise(aten.add.Tensor, aten.add.Scalar, unless=_beyond_scale)
def add(call: Call, x: Argument, y: Argument, alpha: Number = 1) -> Value:
    if call.dtype == torch.bool:
        return call.either(call(x), call.op("bitwise_and", call(y), bool(alpha)))
    return call.op("add", call(x), scaled(call, y, alpha))


@pointwise(aten.sub.Tensor, aten.sub.Scalar, unless=_of_truth)
def sub(call: Call, x: Argument, y: Argument, alpha: Number = 1) -> Value:
    return call.op("sub", call(x), scaled(call, y, alpha))


@pointwise(aten.rsub.Tensor, aten.rsub.Scalar, unless=_of_truth)
def rsub(call: Call, x: Argument, y: Argument, alpha: Number = 1) -> Value:
    return sub(call, y, x, alpha)


@pointwise(aten.mul.Tensor, aten.mul.Scalar)
def mul(call: Call, x: Argument, y: Argument) -> Value:
    return call.op("bitwise_and" if call.dtype == torch.bool else "mul", call(x), call(y))


def _may_meet_zero(dtype: torch.dtype, x: object, y: object, rounding_mode: str | None = None) -> str | None:
    """torch raises an error where an integer is divided by zero: left to it, unless that can't be."""
    if dtype.is_floating_point or isinstance(y, (int, float)) and wrapped(y, dtype) != 0:
        return None
    return "a division of integers may meet a zero"


@pointwise(aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode, unless=_may_meet_zero)
def div(call: Call, x: Argument, y: Argument, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return call.op("div", call(x), call(y))
    floors = rounding_mode == "floor"
    if not call.dtype.is_floating_point:
        return call.op("integer_floor_divide" if floors else "integer_trunc_divide", call(x), call(y))
    if floors:
        return call.op("floor_divide", call.rounded(x), call.rounded(y))
    if not isinstance(y, Operand) or not isinstance(y.fake, torch.Tensor) or y.fake.dim() == 0:
        return call.op("trunc", call.op("div", call.rounded(x), call(y)))  # torch rounds neither of a number's
    return call.op("trunc", call.rounded(call.op("div", call.rounded(x), call.rounded(y))))


@pointwise(aten.floor_divide.default, aten.floor_divide.Scalar, unless=_may_meet_zero)
def floor_divide(call: Call, x: Argument, y: Argument) -> Value:
    return div(call, x, y, "floor")


@pointwise(aten.fmod.Tensor, aten.fmod.Scalar, unless=_may_meet_zero)
def fmod(call: Call, x: Argument, y: Argument) -> Value:
    operation = "fmod" if call.dtype.is_floating_point else "integer_fmod"
    return call.op(operation, call.rounded(x), call.rounded(y))


@pointwise(aten.remainder.Tensor, aten.remainder.Scalar, unless=_may_meet_zero)
def remainder(call: Call, x: Argument, y: Argument) -> Value:
    operation = "remainder" if call.dtype.is_floating_point else "integer_remainder"
    return call.op(operation, call.rounded(x), call.rounded(y))


MOST_POWER = 64  # of an integer


def _other_powers(dtype: torch.dtype, x: object, y: object) -> str | None:
    if dtype.is_floating_point or is_whole(dtype) and isinstance(y, int) and 0 <= y <= MOST_POWER:
        return None
    return "a power of integers that is not known, or negative, which torch refuses"


@pointwise(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar, unless=_other_powers)
def pow_(call: Call, x: Argument, y: Argument) -> Value:
    if call.dtype.is_floating_point:
        return call.op("pow", call(x), call(y))
    result, power = call(1), call(x)
    for bit in reversed(f"{y:b}"):
        if bit == "1":
            result = call.op("mul", result, power)
        power = call.op("mul", power, power)
    return result


def _no_integers(dtype: torch.dtype, *arguments: object) -> str | None:
    return None if is_whole(dtype) else "a shift of floating point"


for _name, _operation in (("left", "shift_left"), ("right", "shift_right")):

    @pointwise(
        *overloads(getattr(aten, f"bitwise_{_name}_shift")),
        *overloads(getattr(aten, f"__{_name[0]}shift__")),
        unless=_no_integers,
    )
    def shift(call: Call, x: Argument, y: Argument, operation: str = _operation) -> Value:
        return call.op(operation, call(x), call(y))


# The lesser and the greater.


@pointwise(aten.minimum.default)
def minimum(call: Call, a: Argument, b: Argument) -> Value:
    return call.lesser(a, b)


@pointwise(aten.maximum.default)
def maximum(call: Call, a: Argument, b: Argument) -> Value:
    return call.greater(a, b)


def _without_nan(call: Call, a: Value, b: Value, choose: Lowering) -> Value:
    if not call.dtype.is_floating_point:
        return choose(a, b)
    # Of two zeros torch's gives the first, and of bfloat16 the second.
    chosen = choose(a, b) if call.dtype == torch.bfloat16 else choose(b, a)
    return call.where(is_nan(call, a), b, call.where(is_nan(call, b), a, chosen))


@pointwise(aten.fmin.default)
def fmin(call: Call, a: Argument, b: Argument) -> Value:
    return _without_nan(call, call(a), call(b), call.lesser)


@pointwise(aten.fmax.default)
def fmax(call: Call, a: Argument, b: Argument) -> Value:
    return _without_nan(call, call(a), call(b), call.greater)


@pointwise(aten.clamp.default, aten.clamp.Tensor, unless=beyond)
def clamp(call: Call, x: Argument, min: Argument | None = None, max: Argument | None = None) -> Value:
    value = call(x)
    if min is not None:  # of two that are equal, zeros that is, the latter: a number's sign gives way
        value = call.greater(value, min) if isinstance(min, Operand) else call.greater(min, value)
    if max is None:
        return value
    return call.lesser(value, max) if isinstance(max, Operand) else call.lesser(max, value)


@pointwise(aten.clamp_min.default, aten.clamp_min.Tensor, unless=beyond)
def clamp_min(call: Call, x: Argument, min: Argument) -> Value:
    return clamp(call, x, min)


@pointwise(aten.clamp_max.default, aten.clamp_max.Tensor, unless=beyond)
def clamp_max(call: Call, x: Argument, max: Argument) -> Value:
    return clamp(call, x, None, max)


# Of three.


@pointwise(aten.addcmul.default)
def addcmul(call: Call, x: Argument, a: Argument, b: Argument, value: Number = 1) -> Value:
    return call.op("add", call(x), call.op("mul", scaled(call, a, value), call(b)))


@pointwise(aten.addcdiv.default)
def addcdiv(call: Call, x: Argument, a: Argument, b: Argument, value: Number = 1) -> Value:
    return call.op("add", call(x), call.op("div", scaled(call, a, value), call(b)))


@pointwise(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(call: Call, a: Argument, b: Argument, weight: Argument) -> Value:
    a, b, weight = call(a), call(b), call(weight)
    distance = call.op("sub", b, a)
    near = call.op("add", a, call.op("mul", weight, distance))
    far = call.op("sub", b, call.op("mul", distance, call.op("sub", 1, weight)))
    return call.where(call.op("lt", call.op("abs", weight), 0.5), near, far)
