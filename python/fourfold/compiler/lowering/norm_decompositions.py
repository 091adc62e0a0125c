"""Late decompositions of layer, group and batch norms: each layer, group or channel becomes a row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fourfold.compiler.analysis.iteration_space import covers_innermost
from fourfold.compiler.analysis.views import hint
from fourfold.compiler.ir.dtypes import statistics_dtype
from fourfold.compiler.lowering.decompositions import LATE, LOW, computed, decomposes, is_empty, is_real

aten = torch.ops.aten
# With fewer elements of a channel in each of several images, torch's batch norm is faster. Measured with AVX2, trained,
# with ReLU. A single image's, as in an instance norm, lie together.
FEWEST = 45


def eager_supports_parameters(x: Tensor, *others: Tensor | None) -> bool:
    """Whether torch's kernels for CPUs take these parameters and statistics: one-dimensional, of the input's dtype, or
    of float32 beside low precision. They raise an error for others."""
    given = [each for each in others if each is not None]
    dtypes = {each.dtype for each in given}
    if any(each.dim() != 1 for each in given):
        return False
    return x.device.type != "cpu" or dtypes <= {x.dtype} or x.dtype in LOW and dtypes == {torch.float32}


@decomposes(aten.native_layer_norm_backward.default, LATE)
def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: list[bool],
) -> object:
    """Separates the input's gradient from the parameters' gradients, which are sums over the rows."""
    rows = list(range(x.dim() - len(shape)))
    if not mask[0] or not any(mask[1:]) or not rows:
        return NotImplemented
    operator = aten.native_layer_norm_backward.default
    own = operator(grad, x, shape, mean, rstd, weight, bias, [True, False, False])[0]
    dtype = mean.dtype  # in which the kernel computes
    g = grad.to(dtype)
    of_weight = (g * ((x.to(dtype) - mean) * rstd)).sum(rows).to(weight.dtype) if mask[1] else None
    return own, of_weight, g.sum(rows).to(bias.dtype) if mask[2] else None


@decomposes(aten.native_group_norm.default, LATE)
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, size: int, groups: int, eps: float
) -> object:
    """Each group is a row."""
    if not x.is_contiguous() or is_empty(x) or not eager_supports_parameters(x, weight, bias):
        return NotImplemented
    shaped = computed(x.reshape(batch, groups, channels // groups, size))
    variance, mean = torch.var_mean(shaped, (2, 3), correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    result = (shaped - mean) * rstd
    for parameter, operation in ((weight, torch.mul), (bias, torch.add)):
        if parameter is not None:
            result = operation(result, parameter.reshape(1, groups, channels // groups, 1))
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    mean, rstd = (each.to(dtype).reshape(batch, groups) for each in (mean, rstd))
    return result.to(x.dtype).reshape(x.shape), mean, rstd


@decomposes(aten.native_group_norm_backward.default, LATE)
def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    mask: list[bool],
) -> object:
    """Uses two sums over each channel of an image: one program computes them, another one the input's gradient."""
    if not x.is_contiguous() or not is_real(x) or is_empty(x):
        return NotImplemented
    shape = batch, groups, channels // groups, size
    g, value = computed(grad).reshape(shape), x.reshape(shape)  # converted in both programs
    mean, rstd = (computed(each).reshape(batch, groups, 1, 1) for each in (mean, rstd))
    sums = (g * ((value - mean) * rstd)).sum(3, keepdim=True), g.sum(3, keepdim=True)
    own = None
    if mask[0]:
        scale = 1 if weight is None else weight.reshape(1, groups, -1, 1)
        slope, shift = ((each * scale).sum(2, keepdim=True) / (channels // groups * size) for each in sums)
        # Not in terms of the normalized input, which the first program would then have to write to memory.
        own = g * (rstd * scale) + ((mean - value) * (slope * rstd * rstd) - shift * rstd)
        own = own.to(x.dtype).reshape(x.shape)
    dtype = x.dtype if weight is None else weight.dtype
    return own, *(each.sum(0).reshape(channels).to(dtype) if mask[k + 1] else None for k, each in enumerate(sums))


@decomposes(aten._native_batch_norm_legit_no_training.default, LATE)
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> object:
    """Batch norm with known statistics, computed in float32: another program may write the scale to memory."""
    if not eager_supports_parameters(x, weight, bias, mean, variance):
        return NotImplemented
    scale = (computed(variance) + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    result = (x * of_channels(scale, x) + of_channels(shift, x)).to(x.dtype)
    result = result.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))
    nothing = x.new_empty((0,), dtype=statistics_dtype(x, weight, bias, mean))
    return result, nothing, nothing.clone()


@decomposes(aten._native_batch_norm_legit_functional.default, LATE)
def batch_norm_in_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """Each channel is a row. The running variance is updated with the unbiased variance."""
    over = reduced_by_channel(x)
    if not training or over is None or not eager_supports_parameters(x, weight, bias, running_mean, running_var):
        return NotImplemented
    value = computed(x)
    variance, mean = torch.var_mean(value, over, correction=1)
    taken = zip((mean, variance), (running_mean, running_var), strict=True)
    running = [(new * momentum + old * (1 - momentum)).to(old.dtype) for new, old in taken]
    dtype = statistics_dtype(x, weight, bias, running_mean)
    return *batch_normalized(value, weight, bias, eps, x.dtype, dtype), *running


@decomposes(aten._native_batch_norm_legit.no_stats, LATE)
def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> object:
    if not training or reduced_by_channel(x) is None or not eager_supports_parameters(x, weight, bias):
        return NotImplemented
    return batch_normalized(computed(x), weight, bias, eps, x.dtype, statistics_dtype(x, weight, bias))


def batch_normalized(
    value: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype, statistics: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and each channel's mean and reciprocal deviation. dtype, statistics: the dtypes of these."""
    over = [0, *range(2, value.dim())]
    variance, mean = torch.var_mean(value, over, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    result = (value - mean) * rstd
    if weight is not None:
        result = result * of_channels(weight, value)
    if bias is not None:
        result = result + of_channels(bias, value)
    return result.to(dtype), mean.squeeze(over).to(statistics), rstd.squeeze(over).to(statistics)


@decomposes(aten.native_batch_norm_backward.default, LATE)
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    training: bool,
    eps: float,
    mask: list[bool],
) -> object:
    """All three gradients come from two sums over each channel."""
    over = reduced_by_channel(x)
    if over is None:
        return NotImplemented
    if not training:
        mean, rstd = running_mean, (computed(running_var) + eps).rsqrt()
    g, value = computed(grad), computed(x)
    normal = (value - of_channels(mean, x)) * of_channels(rstd, x)
    scale = of_channels(rstd if weight is None else rstd * weight, x)
    own = centered(g, normal, over) if training else g
    dtype = x.dtype if weight is None else weight.dtype
    return (
        (own * scale).to(x.dtype) if mask[0] else None,
        (g * normal).sum(over).to(dtype) if mask[1] else None,
        g.sum(over).to(dtype) if mask[2] else None,
    )


def centered(grad: Tensor, normal: Tensor, over: list[int]) -> Tensor:
    """The gradient minus its mean and minus its projection on the normalized input."""
    return grad - grad.mean(over, keepdim=True) - normal * (grad * normal).mean(over, keepdim=True)


def reduced_by_channel(x: Tensor) -> list[int] | None:
    """The dimensions that a batch norm reduces, if a program can and is faster; None if torch's kernel has to."""
    over = [0, *range(2, x.dim())]
    is_dense = is_real(x) and x.is_contiguous() and not is_empty(x) and covers_innermost(over, x)
    are_adjacent = hint(x.shape[0]) == 1 or math.prod(map(hint, x.shape[2:])) >= FEWEST
    return over if is_dense and are_adjacent else None


def of_channels(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.reshape(1, -1, *[1] * (x.dim() - 2))
