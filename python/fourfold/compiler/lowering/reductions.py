"""Reductions along dimensions: sums, means, extremes, norms, moments."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.ir import Value, all_, amax, amin, any_, exp, is_nan, log, maximum, prod, sqrt, sum_, where
from fourfold.compiler.lowering.call import Call, Number, Operand, Truth, rows

aten = torch.ops.aten

rows(aten.sum.default, aten.sum.dim_IntList)(lambda x: sum_(x))
rows(aten.prod.default, aten.prod.dim_int)(lambda x: prod(x))
rows(aten.amax.default, aten.max.default)(lambda x: amax(x))
rows(aten.amin.default, aten.min.default)(lambda x: amin(x))
rows(aten.aminmax.default)(lambda x: (amin(x), amax(x)))
rows(aten.any.default, aten.any.dim, aten.any.dims, of="Truth")(lambda x: any_(x))
rows(aten.all.default, aten.all.dim, aten.all.dims, of="Truth")(lambda x: all_(x))


@rows(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(call: Call, x: Truth) -> Value:
    return sum_(call(x))


@rows(aten.nansum.default)
def nansum(call: Call, x: Operand) -> Value:
    value = call(x)
    return sum_(where(is_nan(value), 0, value) if x.dtype.is_floating_point else value)


def count(x: Value) -> Value:
    return x.program.columns(x.type)


@rows(aten.mean.default, aten.mean.dim)
def mean(x: Value) -> Value:
    return sum_(x) / count(x)


@rows(aten.linalg_vector_norm.default)
def vector_norm(call: Call, x: Operand, ord: Number) -> Value:
    if ord == 0:
        return sum_(call(call.rounded(x).ne(0)))
    size = abs(call(x))
    if abs(ord) == math.inf:
        return amax(size) if ord > 0 else amin(size)
    return sum_(size ** float(ord)) ** (1 / ord)


@rows(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(call: Call, x: Operand, p: Number | None) -> Value:
    return vector_norm(call, x, 2 if p is None else p)


@rows(aten.logsumexp.default)
def logsumexp(x: Value) -> Value:
    most = amax(x)
    shift = where(abs(most).eq(math.inf), 0, most)
    return log(sum_(exp(x - shift))) + shift


@rows(aten.var.correction)
def var(x: Value, correction: Number | None) -> Value:
    """The deviations are summed in a second pass."""
    correction = 1 if correction is None else correction
    deviation = x - mean(x)
    left = maximum(count(x) - correction, 0) if correction else count(x)
    return sum_(deviation * deviation) / left


@rows(aten.std.correction)
def std(x: Value, correction: Number | None) -> Value:
    return sqrt(var(x, correction))


@rows(aten.var_mean.correction)
def var_mean(x: Value, correction: Number | None) -> tuple[Value, Value]:
    return var(x, correction), mean(x)


@rows(aten.std_mean.correction)
def std_mean(x: Value, correction: Number | None) -> tuple[Value, Value]:
    return std(x, correction), mean(x)
