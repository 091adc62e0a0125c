"""Arithmetic, comparisons, logic and bits."""

from __future__ import annotations

import functools
import math

import torch
from torch.fx import Node

from fourfold.compiler.ir.powers import SPECIAL_EXPONENTS, product
from fourfold.compiler.ir.values import Number, Value, copysign, is_nan, maximum, minimum, operation, where
from fourfold.compiler.lowering.call import (
    Argument,
    Call,
    Formula,
    Operand,
    Rounded,
    Scalar,
    Truth,
    beyond,
    overloads,
    pointwise,
    wrapped,
)

aten = torch.ops.aten
trunc, to_nearest = operation("trunc"), operation("round")
floor_divide, trunc_divide = operation("floor_divide"), operation("trunc_divide")

# Operations with the name and the semantics of torch's operator.
DIRECT = ("neg", "atan2", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
for _name in (*DIRECT, "minimum", "maximum"):
    pointwise(*overloads(getattr(aten, _name)))(operation(_name))
for _name in ("sign", "floor", "ceil", "trunc", "round"):
    pointwise(getattr(aten, _name).default, of="Rounded")(operation(_name))
pointwise(aten.sgn.default, of="Rounded")(operation("sign"))
pointwise(aten.frac.default, of="Rounded")(lambda x: x - trunc(x))
pointwise(aten.abs.default)(lambda call, x: x if call.dtype in (torch.uint8, torch.bool) else abs(x))


@pointwise(aten.addcmul.default)
def addcmul(x: Value, a: Value, b: Value, value: Scalar) -> Value:
    return x + a * value * b


@pointwise(aten.addcdiv.default)
def addcdiv(x: Value, a: Value, b: Value, value: Scalar) -> Value:
    return x + a * value / b


def _of_integers(dtype: torch.dtype, *arguments: object, **settings: object) -> str | None:
    return "integers, rounded to decimals" if not dtype.is_floating_point else None


@pointwise(aten.round.decimals, unless=_of_integers)
def round_decimals(x: Rounded, decimals: int) -> Value:
    power = float(10 ** abs(decimals))
    return to_nearest(x / power) * power if decimals < 0 else to_nearest(x * power) / power


# Comparisons and logic.


def _comparison(operation: Formula) -> Formula:
    def lower(call: Call, a: Argument, b: Argument) -> Value:
        dtype = call.common(a, b)
        return operation(call.rounded(a, dtype), call.rounded(b, dtype))

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    pointwise(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(operation(_name)))


pointwise(aten.logical_not.default, of="Truth")(operation("bitwise_not"))
for _name in ("and", "or", "xor"):
    pointwise(getattr(aten, f"logical_{_name}").default, of="Truth")(operation(f"bitwise_{_name}"))


def _of_floating_point(test: Formula) -> Formula:
    """The test, which is False for integers."""

    def lower(call: Call, x: Operand) -> Value:
        return test(call.rounded(x, x.dtype)) if x.dtype.is_floating_point else call(False)

    return lower


pointwise(aten.isnan.default)(_of_floating_point(is_nan))
pointwise(aten.isinf.default)(_of_floating_point(lambda x: abs(x).eq(math.inf)))
pointwise(aten.isposinf.default)(_of_floating_point(lambda x: x.eq(math.inf)))
pointwise(aten.isneginf.default)(_of_floating_point(lambda x: x.eq(-math.inf)))


@pointwise(aten.signbit.default)
def signbit(call: Call, x: Operand) -> Value:
    if x.dtype == torch.bool:
        return call(False)
    return (copysign(1, x.value) if x.dtype.is_floating_point else x.value) < 0


@pointwise(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, unless=beyond)
def choose(mask: Truth, yes: Value, no: Value) -> Value:
    return where(mask, yes, no)


def _may_be_beyond(dtype: torch.dtype, x: object, mask: object, value: object) -> str | None:
    fake = value.meta["val"] if isinstance(value, Node) else value
    if isinstance(fake, torch.Tensor) and torch.promote_types(fake.dtype, dtype) != dtype:
        return "a value that the dtype may not hold"
    return beyond(dtype, value)


@pointwise(aten.masked_fill.Scalar, aten.masked_fill.Tensor, unless=_may_be_beyond)
def masked_fill(x: Value, mask: Truth, value: Value) -> Value:
    return where(mask, value, x)


# Arithmetic.


def _beyond_scale(dtype: torch.dtype, x: object, y: object, alpha: Number = 1) -> str | None:
    is_truth = isinstance(alpha, bool) and dtype != torch.bool
    return "a scale for which torch raises an error" if is_truth else beyond(dtype, alpha)


def _of_truth(dtype: torch.dtype, x: object, y: object, alpha: Number = 1) -> str | None:
    def is_truth(given: object) -> bool:
        fake = given.meta.get("val") if isinstance(given, Node) else given
        return isinstance(fake, bool) or isinstance(fake, torch.Tensor) and fake.dtype == torch.bool

    if is_truth(x) or is_truth(y):
        return "a difference with True or False, for which torch raises an error"
    return _beyond_scale(dtype, x, y, alpha)


@pointwise(aten.add.Tensor, aten.add.Scalar, unless=_beyond_scale)
def add(call: Call, x: Argument, y: Argument, alpha: Argument) -> Value:
    return call.term(x) + call.term(y) * call.term(alpha)


@pointwise(aten.sub.Tensor, aten.sub.Scalar, unless=_of_truth)
def sub(call: Call, x: Argument, y: Argument, alpha: Argument) -> Value:
    return call.term(x) - call.term(y) * call.term(alpha)


@pointwise(aten.rsub.Tensor, aten.rsub.Scalar, unless=_of_truth)
def rsub(call: Call, x: Argument, y: Argument, alpha: Argument) -> Value:
    return sub(call, y, x, alpha)


@pointwise(*overloads(aten.mul))
def mul(call: Call, x: Argument, y: Argument) -> Value:
    return call.term(x) * call.factor(y)


def _may_meet_zero(dtype: torch.dtype, x: object, y: object, rounding_mode: str | None = None) -> str | None:
    """Leaves integer divisions to torch, which raises for a zero divisor, unless the divisor is a nonzero constant."""
    if dtype.is_floating_point or isinstance(y, (int, float)) and wrapped(y, dtype) != 0:
        return None
    return "an integer division whose divisor may be zero"


def _is_number(y: Argument) -> bool:
    return not isinstance(y, Operand) or not isinstance(y.fake, torch.Tensor) or y.fake.dim() == 0


def _divisor(call: Call, y: Argument) -> Value:
    """torch rounds a tensor to the result's dtype, but not a number, nor a tensor without dimensions."""
    if not call.dtype.is_floating_point or not _is_number(y):
        return call.rounded(y)
    return call.unrounded(call.rounded(y, y.dtype) if isinstance(y, Operand) else y)


@pointwise(aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode, unless=_may_meet_zero)
def div(call: Call, x: Argument, y: Argument, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return call.term(x) / call.factor(y)
    if rounding_mode == "floor":
        return floor_divide(call.rounded(x), _divisor(call, y))
    if not call.dtype.is_floating_point:
        return trunc_divide(call(x), call(y))
    quotient = call.rounded(x) / _divisor(call, y)
    return trunc(quotient if _is_number(y) else call.rounded(quotient))


@pointwise(*overloads(aten.floor_divide), unless=_may_meet_zero)
def floor_division(call: Call, x: Argument, y: Argument) -> Value:
    return div(call, x, y, "floor")


for _name in ("fmod", "remainder"):
    pointwise(*overloads(getattr(aten, _name)), unless=_may_meet_zero, of="Rounded")(operation(_name))

MOST_POWER = 64  # exponent of an integer


def is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype != torch.bool


def _other_powers(dtype: torch.dtype, x: object, y: object) -> str | None:
    if dtype.is_floating_point or is_whole(dtype) and isinstance(y, int) and 0 <= y <= MOST_POWER:
        return None
    return "an integer power with an unknown or negative exponent, for which torch may raise an error"


def _of_products(dtype: torch.dtype, x: object, y: object) -> bool:
    return dtype == torch.bfloat16 and y in SPECIAL_EXPONENTS


POWERS = (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)


@pointwise(*POWERS, unless=_other_powers, stepwise=_of_products)
def power(call: Call, x: Value, y: Argument) -> Value:
    if call.dtype.is_floating_point:
        return x ** call(y)
    return product(x, y)


def _no_integers(dtype: torch.dtype, *arguments: object) -> str | None:
    return None if is_whole(dtype) else "a shift of floating point"


_shift = functools.partial(pointwise, unless=_no_integers)
_shift(*overloads(aten.bitwise_left_shift), *overloads(aten.__lshift__))(operation("shift_left"))
_shift(*overloads(aten.bitwise_right_shift), *overloads(aten.__rshift__))(operation("shift_right"))


# Minimum and maximum.


def _without_nan(choose: Formula) -> Formula:
    def lower(call: Call, a: Value, b: Value) -> Value:
        if not call.dtype.is_floating_point:
            return choose(a, b)
        # Of two zeros torch returns the first, and for bfloat16 the second.
        chosen = choose(a, b) if call.dtype == torch.bfloat16 else choose(b, a)
        return where(is_nan(a), b, where(is_nan(b), a, chosen))

    return lower


pointwise(aten.fmin.default)(_without_nan(minimum))
pointwise(aten.fmax.default)(_without_nan(maximum))


@pointwise(*overloads(aten.clamp), *overloads(aten.clamp_min), *overloads(aten.clamp_max), unless=beyond)
def clamp(call: Call, x: Value, min: Argument | None = None, max: Argument | None = None) -> Value:
    for bound, choose in ((min, maximum), (max, minimum)):
        if bound is not None:  # of equal zeros the second operand: a tensor bound, or x for a number
            x = choose(x, call(bound)) if isinstance(bound, Operand) else choose(call(bound), x)
    return x


pointwise(aten.hardtanh.default)(clamp)


@pointwise(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(a: Value, b: Value, weight: Scalar) -> Value:
    distance = b - a
    return where(abs(weight) < 0.5, a + weight * distance, b - distance * (1 - weight))
