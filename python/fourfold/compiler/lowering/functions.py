"""Functions of numbers: exponentials, logarithms, trigonometry and what is made of them."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.lowering.arithmetic import is_nan
from fourfold.compiler.lowering.call import Argument, Call, NotFusable, Number, Operand, direct, overloads, pointwise
from fourfold.compiler.dtypes import FLOAT32, FLOAT64
from fourfold.compiler.ir import Value

aten = torch.ops.aten

# By torch's name, where the operation does just what the operator does.
DIRECT = (
    *("sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
)
for _name in DIRECT:
    pointwise(*overloads(getattr(aten, _name)))(direct(_name))


@pointwise(aten.deg2rad.default)
def deg2rad(call: Call, x: Argument) -> Value:
    return call.op("mul", call(x), math.pi / 180)


@pointwise(aten.rad2deg.default)
def rad2deg(call: Call, x: Argument) -> Value:
    return call.op("mul", call(x), 180 / math.pi)


@pointwise(aten.angle.default)
def angle(call: Call, x: Argument) -> Value:
    value = call(x)
    return call.where(is_nan(call, value), value, call.where(call.op("lt", value, 0), math.pi, 0))


@pointwise(aten.sinc.default)
def sinc(call: Call, x: Argument) -> Value:
    product = call.op("mul", call(x), math.pi)
    return call.where(call.op("eq", call(x), 0), 1, call.op("div", call.op("sin", product), product))


@pointwise(aten.ldexp.Tensor)
def ldexp(call: Call, x: Argument, other: Argument) -> Value:
    return call.op("mul", call(x), call.op("exp2", call(other)))


@pointwise(aten.heaviside.default)
def heaviside(call: Call, x: Operand, values: Operand) -> Value:
    if x.dtype != values.dtype:
        raise NotFusable("operands of two dtypes, which torch refuses")
    if call.dtype == torch.bool:
        return call.either(call(x), call(values))
    value = call.rounded(x)
    return call.where(call.op("eq", value, 0), values, call(call.op("gt", value, 0)))


@pointwise(aten.nan_to_num.default)
def nan_to_num(
    call: Call, x: Argument, nan: Number | None = None, posinf: Number | None = None, neginf: Number | None = None
) -> Value:
    value = call.rounded(x)
    if not call.dtype.is_floating_point:
        return value
    most = torch.finfo(call.dtype).max
    low = call.where(call.op("eq", value, -math.inf), -most if neginf is None else neginf, value)
    finite = call.where(call.op("eq", value, math.inf), most if posinf is None else posinf, low)
    return call.where(is_nan(call, value), 0 if nan is None else nan, finite)


@pointwise(aten.hypot.default)
def hypot(call: Call, a: Argument, b: Argument) -> Value:
    a, b = call.op("abs", call(a)), call.op("abs", call(b))
    if call.type == FLOAT32:  # whose squares are exact in float64
        c, d = call(a, FLOAT64), call(b, FLOAT64)
        length = call(call.op("sqrt", call.op("add", call.op("mul", c, c), call.op("mul", d, d))))
    else:
        longer, ratio = call.greater(a, b), call.op("div", call.lesser(a, b), call.greater(a, b))
        length = call.op("mul", longer, call.op("sqrt", call.op("add", call.op("mul", ratio, ratio), 1)))
        length = call.where(call.op("eq", longer, 0), longer, length)
    infinite = call.either(call.op("eq", a, math.inf), call.op("eq", b, math.inf))
    return call.where(infinite, math.inf, length)


def _of_logarithm(operation: str, call: Call, x: Argument, y: Argument) -> Value:
    """x times a logarithm of y; 0 where x is, but for a y that is NaN."""
    x, y = call(x), call(y)
    product = call.op("mul", x, call.op(operation, y))
    return call.where(is_nan(call, y), math.nan, call.where(call.op("eq", x, 0), 0, product))


@pointwise(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(call: Call, x: Argument, y: Argument) -> Value:
    return _of_logarithm("log", call, x, y)


@pointwise(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def xlog1py(call: Call, x: Argument, y: Argument) -> Value:
    return _of_logarithm("log1p", call, x, y)


@pointwise(aten.special_entr.default)
def entr(call: Call, x: Argument) -> Value:
    value = call(x)
    inside = call.op("mul", call.op("neg", value), call.op("log", value))
    outside = call.where(call.op("eq", value, 0), 0, call.where(is_nan(call, value), value, -math.inf))
    return call.where(call.op("gt", value, 0), inside, outside)


def _sum_of_exponentials(call: Call, a: Value, b: Value, exponential: str, scale: float) -> Value:
    apart = call.op("neg", call.op("abs", call.op("sub", a, b)))
    more = call.op("mul", call.op("log1p", call.op(exponential, apart)), scale)
    same = call.both(call.op("eq", call.op("abs", a), math.inf), call.op("eq", a, b))
    return call.where(same, a, call.op("add", call.greater(a, b), more))


@pointwise(aten.logaddexp.default)
def logaddexp(call: Call, a: Argument, b: Argument) -> Value:
    return _sum_of_exponentials(call, call(a), call(b), "exp", 1)


@pointwise(aten.logaddexp2.default)
def logaddexp2(call: Call, a: Argument, b: Argument) -> Value:
    return _sum_of_exponentials(call, call(a), call(b), "exp2", 1 / math.log(2))


@pointwise(aten.logit.default)
def logit(call: Call, x: Argument, eps: Number | None = None) -> Value:
    value = call(x)
    if eps is not None:
        value = call.lesser(call.greater(value, eps), call.op("sub", 1, eps))
    return call.op("log", call.op("div", value, call.op("sub", 1, value)))


@pointwise(aten.logit_backward.default)
def logit_backward(call: Call, grad: Argument, x: Argument, eps: Number | None = None) -> Value:
    value = call.rounded(x)
    low, high = (0, 1) if eps is None else (eps, call.op("sub", 1, eps))
    outside = call.either(call.op("lt", value, low), call.op("gt", value, high))
    slope = call.op("mul", value, call.op("sub", 1, value))
    inside = call.op("div", call(grad), call.op("abs", slope))  # at -0 as at 0
    return call.where(outside, math.nan if eps is None else 0, inside)


@pointwise(aten.sigmoid_backward.default)
def sigmoid_backward(call: Call, grad: Argument, result: Argument) -> Value:
    y = call(result)
    return call.op("mul", call(grad), call.op("mul", call.op("sub", 1, y), y))


@pointwise(aten.tanh_backward.default)
def tanh_backward(call: Call, grad: Argument, result: Argument) -> Value:
    y = call(result)
    return call.op("mul", call(grad), call.op("sub", 1, call.op("mul", y, y)))
