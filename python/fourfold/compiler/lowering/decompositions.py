"""Decompositions, chosen by hand: early ones apply while a graph is traced, late ones only if the pieces are fused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm, suggest_memory_format

from fourfold.compiler.analysis.iteration_space import reduced_dims
from fourfold.compiler.lowering import foreach
from fourfold.compiler.lowering.call import beyond
from fourfold.compiler.lowering.supported_by_eager import eager_supports

aten = torch.ops.aten
CONTIGUOUS = torch.contiguous_format
LOW = (torch.float16, torch.bfloat16)

Function = Callable[..., object]
# By operator. Late ones stay one operator while a graph is traced, because alone torch's kernel is faster.
EARLY: dict[object, Function] = {}
LATE: dict[object, Function] = {}

# Decomposed as torch does. Not the forward of binary_cross_entropy: torch's kernel checks its input.
DECOMPOSED_BY_TORCH = (
    aten.binary_cross_entropy_backward.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.dist.default,
    aten.mse_loss.default,
    aten.mse_loss_backward.default,
    aten.soft_margin_loss_backward.default,
    aten._prelu_kernel_backward.default,
    aten._fused_rms_norm.default,
    aten._fused_rms_norm_backward.default,
)
DECOMPOSED_LATE_BY_TORCH = (
    aten.glu.default,
    aten.huber_loss_backward.default,
)


def decompositions() -> dict[object, Function]:
    """The table for tracing, from torch's table and ours."""
    found = of_torch() | foreach.decompositions() | EARLY
    if not hasattr(torch.ops.prims, "fma"):
        return found
    # Exists only after Dynamo has created it, for addcmul_ and addcdiv_ with a value, as optimizers call them.
    return found | {torch.ops.prims.fma.default: multiply_add}


@functools.cache
def of_torch() -> dict[object, Function]:
    from torch._decomp import get_decompositions

    found = get_decompositions(DECOMPOSED_BY_TORCH)  # searches all that torch has
    return {operator: where_supported(operator, own) for operator, own in found.items()}


@functools.cache
def late() -> dict[object, Function]:
    """The table for the pass ``decompose``."""
    from torch._decomp import get_decompositions

    return get_decompositions(DECOMPOSED_LATE_BY_TORCH) | LATE


def decomposes(operator: object, table: dict[object, Function] = EARLY) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        table[operator] = function
        return function

    return register


def where_supported(operator: object, function: Function) -> Function:
    """The decomposition, of calls that torch's kernel computes."""

    @functools.wraps(function)
    def apply(*args: object, **kwargs: object) -> object:
        tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        is_on_cpu = all(each.device.type == "cpu" for each in tensors)
        return NotImplemented if is_on_cpu and not eager_supports(operator, args, kwargs) else function(*args, **kwargs)

    return apply


def is_empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def is_real(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.is_floating_point()


def computed(x: Tensor) -> Tensor:
    """x in the dtype in which torch's kernels compute."""
    return x.float() if x.dtype in LOW else x


def multiply_add(a: Tensor, b: Tensor | float, c: Tensor) -> Tensor:
    return a * b + c


@decomposes(aten.native_dropout.default)
def dropout(x: Tensor, p: float, train: bool | None) -> object:
    """torch draws the mask, in the order of eager mode, which draws nothing for p = 1; the rest is elementwise."""
    if train is False or not is_real(x):
        return NotImplemented
    if p == 1 or is_empty(x):  # torch traces a mask of another dtype than its kernel returns
        return x * 0, torch.zeros_like(x, dtype=torch.bool)
    if not x.is_contiguous():
        return NotImplemented
    kept = aten.bernoulli.p(torch.empty(x.shape, dtype=torch.bool, device=x.device), 1 - p)
    return x * kept * (1 / (1 - p)), kept


@decomposes(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> object:
    """Drops parts without elements, such as the keys and values of a cache before its first token."""
    parts = [x for x in tensors if not is_empty(x)]
    if not parts or len(parts) == len(tensors) or any(suggest_memory_format(x) != CONTIGUOUS for x in parts):
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    parts = [x.to(dtype) for x in parts]
    return aten.cat(parts, dim) if len(parts) > 1 else parts[0].clone(memory_format=CONTIGUOUS)


@decomposes(aten.linalg_cross.default)
def cross(a: Tensor, b: Tensor, *, dim: int = -1) -> object:
    """Of three elements, which torch's kernel takes one by one, whatever their layout."""
    if not is_real(a) or a.dtype != b.dtype or is_empty(a) or is_empty(b):
        return NotImplemented
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    return torch.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)


@decomposes(aten.constant_pad_nd.default, LATE)
def constant_pad(x: Tensor, pad: Sequence[int], value: float = 0) -> object:
    """Concatenations, one within the other if several dimensions are padded."""
    if not any(pad) or suggest_memory_format(x) != CONTIGUOUS or beyond(x.dtype, value):
        return NotImplemented
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        dim = x.dim() - 1 - k
        x = x.narrow(dim, max(-before, 0), x.shape[dim] + min(before, 0) + min(after, 0))
        parts = [border(x, dim, before, value), x, border(x, dim, after, value)]
        parts = [part for part in parts if part is not None]
        x = torch.cat(parts, dim) if len(parts) > 1 else x
    return x if max(pad) > 0 else x.clone(memory_format=CONTIGUOUS)


def border(x: Tensor, dim: int, count: int, value: float) -> Tensor | None:
    sizes = [*x.shape[:dim], count, *x.shape[dim + 1 :]]
    return torch.full(sizes, value, dtype=x.dtype, device=x.device) if count > 0 else None


@decomposes(aten.roll.default, LATE)
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> object:
    """A concatenation, like torch's kernel."""
    if len(shifts) != 1 or len(dims) != 1 or suggest_memory_format(x) != CONTIGUOUS:
        return NotImplemented
    dim = dims[0] % x.dim()
    size = x.shape[dim]
    if not all(isinstance(each, int) for each in (size, shifts[0])) or size == 0 or shifts[0] % size == 0:
        return NotImplemented
    start = -shifts[0] % size
    return torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)


def laid_as_eager(operator: Callable[..., Tensor], x: Tensor, y: Tensor) -> object:
    """torch traces a formula that begins with y, so the result has y's layout instead of x's."""
    if x.is_contiguous() and y.is_contiguous():
        return NotImplemented
    first, second = torch.broadcast_tensors(x, y)
    order = compute_elementwise_output_logical_to_physical_perm(first, second)[0]
    if y.shape == first.shape and y.permute(order).is_contiguous():
        return NotImplemented
    back = sorted(range(len(order)), key=order.__getitem__)
    return operator(x, second.permute(order).contiguous().permute(back))


EARLY |= {
    operator: functools.partial(laid_as_eager, operator)
    for operator in (aten.copysign.Tensor, aten.xlogy.Tensor, aten.special_xlog1py.default)
}


@decomposes(aten.var_mean.correction)
def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> object:
    """A program computes `var` in float64; `var_mean`, which norms are decomposed into, in the dtype."""
    if not is_real(x):
        return NotImplemented
    variance = aten.var.correction(x, dim, correction=correction, keepdim=keepdim)
    return variance, aten.mean.dim(x, dim, keepdim)


@decomposes(aten.pow.Scalar)
def power_of_number(base: float, x: Tensor) -> object:
    """torch's kernel returns a contiguous result."""
    return NotImplemented if x.is_contiguous() else aten.pow.Scalar(base, x.contiguous())


@decomposes(aten.huber_loss.default, LATE)
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> object:
    """The result has the input's dtype, whatever the target's."""
    are_real = x.is_floating_point() and target.is_floating_point()
    if not are_real or not torch.can_cast(torch.result_type(x, target), x.dtype):
        return NotImplemented
    apart = (computed(x) - computed(target)).abs()
    loss = torch.where(apart <= delta, 0.5 * apart * apart, delta * (apart - 0.5 * delta)).to(x.dtype)
    return reduced(loss, reduction)


@decomposes(aten.huber_loss.default)
def huber_loss_of_two_dtypes(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> object:
    """torch traces another dtype than its kernel returns."""
    return NotImplemented if x.dtype == target.dtype else huber_loss(x, target, reduction, delta)


@decomposes(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> object:
    """torch's decomposition has another dtype than its kernel, and another shape, where the target's differ."""
    from torch._decomp.decompositions import soft_margin_loss

    is_plain = x.is_floating_point() and x.dtype == target.dtype and x.shape == target.shape
    return soft_margin_loss(x, target, reduction) if is_plain else NotImplemented


def reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@decomposes(aten.smooth_l1_loss.default, LATE)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> object:
    """torch's kernel raises an error for a negative beta, and for integers."""
    from torch._decomp.decompositions import smooth_l1_loss

    is_plain = beta >= 0 and torch.result_type(x, target).is_floating_point
    return smooth_l1_loss(x, target, reduction, beta) if is_plain else NotImplemented


@decomposes(aten.smooth_l1_loss_backward.default, LATE)
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """NaN where the difference is NaN, as in torch's kernel but not in torch's decomposition."""
    dtype = torch.promote_types(grad.dtype, torch.result_type(x, target))
    grad, apart = computed(grad), computed(x) - computed(target)
    scaled = grad / apart.numel() if reduction == 1 else grad
    inside = scaled * apart / beta
    return torch.where(apart <= -beta, -scaled, torch.where(apart >= beta, scaled, inside)).to(dtype)


@decomposes(aten.log_sigmoid_forward.default, LATE)
def log_sigmoid(x: Tensor) -> object:
    from torch._decomp.decompositions import log_sigmoid_forward

    if not x.is_floating_point():
        return NotImplemented
    result, buffer = log_sigmoid_forward(x)
    return result.contiguous(), buffer.contiguous()


@decomposes(aten.log_sigmoid_backward.default, LATE)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> object:
    """On a GPU, where torch's forward saves nothing in the buffer."""
    if buffer.shape == x.shape:
        return NotImplemented
    value = computed(x)
    z = torch.exp(-torch.abs(value))
    part = z / (z + 1)
    return (grad * torch.where(value < 0, 1 - part, part)).to(x.dtype)


@decomposes(aten._log_softmax.default, LATE)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> object:
    """Decomposes into pieces from which a backward can recompute it with two saved numbers per row."""
    is_last = reduced_dims(dim, x.dim()) == [x.dim() - 1]
    # torch's kernel is faster for float64.
    if not is_last or is_empty(x) or not x.is_floating_point() or x.dtype == torch.float64:
        return NotImplemented
    value = computed(x)
    below = value - value.amax(dim, keepdim=True)
    result = below - below.exp().sum(dim, keepdim=True).log()
    return result.to(torch.float32 if half_to_float else x.dtype).contiguous()


@decomposes(aten.nll_loss_backward.default, LATE)
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, total_weight: Tensor
) -> object:
    """Elementwise, by comparing each position with the target."""
    if x.dim() != 2:
        return NotImplemented
    counted = target != ignored
    if weight is not None:
        grad = grad * weight.gather(0, torch.where(counted, target, 0))
    if reduction == 1:  # the mean; total_weight is its divisor
        grad = grad / total_weight
    own = torch.where(counted, -grad, 0).unsqueeze(1)
    places = torch.arange(x.shape[1], device=x.device)
    return torch.where(places == target.unsqueeze(1), own, 0).to(x.dtype)
