"""Softmax and layer norm, with their gradients: reductions whose results are elements again."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.lowering.call import Call, Operand, rows
from fourfold.compiler.lowering.reductions import moments
from fourfold.compiler.ir import Value

aten = torch.ops.aten
ELEMENT = ("element",)


def _last(x: object, dim: int, *rest: object) -> list[int]:
    return [dim]


@rows(aten._softmax.default, dims=_last, results=ELEMENT)
def softmax(call: Call, x: Operand, dim: int, half_to_float: bool) -> Value:
    value = call(x)
    e = call.op("exp", call.op("sub", value, call.op("amax", value)))
    return call.op("div", e, call.op("sum", e))


@rows(aten._safe_softmax.default, dims=_last, results=ELEMENT)
def safe_softmax(call: Call, x: Operand, dim: int, dtype: torch.dtype | None = None) -> Value:
    empty = call.op("eq", call.op("amax", call(x)), -math.inf)
    return call.where(empty, 0, softmax(call, x, dim, False))


@rows(aten._log_softmax.default, dims=_last, results=ELEMENT)
def log_softmax(call: Call, x: Operand, dim: int, half_to_float: bool) -> Value:
    value = call(x)
    below = call.op("sub", value, call.op("amax", value))
    return call.op("sub", below, call.op("log", call.op("sum", call.op("exp", below))))


def _backward_dims(grad: object, result: object, dim: int, dtype: object) -> list[int]:
    return [dim]


@rows(aten._softmax_backward_data.default, dims=_backward_dims, results=ELEMENT)
def softmax_backward(call: Call, grad: Operand, result: Operand, dim: int, dtype: torch.dtype) -> Value:
    g, y = call(grad), call(result)
    return call.op("mul", call.op("sub", g, call.op("sum", call.op("mul", g, y))), y)


@rows(aten._log_softmax_backward_data.default, dims=_backward_dims, results=ELEMENT)
def log_softmax_backward(call: Call, grad: Operand, result: Operand, dim: int, dtype: torch.dtype) -> Value:
    g, y = call(grad), call(result)
    return call.op("sub", g, call.op("mul", call.op("exp", y), call.op("sum", g)))


def _normalized(x: object, shape: list[int], *rest: object) -> list[int]:
    return list(range(-len(shape), 0))


@rows(aten.native_layer_norm.default, dims=_normalized, results=("element", "keep", "keep"))
def layer_norm(
    call: Call, x: Operand, shape: list[int], weight: Operand | None, bias: Operand | None, eps: float
) -> tuple[Value, Value, Value]:
    value = call(x)
    variance, mean = moments(call, value, 0)
    rstd = call.op("rsqrt", call.op("add", variance, eps))
    result = call.op("mul", call.op("sub", value, mean), rstd)
    if weight is not None:
        result = call.op("mul", result, call(weight))
    return (result if bias is None else call.op("add", result, call(bias))), mean, rstd


def _backward_normalized(grad: object, x: object, shape: list[int], *rest: object) -> list[int]:
    return list(range(-len(shape), 0))


def _of_parameters(dtype: object, *arguments: object) -> str | None:
    return "gradients of parameters are sums over rows" if list(arguments[-1]) != [True, False, False] else None


@rows(
    aten.native_layer_norm_backward.default,
    dims=_backward_normalized,
    results=("element", "element", "element"),
    unless=_of_parameters,
)
def layer_norm_backward(
    call: Call,
    grad: Operand,
    x: Operand,
    shape: list[int],
    mean: Operand,
    rstd: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mask: list[bool],
) -> tuple[Value, None, None]:
    """rstd times what is left of the gradient without its mean and without its part along the normalized input."""
    g, scale = call(grad), call(rstd)
    if weight is not None:
        g = call.op("mul", g, call(weight))
    normal = call.op("mul", call.op("sub", call(x), call(mean)), scale)
    count = call.program.columns(g.type)
    along = call.op("div", call.op("sum", call.op("mul", g, normal)), count)
    rest = call.op("sub", g, call.op("div", call.op("sum", g), count))
    return call.op("mul", call.op("sub", rest, call.op("mul", normal, along)), scale), None, None
