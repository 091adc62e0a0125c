"""Operators that torch writes in terms of others as they are traced, chosen by hand: where these are fused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

aten = torch.ops.aten

# By torch's own decompositions. A forward of binary_cross_entropy is none of them: torch checks its input.
TORCHS = (
    aten.binary_cross_entropy_backward.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.dist.default,
    aten.glu.default,
    aten.huber_loss.default,
    aten.huber_loss_backward.default,
    aten.log_sigmoid_forward.default,
    aten.mse_loss.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss.default,
    aten.smooth_l1_loss_backward.default,
    aten.soft_margin_loss.default,
    aten.soft_margin_loss_backward.default,
    aten._prelu_kernel_backward.default,
    aten.native_group_norm_backward.default,
    aten._fused_rms_norm.default,
    aten._fused_rms_norm_backward.default,
)


@cache
def decompositions() -> dict[object, Callable[..., object]]:
    """By operator; torch's table is looked at when this is first called."""
    from torch._decomp import get_decompositions

    return {
        **get_decompositions(TORCHS),
        aten.native_layer_norm_backward.default: layer_norm_backward,
        aten.native_group_norm.default: group_norm,
        aten._native_batch_norm_legit_no_training.default: batch_norm,
    }


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
    """The input's gradient apart from the parameters', which are sums over the rows."""
    rows = list(range(x.dim() - len(shape)))
    if not mask[0] or not any(mask[1:]) or not rows:
        return NotImplemented
    operator = aten.native_layer_norm_backward.default
    own = operator(grad, x, shape, mean, rstd, weight, bias, [True, False, False])[0]
    dtype = mean.dtype  # what is computed in
    g = grad.to(dtype)
    of_weight = (g * ((x.to(dtype) - mean) * rstd)).sum(rows).to(weight.dtype) if mask[1] else None
    return own, of_weight, g.sum(rows).to(bias.dtype) if mask[2] else None


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> object:
    """A group is a row."""
    if not x.is_contiguous() or isinstance(x.numel(), int) and x.numel() == 0:
        return NotImplemented
    shaped = x.reshape(batch, groups, channels // groups, size)
    if x.dtype in (torch.float16, torch.bfloat16):
        shaped = shaped.float()
    variance, mean = torch.var_mean(shaped, (2, 3), correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    result = (shaped - mean) * rstd
    for parameter, operation in ((weight, torch.mul), (bias, torch.add)):
        if parameter is not None:
            result = operation(result, parameter.reshape(1, groups, channels // groups, 1))
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    mean, rstd = (each.to(dtype).reshape(batch, groups) for each in (mean, rstd))
    return result.to(x.dtype).reshape(x.shape), mean, rstd


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """By statistics that are known."""
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    result = (x * scale.reshape(shape) + shift.reshape(shape)).to(x.dtype)
    return result, x.new_empty((0,)), x.new_empty((0,))
