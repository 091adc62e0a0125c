"""Activations of torch.nn and their gradients."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.ir.dtypes import FLOAT32
from fourfold.compiler.ir.values import (
    Value,
    erf,
    exp,
    expm1,
    is_nan,
    log1p,
    maximum,
    minimum,
    sigmoid,
    single,
    tanh,
    where,
)
from fourfold.compiler.lowering.call import Argument, Call, Number, Operand, Rounded, Scalar, pointwise

aten = torch.ops.aten


def _six(x: Value) -> Value:
    """0 below -3, x + 3 between, 6 above 3."""
    return minimum(maximum(x + 3, 0), 6)


def _soft_tanh(x: Value) -> Value:
    return tanh(log1p(exp(x)))


pointwise(aten.relu.default)(lambda x: where(x < 0, 0, x))  # NaN and -0 pass
pointwise(aten._prelu_kernel.default)(lambda x, weight: where(x > 0, x, weight * x))
pointwise(aten.hardsigmoid.default)(lambda x: _six(x) / 6)
pointwise(aten.hardswish.default)(lambda x: x * _six(x) / 6)
pointwise(aten.silu.default)(lambda x: x * sigmoid(x))
pointwise(aten.mish.default)(lambda x: x * _soft_tanh(x))


@pointwise(aten.leaky_relu.default)
def leaky_relu(x: Value, slope: Scalar) -> Value:
    return where(x > 0, x, x * slope)


@pointwise(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Value, x: Value, slope: Scalar) -> Value:
    return where(x > 0, grad, grad * slope)


@pointwise(aten.threshold.default)
def threshold(call: Call, x: Argument, threshold: Number, value: Value) -> Value:
    return where(call.rounded(x) <= threshold, value, call(x))


@pointwise(aten.threshold_backward.default)
def threshold_backward(call: Call, grad: Value, x: Argument, threshold: Number) -> Value:
    return where((call.rounded(x) if threshold else call(x)) <= threshold, 0, grad)


@pointwise(aten.rrelu_with_noise_backward.default)
def rrelu_backward(grad: Value, x: Value, noise: Value, lower: Number, upper: Number, training: bool) -> Value:
    if training and upper - lower > 1e-6:
        return grad * noise
    return where(x > 0, grad, grad * ((lower + upper) / 2))


@pointwise(aten.hardtanh_backward.default)
def hardtanh_backward(grad: Value, x: Rounded, low: Number, high: Number) -> Value:
    return where((x <= low) | (x >= high), 0, grad)


@pointwise(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad: Value, x: Rounded) -> Value:
    return where((x > -3) & (x < 3), grad * single(1 / 6), 0)  # torch's float32 constant, in float64 too


@pointwise(aten.hardswish_backward.default)
def hardswish_backward(grad: Value, x: Rounded) -> Value:
    return where(x <= -3, 0, where(x < 3, grad * (x / 3 + 0.5), grad))


@pointwise(aten.hardshrink.default)
def hardshrink(x: Rounded, lambd: Value) -> Value:
    return where((x >= -lambd) & (x <= lambd), 0, x)


@pointwise(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def hardshrink_backward(grad: Value, x: Rounded, lambd: Value) -> Value:
    return where((x >= -lambd) & (x <= lambd), 0, grad)


@pointwise(aten.softshrink.default)
def softshrink(x: Value, lambd: Scalar) -> Value:
    inside = where(is_nan(x), x, 0)
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, inside))


@pointwise(aten.silu_backward.default)
def silu_backward(grad: Value, x: Value) -> Value:
    s = sigmoid(x)
    return grad * (s * (x * (1 - s) + 1))


@pointwise(aten.mish_backward.default)
def mish_backward(grad: Value, x: Value) -> Value:
    t = _soft_tanh(x)
    return grad * (t + x * sigmoid(x) * (1 - t * t))


SQRT_HALF = math.sqrt(0.5)
SQRT_2_BY_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715  # of gelu's approximation by tanh
NEGLIGIBLE = 2.0**-80  # values of exp(-x² / 2) up to this count as 0


def _gelu_tanh(x: Value) -> Value:
    return tanh((x + x * x * x * CUBIC) * SQRT_2_BY_PI)


@pointwise(aten.gelu.default)
def gelu(x: Value, approximate: str) -> Value:
    return x * 0.5 * ((_gelu_tanh(x) if approximate == "tanh" else erf(x * SQRT_HALF)) + 1)


@pointwise(aten.gelu_backward.default)
def gelu_backward(grad: Value, x: Value, approximate: str) -> Value:
    if approximate == "tanh":
        t = _gelu_tanh(x)
        inner = (x * x * (3 * CUBIC) + 1) * SQRT_2_BY_PI
        return grad * ((t + 1) * 0.5 + x * 0.5 * ((1 - t * t) * inner))
    normal = (erf(x * SQRT_HALF) + 1) * 0.5
    density = exp(x * x * -0.5)
    if x.type == FLOAT32:  # a density this small vanishes in the sum, and its products would be subnormal
        density = density - NEGLIGIBLE
    density = density * (1 / math.sqrt(2 * math.pi))
    if x.type == FLOAT32:
        density = maximum(density, 0)
    return grad * (normal + x * density)


@pointwise(aten.elu.default)
def elu(x: Value, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Value:
    return where(x < 0, expm1(x * input_scale) * (alpha * scale), x * scale)


@pointwise(aten.elu_backward.default)
def elu_backward(grad: Value, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool, x: Value) -> Value:
    most = alpha * scale
    slope = (x + most) * input_scale if is_result else exp(x * input_scale) * (input_scale * most)
    return where(x <= 0, grad * slope, grad * scale)


@pointwise(aten.celu.default)
def celu(x: Value, alpha: Number) -> Value:
    return elu(x, alpha, 1, 1 / alpha)


@pointwise(aten.softplus.default)
def softplus(x: Value, beta: Number, threshold: Number) -> Value:
    return where(x * beta > threshold, x, log1p(exp(x * beta)) / beta)


@pointwise(aten.softplus_backward.default)
def softplus_backward(grad: Value, x: Value, beta: Number, threshold: Number) -> Value:
    z = exp(x * beta)  # as in the forward; a sigmoid would be zero for some x where this is not
    return where(x * beta > threshold, grad, grad * (z / (z + 1)))


@pointwise(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Value, x: Value, z: Value) -> Value:
    """The slope is the sigmoid of -x, from z = exp(-|x|), which does not overflow."""
    part = z / (z + 1)
    return grad * where(x < 0, 1 - part, part)


@pointwise(aten.native_dropout_backward.default)
def native_dropout_backward(call: Call, grad: Operand, mask: Argument, scale: Number) -> Value:
    """Integers are masked as integers, so that a negative one doesn't become -0."""
    g = call(grad) if grad.dtype == torch.bool else grad.value
    return call(g * call(mask, g.type)) * scale
