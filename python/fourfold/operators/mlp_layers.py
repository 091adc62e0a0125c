"""mlp_layers: a network of any depth, one activation between its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourfold import reference
from fourfold.operators import _check, mlp
from fourfold.operators._listed import ListedOperator
from fourfold.operators._operator import (
    Operator,
    Outputs,
    _any_requires_grad,
    _is_grad_enabled,
    gradients_of,
    in_compute_dtype,
    map_each,
)

ACTIVATIONS = ("relu", "tanh", "gelu", "silu")


class Forward(NamedTuple):
    """The operator's arguments, in order."""

    x: Tensor
    weights: list[Tensor]
    biases: list[Tensor | None]
    activation: str = "relu"
    save_for_backward: bool = True
    need_weights: bool = True


class Backward(NamedTuple):
    """Its backward's."""

    grad: Tensor
    x: Tensor
    weights: list[Tensor]
    biases: list[Tensor | None]
    activation: str
    kept: Tensor
    needs: list[bool]


def _check_arguments(op: str, a: Forward | Backward) -> None:
    _check.expect_tensors(op, x=a.x)
    if a.activation not in ACTIVATIONS:
        raise ValueError(f"{op}: expected activation to be relu, tanh, gelu or silu, but got {a.activation}")
    _check.expect_floating(op, "x", a.x)
    if a.x.dim() == 0:
        raise ValueError(f"{op}: expected x to have shape (..., input_size), but got ()")
    if not a.weights:
        raise ValueError(f"{op}: expected weights to have a matrix for each layer, but got none")
    size, widths = a.x.shape[-1], [a.x.shape[-1]]
    for k, (w, b) in enumerate(zip(a.weights, a.biases, strict=True)):
        weights, bias = f"weights[{k}]", f"biases[{k}]"
        _check.expect_tensors(op, x=a.x, **{weights: w})
        _check.expect_dtype(op, weights, w, a.x.dtype)
        _check.expect_shape(op, weights, w, output_size=None, input_size=size)
        _check.expect_countable(op, weights, *w.shape)
        size = w.shape[0]
        widths.append(size)
        if b is not None:
            _check.expect_tensors(op, x=a.x, **{bias: b})
            _check.expect_dtype(op, bias, b, a.x.dtype)
            _check.expect_bias(op, bias, b, "output_size", size)
    _check.expect_countable(op, "x", *a.x.shape)
    rows = math.prod(a.x.shape[:-1])
    for width in widths:
        _check.expect_countable(op, "each layer's output", rows, width)
    _check.expect_countable(op, "all layers' outputs", rows, sum(widths))


def _keeps_bits(x: Tensor, activation: str) -> bool:
    """Whether a relu whose weights' gradients nobody wants is kept as bits: by the CPU's kernels."""
    return activation == "relu" and not x.is_cuda


def _kept_width(weights: list[Tensor], bits: bool) -> Any:
    return sum((w.shape[0] + 7) // 8 if bits else w.shape[0] for w in weights[:-1])


def _check_forward(*flat: Any) -> None:
    _check_arguments("mlp_layers", Forward(*FORWARD.nest(flat)))


def _check_backward(*flat: Any) -> None:
    op, a = "mlp_layers_backward", Backward(*BACKWARD.nest(flat))
    _check_arguments(op, a)
    _check.expect_tensors(op, x=a.x, grad=a.grad)
    _check.expect_floating(op, "grad", a.grad)
    output = (*a.x.shape[:-1], a.weights[-1].shape[0])
    if a.grad.shape != output:
        raise ValueError(
            f"{op}: expected grad to have output's shape (..., {output[-1]}), but got {_check.shape_of(a.grad)}"
        )
    count = len(a.weights)
    if len(a.needs) != 1 + 2 * count:
        raise ValueError(
            f"{op}: expected needs to say it of x, each weight and each bias, {1 + 2 * count} in all, but got "
            f"{len(a.needs)}"
        )
    bits = _keeps_bits(a.x, a.activation) and a.kept.dtype == torch.uint8
    _check.expect_kept(
        op,
        a.kept,
        a.x,
        torch.uint8 if bits else _check.kept_dtype(a.x),
        rows=math.prod(a.x.shape[:-1]),
        kept_size=_kept_width(a.weights, bits),
    )
    if bits and any(a.needs[1 : 1 + count]):
        raise ValueError(
            f"{op}: the forward call kept bits only, which are not enough for the weights' gradients; call it with "
            "need_weights=True"
        )


def _fake(*flat: Any) -> Outputs:
    a = Forward(*FORWARD.nest(flat))
    bits = not a.need_weights and _keeps_bits(a.x, a.activation)
    dtype = torch.uint8 if bits and a.save_for_backward else _check.kept_dtype(a.x)
    kept = (math.prod(a.x.shape[:-1]), _kept_width(a.weights, bits)) if a.save_for_backward else (0,)
    return a.x.new_empty(*a.x.shape[:-1], a.weights[-1].shape[0]), a.x.new_empty(kept, dtype=dtype)


def _fake_backward(*flat: Any) -> Outputs:
    a = Backward(*BACKWARD.nest(flat))
    arguments = (a.x, *a.weights, *a.biases)
    return tuple(
        a.x.new_empty(p.shape if need and p is not None else (0,)) for p, need in zip(arguments, a.needs, strict=True)
    )


def _reference(*flat: Any) -> Tensor:
    """Of the flat arguments that begin with x and end with the activation, or with what comes after it."""
    place = next(k for k, a in enumerate(flat) if isinstance(a, str))
    count = (place - 1) // 2
    return reference.mlp_layers(flat[0], flat[1 : 1 + count], flat[1 + count : place], flat[place])


def _reference_backward(*flat: Any) -> Outputs:
    a = Backward(*BACKWARD.nest(flat))
    return gradients_of(_reference, (a.x, *a.weights, *a.biases, a.activation), [a.grad], a.needs)


def _setup_context(ctx: Any, inputs: tuple, output: Outputs) -> None:
    *tensors, ctx.activation, _, _ = inputs
    ctx.save_for_backward(*tensors, output[1])


def _gradient(ctx: Any, grad: Tensor | None, _: None = None) -> tuple:
    if grad is None:
        return (None,) * len(ctx.needs_input_grad)
    needs = ctx.needs_input_grad[:-3]
    saved = ctx.saved_tensors  # once: under checkpointing each access unpacks anew, and a second one is refused
    end = len(saved) // 2  # of x and the weights
    try:
        if _is_grad_enabled() or not BACKWARD.is_plain():
            grads = BACKWARD(grad, *saved[:-1], ctx.activation, saved[-1], list(needs))
        else:
            grads = BACKWARD.kernel(grad, saved[0], saved[1:end], saved[end:-1], ctx.activation, saved[-1], needs)
    except RuntimeError:  # the road of all calls says what is wrong
        grads = BACKWARD(grad, *saved[:-1], ctx.activation, saved[-1], list(needs))
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), None, None, None)


def _vmap(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is one more leading dimension of x."""
    if in_dims[0] is None or any(d is not None for d in in_dims[1:]):
        return map_each(operator, info, in_dims, *args)
    x = args[0].movedim(in_dims[0], 0)
    output, kept = operator.op(x, *args[1:])
    size, rows = info.batch_size, math.prod(x.shape[1:-1])
    return (output, kept.expand(size, 0) if kept.dim() == 1 else kept.unflatten(0, (size, rows))), (0, 0)


def _vmap_backward(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """One call per element. functorch gives the list ``needs`` a list of dimensions."""
    return map_each(operator, info, (*in_dims[:-1], None), *args)


NAMES = ("weights", "biases")
FORWARD = ListedOperator(
    "mlp_layers",
    check=_check_forward,
    fake=_fake,
    reference=in_compute_dtype(_reference),
    setup_context=_setup_context,
    backward=_gradient,
    saved=1,
    vmap=_vmap,
    casts=True,
    lists_at=1,
    names=NAMES,
)
BACKWARD = ListedOperator(
    "mlp_layers_backward",
    check=_check_backward,
    fake=_fake_backward,
    reference=_reference_backward,
    vmap=_vmap_backward,
    lists_at=2,
    names=NAMES,
)


def mlp_layers(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    activation: str = "relu",
) -> Tensor:
    """Linear layers with an activation f between them: … f(f(x W₀ᵀ + b₀) W₁ᵀ + b₁) ….

    Args:
        x: (..., input_size); float16, bfloat16, float32 or float64. The two low precisions compute in float32.
        weights: a matrix (output_size, input_size) for each layer, at least one, as :class:`torch.nn.Linear` has it; of
            x's dtype, as are all parameters. A layer's input_size is the output_size of the one before.
        biases: for each layer (output_size,), or (1, output_size), or None; None for a network without.
        activation: "relu", "tanh", "gelu" (exact, by erf) or "silu"; after every layer but the last.

    Returns:
        (..., the last layer's output_size).

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes that do not fit together, tensors on different devices, an unknown activation, or not as many
            biases as weights.
    """
    if biases is None:
        biases = (None,) * len(weights)
    if not isinstance(x, Tensor) or not FORWARD.is_plain():
        return FORWARD(*FORWARD.flatten((x, weights, biases, activation)))[0]
    needs_grad = _is_grad_enabled() and _any_requires_grad(x, *weights, *biases)
    need_weights = needs_grad and _any_requires_grad(*weights)
    try:
        if activation == "relu" and len(weights) == len(biases) == 2 and need_weights == needs_grad:
            # The operator of such a network takes no lists, which cost more than its products may.
            arguments = (x, weights[0], biases[0], weights[1], biases[1], needs_grad)
            return (mlp.FORWARD.fast_function.apply if needs_grad else mlp.FORWARD.below_autograd)(*arguments)[0]
        if needs_grad:
            arguments = FORWARD.flatten((x, weights, biases, activation, True, need_weights))
            return FORWARD.fast_function.apply(*arguments)[0]
        return FORWARD.kernel(x, weights, biases, activation, False)[0]
    except (RuntimeError, TypeError):  # the road of all calls says what is wrong, or that nothing is
        return FORWARD(*FORWARD.flatten((x, weights, biases, activation)))[0]
