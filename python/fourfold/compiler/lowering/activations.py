"""Activations of torch.nn and their gradients."""

from __future__ import annotations

import math

import torch

from fourfold.compiler.lowering.arithmetic import clamp, is_nan
from fourfold.compiler.lowering.call import Argument, Call, Number, Operand, pointwise
from fourfold.compiler.dtypes import FLOAT32
from fourfold.compiler.ir import Value, single

aten = torch.ops.aten


@pointwise(aten.relu.default)
def relu(call: Call, x: Argument) -> Value:
    value = call(x)
    return call.where(call.op("lt", value, 0), 0, value)  # NaN and -0 pass


@pointwise(aten.threshold.default)
def threshold(call: Call, x: Argument, threshold: Number, value: Number) -> Value:
    return call.where(call.op("le", call.rounded(x), threshold), value, x)


@pointwise(aten.threshold_backward.default)
def threshold_backward(call: Call, grad: Argument, x: Argument, threshold: Number) -> Value:
    compared = call.rounded(x) if threshold else call(x)
    return call.where(call.op("le", compared, threshold), 0, grad)


@pointwise(aten.leaky_relu.default)
def leaky_relu(call: Call, x: Argument, negative_slope: Number = 0.01) -> Value:
    value = call(x)
    return call.where(call.op("gt", value, 0), value, call.op("mul", value, negative_slope))


@pointwise(aten.leaky_relu_backward.default)
def leaky_relu_backward(call: Call, grad: Argument, x: Argument, slope: Number, is_result: bool) -> Value:
    return call.where(call.op("gt", call(x), 0), grad, call.op("mul", call(grad), slope))


@pointwise(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    call: Call,
    grad: Argument,
    x: Argument,
    noise: Argument,
    lower: Number,
    upper: Number,
    training: bool,
    is_result: bool,
) -> Value:
    if training and upper - lower > 1e-6:
        return call.op("mul", call(grad), call(noise))
    return leaky_relu_backward(call, grad, x, (lower + upper) / 2, is_result)


@pointwise(aten._prelu_kernel.default)
def prelu(call: Call, x: Argument, weight: Argument) -> Value:
    value = call(x)
    return call.where(call.op("gt", value, 0), value, call.op("mul", call(weight), value))


@pointwise(aten.hardtanh.default)
def hardtanh(call: Call, x: Argument, min_val: Number = -1, max_val: Number = 1) -> Value:
    return clamp(call, x, min_val, max_val)


@pointwise(aten.hardtanh_backward.default)
def hardtanh_backward(call: Call, grad: Argument, x: Argument, min_val: Number, max_val: Number) -> Value:
    value = call.rounded(x)
    outside = call.either(call.op("le", value, min_val), call.op("ge", value, max_val))
    return call.where(outside, 0, grad)


def _six(call: Call, x: Argument) -> Value:
    """From -3 to 3, all the way from 0 to 6."""
    return call.lesser(call.greater(call.op("add", call(x), 3), 0), 6)


@pointwise(aten.hardsigmoid.default)
def hardsigmoid(call: Call, x: Argument) -> Value:
    return call.op("div", _six(call, x), 6)


@pointwise(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(call: Call, grad: Argument, x: Argument) -> Value:
    value = call.rounded(x)
    inside = call.both(call.op("gt", value, -3), call.op("lt", value, 3))
    return call.where(inside, call.op("mul", call(grad), single(1 / 6)), 0)  # torch's constant, of float64 too


@pointwise(aten.hardswish.default)
def hardswish(call: Call, x: Argument) -> Value:
    return call.op("div", call.op("mul", call(x), _six(call, x)), 6)


@pointwise(aten.hardswish_backward.default)
def hardswish_backward(call: Call, grad: Argument, x: Argument) -> Value:
    value, g = call.rounded(x), call(grad)
    between = call.op("mul", g, call.op("add", call.op("div", value, 3), 0.5))
    return call.where(call.op("le", value, -3), 0, call.where(call.op("lt", value, 3), between, g))


@pointwise(aten.hardshrink.default)
def hardshrink(call: Call, x: Argument, lambd: Number = 0.5) -> Value:
    value = call.rounded(x)
    inside = call.both(call.op("ge", value, call.op("neg", call(lambd))), call.op("le", value, lambd))
    return call.where(inside, 0, value)


@pointwise(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def hardshrink_backward(call: Call, grad: Argument, x: Argument, lambd: Number) -> Value:
    value = call.rounded(x)
    inside = call.both(call.op("ge", value, call.op("neg", call(lambd))), call.op("le", value, lambd))
    return call.where(inside, 0, grad)


@pointwise(aten.softshrink.default)
def softshrink(call: Call, x: Argument, lambd: Number = 0.5) -> Value:
    value = call(x)
    above, below = call.op("sub", value, lambd), call.op("add", value, lambd)
    inside = call.where(is_nan(call, value), value, 0)
    low = call.where(call.op("lt", value, call.op("neg", call(lambd))), below, inside)
    return call.where(call.op("gt", value, lambd), above, low)


@pointwise(aten.silu.default)
def silu(call: Call, x: Argument) -> Value:
    value = call(x)
    return call.op("mul", value, call.op("sigmoid", value))


@pointwise(aten.silu_backward.default)
def silu_backward(call: Call, grad: Argument, x: Argument) -> Value:
    value = call(x)
    s = call.op("sigmoid", value)
    slope = call.op("mul", s, call.op("add", call.op("mul", value, call.op("sub", 1, s)), 1))
    return call.op("mul", call(grad), slope)


def _soft_tanh(call: Call, value: Value) -> Value:
    return call.op("tanh", call.op("log1p", call.op("exp", value)))


@pointwise(aten.mish.default)
def mish(call: Call, x: Argument) -> Value:
    return call.op("mul", call(x), _soft_tanh(call, call(x)))


@pointwise(aten.mish_backward.default)
def mish_backward(call: Call, grad: Argument, x: Argument) -> Value:
    value, t = call(x), _soft_tanh(call, call(x))
    fall = call.op("sub", 1, call.op("mul", t, t))
    slope = call.op("add", t, call.op("mul", call.op("mul", value, call.op("sigmoid", value)), fall))
    return call.op("mul", call(grad), slope)


SQRT_HALF = math.sqrt(0.5)
SQRT_2_BY_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715  # of gelu's approximation by tanh
NEGLIGIBLE = 2.0**-80  # of exp(-x² / 2)


@pointwise(aten.gelu.default)
def gelu(call: Call, x: Argument, approximate: str = "none") -> Value:
    value = call(x)
    if approximate == "tanh":
        return call.op("mul", call.op("mul", value, 0.5), call.op("add", call.op("tanh", _gelu_inner(call, value)), 1))
    twice = call.op("add", call.op("erf", call.op("mul", value, SQRT_HALF)), 1)
    return call.op("mul", call.op("mul", value, 0.5), twice)


def _gelu_inner(call: Call, value: Value) -> Value:
    cube = call.op("mul", call.op("mul", value, value), value)
    return call.op("mul", call.op("add", value, call.op("mul", cube, CUBIC)), SQRT_2_BY_PI)


@pointwise(aten.gelu_backward.default)
def gelu_backward(call: Call, grad: Argument, x: Argument, approximate: str = "none") -> Value:
    value, square = call(x), call.op("mul", call(x), call(x))
    if approximate == "tanh":
        t = call.op("tanh", _gelu_inner(call, value))
        inner = call.op("mul", call.op("add", call.op("mul", square, 3 * CUBIC), 1), SQRT_2_BY_PI)
        left = call.op("mul", call.op("add", t, 1), 0.5)
        slope = call.op("mul", call.op("sub", 1, call.op("mul", t, t)), inner)
        right = call.op("mul", call.op("mul", value, 0.5), slope)
        return call.op("mul", call(grad), call.op("add", left, right))
    normal = call.op("mul", call.op("add", call.op("erf", call.op("mul", value, SQRT_HALF)), 1), 0.5)
    density = call.op("exp", call.op("mul", square, -0.5))
    if call.type == FLOAT32:  # so little is nothing beside the sum's rounding, and its products would be subnormal
        density = call.op("sub", density, NEGLIGIBLE)
    density = call.op("mul", density, 1 / math.sqrt(2 * math.pi))
    if call.type == FLOAT32:
        density = call.greater(density, 0)
    return call.op("mul", call(grad), call.op("add", normal, call.op("mul", value, density)))


@pointwise(aten.elu.default)
def elu(call: Call, x: Argument, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    value = call(x)
    negative = call.op("mul", call.op("expm1", call.op("mul", value, input_scale)), call.op("mul", alpha, scale))
    return call.where(call.op("lt", value, 0), negative, call.op("mul", value, scale))


@pointwise(aten.elu_backward.default)
def elu_backward(
    call: Call,
    grad: Argument,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    x: Argument,
) -> Value:
    value, g, most = call(x), call(grad), call.op("mul", alpha, scale)
    if is_result:
        slope = call.op("mul", call.op("add", value, most), input_scale)
    else:
        slope = call.op("mul", call.op("exp", call.op("mul", value, input_scale)), call.op("mul", input_scale, most))
    return call.where(call.op("le", value, 0), call.op("mul", g, slope), call.op("mul", g, scale))


@pointwise(aten.celu.default)
def celu(call: Call, x: Argument, alpha: Number = 1) -> Value:
    return elu(call, x, alpha, 1, 1 / alpha)


@pointwise(aten.softplus.default)
def softplus(call: Call, x: Argument, beta: Number = 1, threshold: Number = 20) -> Value:
    value = call(x)
    scaled = call.op("mul", value, beta)
    soft = call.op("div", call.op("log1p", call.op("exp", scaled)), beta)
    return call.where(call.op("gt", scaled, threshold), value, soft)


@pointwise(aten.softplus_backward.default)
def softplus_backward(call: Call, grad: Argument, x: Argument, beta: Number, threshold: Number) -> Value:
    scaled = call.op("mul", call(x), beta)
    z = call.op("exp", scaled)  # the forward's; a sigmoid would be zero where this is not
    slope = call.op("div", z, call.op("add", z, 1))
    return call.where(call.op("gt", scaled, threshold), grad, call.op("mul", call(grad), slope))


@pointwise(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(call: Call, grad: Argument, x: Argument, buffer: Argument) -> Value:
    """The slope is the sigmoid of -x, from buffer = exp(-|x|), which does not overflow."""
    z, negative = call(buffer), call.op("lt", call(x), 0)
    part = call.op("div", z, call.op("add", z, 1))
    slope = call.where(negative, call.op("sub", 1, part), part)
    return call.op("mul", call(grad), slope)


@pointwise(aten.native_dropout_backward.default)
def native_dropout_backward(call: Call, grad: Operand, mask: Argument, scale: Number) -> Value:
    """Integers are masked as such: a negative one gives no -0."""
    g = call(grad) if grad.dtype == torch.bool else grad.value
    return call.op("mul", call(call.op("mul", g, call(mask, g.type))), scale)
