"""Functions of numbers: exponentials, logarithms, trigonometry and their combinations."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.ir.dtypes import FLOAT32, FLOAT64
from fourfold.compiler.ir.values import (
    Value,
    exp,
    exp2,
    is_nan,
    log,
    log1p,
    maximum,
    minimum,
    operation,
    sin,
    sqrt,
    where,
)
from fourfold.compiler.lowering.call import (
    Call,
    Formula,
    NotFusable,
    Number,
    Operand,
    Rounded,
    always,
    overloads,
    pointwise,
)

aten = torch.ops.aten

# Operations with the name and the semantics of torch's operator.
DIRECT = (
    *("sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
)
for _name in DIRECT:
    pointwise(*overloads(getattr(aten, _name)))(operation(_name))

pointwise(aten.deg2rad.default)(lambda x: x * (math.pi / 180))
pointwise(aten.rad2deg.default)(lambda x: x * (180 / math.pi))
pointwise(aten.angle.default)(lambda call, x: where(is_nan(x), x, where(x < 0, call(math.pi), 0)))
pointwise(aten.ldexp.Tensor, stepwise=always)(lambda x, exponent: x * exp2(exponent))
pointwise(aten.sigmoid_backward.default, stepwise=lambda dtype, *given: dtype == torch.float16)(
    lambda grad, y: grad * (1 - y) * y
)
pointwise(aten.tanh_backward.default)(lambda grad, y: grad * (1 - y * y))
pointwise(aten.logaddexp.default)(lambda a, b: _log_of_sum(a, b, exp, 1))
pointwise(aten.logaddexp2.default)(lambda a, b: _log_of_sum(a, b, exp2, 1 / math.log(2)))
pointwise(*overloads(aten.xlogy), stepwise=always)(lambda x, y: _times_log(x, y, log))
pointwise(*overloads(aten.special_xlog1py), stepwise=always)(lambda x, y: _times_log(x, y, log1p))


def _log_of_sum(a: Value, b: Value, exponential: Formula, scale: float) -> Value:
    more = log1p(exponential(-abs(a - b))) * scale
    return where(abs(a).eq(math.inf) & a.eq(b), a, maximum(a, b) + more)


def _times_log(x: Value, y: Value, logarithm: Formula) -> Value:
    """x times the logarithm of y: 0 if x is 0, except for NaN y."""
    return where(is_nan(y), math.nan, where(x.eq(0), 0, x * logarithm(y)))


@pointwise(aten.sinc.default)
def sinc(x: Value) -> Value:
    product = x * math.pi
    return where(x.eq(0), 1, sin(product) / product)


@pointwise(aten.special_entr.default, stepwise=always)
def entr(x: Value) -> Value:
    return where(x > 0, -x * log(x), where(x.eq(0), 0, where(is_nan(x), x, -math.inf)))


@pointwise(aten.heaviside.default)
def heaviside(call: Call, x: Operand, values: Operand) -> Value:
    if x.dtype != values.dtype:
        raise NotFusable("operands of two dtypes, for which torch raises an error")
    if call.dtype == torch.bool:
        return call(x) | call(values)
    value = call.rounded(x)
    return where(value.eq(0), call(values), value > 0)


@pointwise(aten.nan_to_num.default)
def nan_to_num(call: Call, x: Rounded, nan: Number | None, posinf: Number | None, neginf: Number | None) -> Value:
    if not call.dtype.is_floating_point:
        return x
    most = torch.finfo(call.dtype).max
    low = where(x.eq(-math.inf), call(-most if neginf is None else neginf), x)
    finite = where(x.eq(math.inf), call(most if posinf is None else posinf), low)
    return where(is_nan(x), call(0 if nan is None else nan), finite)


@pointwise(aten.hypot.default)
def hypot(a: Value, b: Value) -> Value:
    a, b = abs(a), abs(b)
    if a.type == FLOAT32 and a.program.has_float64:  # in which the squares are exact
        c, d = a.to(FLOAT64), b.to(FLOAT64)
        length = sqrt(c * c + d * d).to(FLOAT32)
    else:
        longer, ratio = maximum(a, b), minimum(a, b) / maximum(a, b)
        length = where(longer.eq(0), longer, longer * sqrt(ratio * ratio + 1))
    return where(a.eq(math.inf) | b.eq(math.inf), math.inf, length)


@pointwise(aten.logit.default, stepwise=always)
def logit(x: Value, eps: Value | None) -> Value:
    if eps is not None:
        x = minimum(maximum(x, eps), 1 - eps)
    return log(x / (1 - x))


@pointwise(aten.logit_backward.default, stepwise=always)
def logit_backward(grad: Value, x: Rounded, eps: Value | None) -> Value:
    low, high = (0, 1) if eps is None else (eps, 1 - eps)
    inside = grad / abs(x * (1 - x))  # abs: the same for -0 as for 0
    return where((x < low) | (x > high), math.nan if eps is None else 0, inside)
