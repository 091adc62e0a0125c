"""Operators written in terms of others, chosen by hand: as they are traced, or later, where these are fused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm, suggest_memory_format

aten = torch.ops.aten
CONTIGUOUS = torch.contiguous_format

# By torch's own decompositions. A forward of binary_cross_entropy is none of them: torch checks its input.
TORCHS = (
    aten.binary_cross_entropy_backward.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.dist.default,
    aten.glu.default,
    aten.huber_loss_backward.default,
    aten.mse_loss.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss.default,
    aten.soft_margin_loss.default,
    aten.soft_margin_loss_backward.default,
    aten._prelu_kernel_backward.default,
    aten.native_group_norm_backward.default,
    aten._fused_rms_norm.default,
    aten._fused_rms_norm_backward.default,
)


# They stay one operator while a graph is traced.
FASTER_ALONE = frozenset(
    {
        aten._log_softmax.default,
        aten.native_layer_norm_backward.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
        aten.nll_loss_backward.default,
        aten.huber_loss.default,
        aten.huber_loss_backward.default,
        aten.smooth_l1_loss.default,
        aten.smooth_l1_loss_backward.default,
        aten.glu.default,
        aten.log_sigmoid_forward.default,
        aten._native_batch_norm_legit_no_training.default,
    }
)


def decompositions() -> dict[object, Callable[..., object]]:
    """By operator; torch's table is looked at when this is first called."""
    found = {operator: function for operator, function in always().items() if operator not in FASTER_ALONE}
    found |= {aten.huber_loss.default: huber_loss_of_two_dtypes}
    if not hasattr(torch.ops.prims, "fma"):
        return found
    # Made when Dynamo first writes it, for addcmul_ and addcdiv_ with a value, as optimizers call them.
    return found | {torch.ops.prims.fma.default: multiply_add}


@cache
def late() -> dict[object, Callable[..., object]]:
    """Those that torch's kernels compute faster alone: for the pass that replaces them where they are fused."""
    return {operator: function for operator, function in always().items() if operator in FASTER_ALONE}


@cache
def always() -> dict[object, Callable[..., object]]:
    from torch._decomp import get_decompositions

    return {
        aten._log_softmax.default: log_softmax,
        **get_decompositions(TORCHS),
        aten.cat.default: cat,
        aten.copysign.Tensor: functools.partial(laid_as_eager, aten.copysign.Tensor),
        aten.xlogy.Tensor: functools.partial(laid_as_eager, aten.xlogy.Tensor),
        aten.special_xlog1py.default: functools.partial(laid_as_eager, aten.special_xlog1py.default),
        aten.pow.Scalar: power_of_number,
        aten.huber_loss.default: huber_loss,
        aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
        aten.log_sigmoid_forward.default: log_sigmoid,
        aten.native_layer_norm_backward.default: layer_norm_backward,
        aten.native_group_norm.default: group_norm,
        aten._native_batch_norm_legit_no_training.default: batch_norm,
        aten.native_dropout.default: dropout,
        aten.nll_loss_backward.default: nll_loss_backward,
    }


def is_empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def is_real(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.is_floating_point()


def multiply_add(a: Tensor, b: Tensor | float, c: Tensor) -> Tensor:
    return a * b + c


def dropout(x: Tensor, p: float, train: bool | None) -> object:
    """torch draws what is kept, in the order that it does for eager code, which for p = 1 draws nothing; the rest is
    elementwise."""
    if train is False or not is_real(x):
        return NotImplemented
    if p == 1 or is_empty(x):  # of which torch's kernel gives a mask of another dtype than it traces
        return x * 0, torch.zeros_like(x, dtype=torch.bool)
    if not x.is_contiguous():
        return NotImplemented
    kept = aten.bernoulli.p(torch.empty(x.shape, dtype=torch.bool, device=x.device), 1 - p)
    return x * kept * (1 / (1 - p)), kept


def cat(tensors: Sequence[Tensor], dim: int = 0) -> object:
    """Without the parts that have no elements, as the keys and values of a cache before its first token."""
    parts = [x for x in tensors if not is_empty(x)]
    if not parts or len(parts) == len(tensors) or any(suggest_memory_format(x) != CONTIGUOUS for x in parts):
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    parts = [x.to(dtype) for x in parts]
    return aten.cat(parts, dim) if len(parts) > 1 else parts[0].clone(memory_format=CONTIGUOUS)


def laid_as_eager(operator: Callable[..., Tensor], x: Tensor, y: Tensor) -> object:
    """torch traces it by a formula that begins with y, whose layout the result then has instead of x's."""
    if x.is_contiguous() and y.is_contiguous():
        return NotImplemented
    first, second = torch.broadcast_tensors(x, y)
    order = compute_elementwise_output_logical_to_physical_perm(first, second)[0]
    if y.shape == first.shape and y.permute(order).is_contiguous():
        return NotImplemented
    back = sorted(range(len(order)), key=order.__getitem__)
    return operator(x, second.permute(order).contiguous().permute(back))


def power_of_number(base: float, x: Tensor) -> object:
    """Which torch's kernel gives contiguous."""
    return NotImplemented if x.is_contiguous() else aten.pow.Scalar(base, x.contiguous())


def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> object:
    """Of the input's dtype, whatever the target's."""
    common = torch.result_type(x, target)
    if not torch.can_cast(common, x.dtype):
        return NotImplemented
    apart = (x - target).abs()
    loss = torch.where(apart <= delta, 0.5 * apart * apart, delta * (apart - 0.5 * delta)).to(x.dtype)
    return reduced(loss, reduction)


def huber_loss_of_two_dtypes(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> object:
    """Which torch traces with another dtype than its kernel gives."""
    return NotImplemented if x.dtype == target.dtype else huber_loss(x, target, reduction, delta)


def reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """NaN where the difference is, as torch's kernel has it and torch's own decomposition does not."""
    apart = x - target
    scaled = grad / apart.numel() if reduction == 1 else grad
    inside = scaled * apart / beta
    return torch.where(apart <= -beta, -scaled, torch.where(apart >= beta, scaled, inside))


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    from torch._decomp.decompositions import log_sigmoid_forward

    result, buffer = log_sigmoid_forward(x)
    return result.contiguous(), buffer.contiguous()


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> object:
    """So that a backward can compute it again from two numbers of each row."""
    is_last = x.dim() > 0 and dim % x.dim() == x.dim() - 1
    if not is_last or is_empty(x) or not is_real(x) or x.dtype == torch.float64:  # torch's is faster
        return NotImplemented
    value = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    below = value - value.amax(dim, keepdim=True)
    result = below - below.exp().sum(dim, keepdim=True).log()
    return result.to(torch.float32 if half_to_float else x.dtype).contiguous()


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: Tensor,
) -> object:
    """Elementwise: what stands at the target's place."""
    if x.dim() != 2 or x.device.type != "cpu":
        return NotImplemented
    counted = target != ignored
    if weight is not None:
        grad = grad * weight.gather(0, torch.where(counted, target, 0))
    if reduction == 1:  # the mean; total_weight is what it was divided by
        grad = grad / total_weight
    own = torch.where(counted, -grad, 0).unsqueeze(1)
    places = torch.arange(x.shape[1], device=x.device)
    return torch.where(places == target.unsqueeze(1), own, 0).to(x.dtype)


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
    if not x.is_contiguous() or is_empty(x):
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
    result = result.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))
    return result, x.new_empty((0,)), x.new_empty((0,))
