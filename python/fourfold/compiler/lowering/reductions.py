"""Reductions along dimensions: sums, means, extremes, norms, moments."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.lowering.arithmetic import is_nan, truth
from fourfold.compiler.lowering.call import Call, Number, Operand, rows
from fourfold.compiler.dtypes import BOOLEAN
from fourfold.compiler.ir import Value

aten = torch.ops.aten


def kept(keepdim: bool) -> tuple[str, ...]:
    return ("keep",) if keepdim else ("row",)


def of_dims(x: object, dim: object = None, keepdim: bool = False, **settings: object) -> object:
    return dim


def kept_dims(x: object, dim: object = None, keepdim: bool = False, **settings: object) -> tuple[str, ...]:
    return kept(keepdim)


@rows(aten.sum.default, aten.sum.dim_IntList, dims=of_dims, results=kept_dims)
def sum_(call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return call.op("sum", call(x))


@rows(aten.nansum.default, dims=of_dims, results=kept_dims)
def nansum(
    call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Value:
    value = call(x)
    if not x.dtype.is_floating_point:
        return call.op("sum", value)
    return call.op("sum", call.where(is_nan(call, value), 0, value))


@rows(aten.count_nonzero.default, aten.count_nonzero.dim_IntList, dims=of_dims, results=("row",))
def count_nonzero(call: Call, x: Operand, dim: object = None) -> Value:
    return call.op("sum", call(truth(call, x)))


def mean_of(call: Call, value: Value) -> Value:
    return call.op("div", call.op("sum", value), call.program.columns(value.type))


@rows(aten.mean.default, aten.mean.dim, dims=of_dims, results=kept_dims)
def mean(call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return mean_of(call, call(x))


@rows(aten.prod.default, aten.prod.dim_int, dims=of_dims, results=kept_dims)
def prod(call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return call.op("prod", call(x))


@rows(aten.any.default, aten.any.dim, aten.any.dims, dims=of_dims, results=kept_dims)
def any_(call: Call, x: Operand, dim: object = None, keepdim: bool = False) -> Value:
    return call(call.op("any", truth(call, x)))


@rows(aten.all.default, aten.all.dim, aten.all.dims, dims=of_dims, results=kept_dims)
def all_(call: Call, x: Operand, dim: object = None, keepdim: bool = False) -> Value:
    return call(call.op("all", truth(call, x)))


# Extremes.


@rows(aten.amax.default, aten.max.default, dims=of_dims, results=kept_dims)
def amax(call: Call, x: Operand, dim: object = (), keepdim: bool = False) -> Value:
    value = call(x)
    return call.op("any" if value.type == BOOLEAN else "amax", value)


@rows(aten.amin.default, aten.min.default, dims=of_dims, results=kept_dims)
def amin(call: Call, x: Operand, dim: object = (), keepdim: bool = False) -> Value:
    value = call(x)
    return call.op("all" if value.type == BOOLEAN else "amin", value)


@rows(aten.aminmax.default, dims=of_dims, results=lambda *a, **k: kept_dims(*a, **k) * 2)
def aminmax(call: Call, x: Operand, dim: object = None, keepdim: bool = False) -> tuple[Value, Value]:
    return amin(call, x), amax(call, x)


# Norms.


def _norm_dims(x: object, ord: object = 2, dim: object = None, *rest: object, **settings: object) -> object:
    return dim


def _norm_kept(
    x: object, ord: object = 2, dim: object = None, keepdim: bool = False, **settings: object
) -> tuple[str, ...]:
    return kept(keepdim)


@rows(aten.linalg_vector_norm.default, dims=_norm_dims, results=_norm_kept)
def vector_norm(
    call: Call,
    x: Operand,
    ord: Number = 2,
    dim: object = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    value = call.op("abs", call(x))
    if ord == 0:
        return call.op("sum", call(call.op("ne", call.rounded(x), 0)))
    if ord in (math.inf, -math.inf):
        return call.op("amax" if ord > 0 else "amin", value)
    total = call.op("sum", call.op("pow", value, float(ord)))
    return call.op("pow", total, 1 / ord)


@rows(aten.norm.Scalar, aten.norm.ScalarOpt_dim, dims=_norm_dims, results=_norm_kept)
def norm(call: Call, x: Operand, p: Number | None = 2, dim: object = None, keepdim: bool = False) -> Value:
    return vector_norm(call, x, 2 if p is None else p)


@rows(aten.logsumexp.default, dims=of_dims, results=kept_dims)
def logsumexp(call: Call, x: Operand, dim: object, keepdim: bool = False) -> Value:
    value = call(x)
    most = call.op("amax", value)
    shift = call.where(call.op("eq", call.op("abs", most), math.inf), 0, most)
    total = call.op("sum", call.op("exp", call.op("sub", value, shift)))
    return call.op("add", call.op("log", total), shift)


# Moments.


def moments(call: Call, value: Value, correction: Number) -> tuple[Value, Value]:
    """Variance and mean, the deviations summed in a second pass."""
    mean = mean_of(call, value)
    deviation = call.op("sub", value, mean)
    squares = call.op("sum", call.op("mul", deviation, deviation))
    count = call.program.columns(value.type)
    left = call.op("maximum", call.op("sub", count, correction), 0) if correction else count
    return call.op("div", squares, left), mean


def _var_dims(x: object, dim: object = None, **settings: object) -> object:
    return dim


def _var_kept(x: object, dim: object = None, correction: object = None, keepdim: bool = False) -> tuple[str, ...]:
    return kept(keepdim)


def _var_kept_twice(*args: object, **kwargs: object) -> tuple[str, ...]:
    return _var_kept(*args, **kwargs) * 2


@rows(aten.var_mean.correction, dims=_var_dims, results=_var_kept_twice)
def var_mean(
    call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return moments(call, call(x), 1 if correction is None else correction)


@rows(aten.std_mean.correction, dims=_var_dims, results=_var_kept_twice)
def std_mean(
    call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = var_mean(call, x, dim, correction)
    return call.op("sqrt", variance), mean


@rows(aten.var.correction, dims=_var_dims, results=_var_kept)
def var(call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False) -> Value:
    return var_mean(call, x, dim, correction)[0]


@rows(aten.std.correction, dims=_var_dims, results=_var_kept)
def std(call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False) -> Value:
    return std_mean(call, x, dim, correction)[0]
