"""Decompositions for the option ``round="eager"``: of operators whose kernels of low precision round each step.

torch's decompositions compute these in float32, and ours of a dropout scales by an unrounded number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fourfold.compiler.ir.dtypes import ROUNDED
from fourfold.compiler.lowering.decompositions import (
    decomposes,
    decompositions,
    dropout,
    is_empty,
    reduced,
    where_supported,
)

aten = torch.ops.aten
Function = Callable[..., object]
STEPS: dict[object, Function] = {}


def rounding_as_eager() -> dict[object, Function]:
    """The table for tracing."""
    found = decompositions()
    steps = {operator: where_supported(operator, own) for operator, own in STEPS.items()}
    return found | {operator: of_low_precision(own, found.get(operator)) for operator, own in steps.items()}


def of_low_precision(steps: Function, other: Function | None) -> Function:
    """The decomposition into these steps if all tensors have one dtype of low precision; otherwise the other one."""

    def apply(*args: object, **kwargs: object) -> object:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dtype != torch.bool]
        is_low = all(x.dtype == tensors[0].dtype and x.dtype in ROUNDED and x.device.type == "cpu" for x in tensors)
        result = steps(*args, **kwargs) if is_low else NotImplemented
        return other(*args, **kwargs) if result is NotImplemented and other else result

    return apply


def rounded(number: float, x: Tensor) -> Tensor:
    return torch.full((), number, dtype=x.dtype, device=x.device)


@decomposes(aten.native_dropout.default, STEPS)
def scaled_dropout(x: Tensor, p: float, train: bool | None) -> object:
    """Eager mode multiplies by a tensor of 0 and 1 / (1 - p)."""
    results = dropout(x, p, train)
    if results is NotImplemented or p == 1 or is_empty(x):
        return results
    return x * (results[1].to(x.dtype) / (1 - p)), results[1]


@decomposes(aten.native_dropout_backward.default, STEPS)
def scaled_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * (mask.to(grad.dtype) * scale)


@decomposes(aten.mse_loss.default, STEPS)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    apart = x - target
    return reduced(apart * apart, reduction)


@decomposes(aten.mse_loss_backward.default, STEPS)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return rounded(2 / x.numel() if reduction == 1 else 2, x) * (x - target) * grad


@decomposes(aten.huber_loss.default, STEPS)
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> object:
    if x.dtype == torch.float16:  # whose kernel computes in float32
        return NotImplemented
    apart = (x - target).abs()
    outside = rounded(delta, x) * (apart - rounded(0.5 * delta, x))
    return reduced(torch.where(apart <= delta, 0.5 * apart * apart, outside), reduction)


@decomposes(aten.huber_loss_backward.default, STEPS)
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    norm, most = rounded(1 / x.numel() if reduction == 1 else 1, x), rounded(delta, x)
    apart = x - target
    outside = torch.where(apart <= -most, -norm * grad * most, norm * grad * most)
    return torch.where(apart.abs() < most, norm * apart * grad, outside)


@decomposes(aten.smooth_l1_loss.default, STEPS)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> object:
    if x.dtype == torch.bfloat16 or beta <= 0:  # the kernel of bfloat16 computes in float32
        return NotImplemented
    apart, most = (x - target).abs(), rounded(beta, x)
    return reduced(torch.where(apart < most, 0.5 * apart * apart / most, apart - 0.5 * most), reduction)


@decomposes(aten.lerp.Scalar, STEPS)
@decomposes(aten.lerp.Tensor, STEPS)
def lerp(x: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """The kernel rounds the product and its sum once: in float64 neither rounds."""
    share = weight.float() if isinstance(weight, Tensor) else torch.full((), weight, device=x.device)
    is_near = share.abs() < 0.5
    factor, begin = torch.where(is_near, share, share - 1), torch.where(is_near, x, end)
    apart = end.float() - x.float()
    return (begin.double() + factor.double() * apart.double()).float().to(x.dtype)


@decomposes(aten._log_softmax.default, STEPS)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> object:
    """The kernel for the last dimension rounds the sum of a row, and its logarithm."""
    if half_to_float or x.dim() == 0 or dim % x.dim() != x.dim() - 1 or is_empty(x):
        return NotImplemented
    value = x.float()
    below = value - value.amax(dim, keepdim=True)
    return (below - below.exp().sum(dim, keepdim=True).to(x.dtype).log()).to(x.dtype).contiguous()


@decomposes(aten.binary_cross_entropy_backward.default, STEPS)
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    result = grad * (x - target) / ((1 - x) * x).clamp(min=1e-12)
    result = result if weight is None else result * weight
    return result / x.numel() if reduction == 1 else result


@decomposes(aten.binary_cross_entropy_with_logits.default, STEPS)
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    of_positive = F.logsigmoid(x) if pos_weight is None else F.logsigmoid(x) * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * x - of_positive
    return reduced(loss if weight is None else loss * weight, reduction)


@decomposes(aten.soft_margin_loss.default, STEPS)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return reduced((-target * x).exp().log1p(), reduction)


@decomposes(aten.soft_margin_loss_backward.default, STEPS)
def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    norm = 1 / x.numel() if reduction == 1 else 1
    z = torch.exp(-target * x)
    return -norm * target * z / (z + 1) * grad
