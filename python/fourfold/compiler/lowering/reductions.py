"""Reductions along dimensions: sums, means, extremes, norms, moments."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.ir.dtypes import FLOAT32, FLOAT64
from fourfold.compiler.ir.values import (
    Value,
    all_,
    amax,
    amin,
    any_,
    exp,
    is_nan,
    log,
    maximum,
    prod,
    sqrt,
    sum_,
    sum_float64,
    where,
)
from fourfold.compiler.lowering.call import Call, Number, Operand, Truth, rows

aten = torch.ops.aten

rows(aten.amax.default, aten.max.default)(lambda x: amax(x))
rows(aten.amin.default, aten.min.default)(lambda x: amin(x))
rows(aten.aminmax.default)(lambda x: (amin(x), amax(x)))
rows(aten.any.default, aten.any.dim, aten.any.dims, of="Truth")(lambda x: any_(x))
rows(aten.all.default, aten.all.dim, aten.all.dims, of="Truth")(lambda x: all_(x))


@rows(aten.sum.default, aten.sum.dim_IntList)
def total(call: Call, x: Operand) -> Value:
    return any_(call.truth(x)) if call.dtype == torch.bool else sum_(call(x))


@rows(aten.prod.default, aten.prod.dim_int)
def product(call: Call, x: Operand) -> Value:
    return all_(call.truth(x)) if call.dtype == torch.bool else prod(call(x))


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
    is_square = x.op == "mul" and x.operands[0] is x.operands[1]  # of which a rounding doesn't matter: an RMS norm's
    return sum_(x) / count(x) if is_square else center(x) if is_wide(x) else sum_(x) / count(x)


def is_wide(x: Value) -> bool:
    """Whether float64 may compute what needs more digits or a larger range than float32."""
    return x.type == FLOAT32 and x.program.is_on_cpu


def center(x: Value) -> Value:
    """The mean that a norm subtracts: of equal numbers it is that number, and of large ones it is finite."""
    if not x.program.is_on_cpu:
        return sum_(x) / count(x)
    if x.type == FLOAT32:
        return (sum_float64(x) / x.program.columns(FLOAT64)).to(FLOAT32)
    near = sum_(x * ((1 - 2**-30) / count(x)))  # a rounding of the mean could be infinite
    return near + sum_((x - near) * (1 / count(x)))


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


def variance(x: Value, average: Value, correction: Number | None) -> Value:
    """The deviations from the average are summed in a second pass."""
    deviation, correction = x - average, 1 if correction is None else correction
    left = maximum(count(x) - correction, 0) if correction else count(x)
    return sum_(deviation * deviation) / left


@rows(aten.var_mean.correction)
def var_mean(x: Value, correction: Number | None) -> tuple[Value, Value]:
    """Of norms: a function's own is decomposed while it is traced."""
    average = center(x)
    return variance(x, average, correction), average


def exact(x: Value, correction: Number | None) -> tuple[Value, Value]:
    """The variance and the mean; of float32 in float64, as computed by torch's kernels for CPUs."""
    if not is_wide(x):
        return var_mean(x, correction)
    wide = x.to(FLOAT64)
    average = sum_(wide) / count(wide)
    return variance(wide, average, correction), average


@rows(aten.var.correction)
def var(x: Value, correction: Number | None) -> Value:
    return exact(x, correction)[0]


@rows(aten.std.correction)
def std(x: Value, correction: Number | None) -> Value:
    return sqrt(var(x, correction))


@rows(aten.std_mean.correction)
def std_mean(x: Value, correction: Number | None) -> tuple[Value, Value]:
    own, average = exact(x, correction)
    return sqrt(own).to(x.type), average.to(x.type)
