"""Softmax and layer norm, with their gradients: reductions whose results have an element per input element."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.ir.values import Value, amax, exp, log, rsqrt, sum_, where
from fourfold.compiler.lowering.call import Number, rows
from fourfold.compiler.lowering.reductions import center, count, variance

aten = torch.ops.aten
ELEMENT = ("element",)


def softmax(x: Value) -> Value:
    e = exp(x - amax(x))
    return e / sum_(e)


rows(aten._softmax.default, results=ELEMENT)(softmax)
rows(aten._safe_softmax.default, results=ELEMENT)(lambda x: where(amax(x).eq(-math.inf), 0, softmax(x)))
rows(aten._softmax_backward_data.default, results=ELEMENT)(lambda grad, y: (grad - sum_(grad * y)) * y)
rows(aten._log_softmax_backward_data.default, results=ELEMENT)(lambda grad, y: grad - exp(y) * sum_(grad))


@rows(aten._log_softmax.default, results=ELEMENT)
def log_softmax(x: Value) -> Value:
    below = x - amax(x)
    return below - log(sum_(exp(below)))


@rows(aten.native_layer_norm.default, results=("element", "keep", "keep"))
def layer_norm(x: Value, shape: object, weight: Value | None, bias: Value | None, eps: Number) -> tuple[Value, ...]:
    average = center(x)
    rstd = rsqrt(variance(x, average, 0) + eps)
    normal = (x - average) * rstd
    scaled = normal if weight is None else normal * weight
    return (scaled if bias is None else scaled + bias), average, rstd


def _of_parameters(dtype: object, *arguments: object) -> str | None:
    return "gradients of parameters are sums over rows" if list(arguments[-1]) != [True, False, False] else None


@rows(aten.native_layer_norm_backward.default, results=ELEMENT * 3, unless=_of_parameters)
def layer_norm_backward(
    grad: Value, x: Value, shape: object, average: Value, rstd: Value, weight: Value | None
) -> tuple[Value, None, None]:
    """rstd times the gradient minus its mean and minus its projection on the normalized input."""
    g = grad if weight is None else grad * weight
    normal = (x - average) * rstd
    return (g - sum_(g) / count(g) - normal * (sum_(g * normal) / count(g))) * rstd, None, None
