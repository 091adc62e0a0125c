"""mlp: a network of one hidden layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._operator import Operator, Outputs, in_compute_dtype, map_each, vjp_of


def _check_arguments(
    op: str,
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
) -> None:
    biases = {"hidden_bias": hidden_bias, "output_bias": output_bias}
    biases = {name: bias for name, bias in biases.items() if bias is not None}
    _check.expect_tensors(op, x=x, hidden_weights=hidden_weights, output_weights=output_weights, **biases)
    _check.expect_floating(op, "x", x)
    _check.expect_dtype(op, "hidden_weights", hidden_weights, x.dtype)
    _check.expect_dtype(op, "output_weights", output_weights, x.dtype)
    if x.dim() == 0:
        raise ValueError(f"{op}: expected x to have shape (..., input_size), but got ()")
    _check.expect_shape(op, "hidden_weights", hidden_weights, hidden_size=None, input_size=x.shape[-1])
    _check.expect_shape(op, "output_weights", output_weights, output_size=None, hidden_size=hidden_weights.shape[0])
    sizes = {"hidden": hidden_weights.shape[0], "output": output_weights.shape[0]}
    for name, bias in biases.items():
        layer = name.removesuffix("_bias")
        _check.expect_dtype(op, name, bias, x.dtype)
        _check.expect_bias(op, name, bias, f"{layer}_size", sizes[layer])


def _check_forward(
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
    save_for_backward: bool = True,
) -> None:
    _check_arguments("mlp", x, hidden_weights, hidden_bias, output_weights, output_bias)


def _fake(
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
    save_for_backward: bool = True,
) -> Outputs:
    batch = 1
    for size in x.shape[:-1]:
        batch = batch * size
    hidden = (batch, hidden_weights.shape[0]) if save_for_backward else (0,)
    return (
        x.new_empty(*x.shape[:-1], output_weights.shape[0]),
        x.new_empty(hidden, dtype=_check.compute_dtype(x.dtype)),
    )


def _reference(
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
    save_for_backward: bool = True,
) -> Tensor:
    return reference.mlp(x, hidden_weights, hidden_bias, output_weights, output_bias)


def _setup_context(ctx: Any, inputs: tuple, output: Outputs) -> None:
    ctx.save_for_backward(*inputs[:5], output[1])


def _gradient(ctx: Any, grad: Tensor | None, _: None = None) -> tuple:
    if grad is None:
        return (None,) * 6
    *arguments, hidden = ctx.saved_tensors
    need_x, need_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:5])
    grads = BACKWARD(grad, *arguments, hidden, need_x, need_weights)
    needed = (need_x, *(need_weights and a is not None for a in arguments[1:]))
    return (*(g if need else None for g, need in zip(grads, needed, strict=True)), None)


def _vmap(operator: Operator, info: Any, in_dims: tuple, x: Tensor, *rest: Any) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is one more leading dimension of x."""
    if any(d is not None for d in in_dims[1:]) or in_dims[0] is None:
        return map_each(operator, info, in_dims, x, *rest)
    output, hidden = operator.op(x.movedim(in_dims[0], 0), *rest)
    rows = hidden.unflatten(0, (info.batch_size, -1)) if hidden.numel() else hidden.expand(info.batch_size, 0)
    return (output, rows), (0, 0)


def _check_backward(
    grad: Tensor,
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
    hidden: Tensor,
    need_x: bool = True,
    need_weights: bool = True,
) -> None:
    _check_arguments("mlp_backward", x, hidden_weights, hidden_bias, output_weights, output_bias)


def _fake_backward(
    grad: Tensor,
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
    hidden: Tensor,
    need_x: bool = True,
    need_weights: bool = True,
) -> Outputs:
    parameters = (hidden_weights, hidden_bias, output_weights, output_bias)
    return (
        x.new_empty(x.shape if need_x else (0,)),
        *(x.new_empty(p.shape if need_weights and p is not None else (0,)) for p in parameters),
    )


def _reference_backward(
    grad: Tensor,
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
    hidden: Tensor,
    need_x: bool = True,
    need_weights: bool = True,
) -> Outputs:
    arguments = (x, hidden_weights, hidden_bias, output_weights, output_bias)
    grads = vjp_of(in_compute_dtype(_reference), arguments, [grad])
    needed = (need_x, *(need_weights,) * 4)
    return tuple(g if need and g is not None else x.new_zeros(0) for g, need in zip(grads, needed, strict=True))


FORWARD = Operator(
    "mlp",
    check=_check_forward,
    fake=_fake,
    reference=in_compute_dtype(_reference),
    setup_context=_setup_context,
    backward=_gradient,
    saved=1,
    vmap=_vmap,
    casts=True,
    inference=(False,),
)
BACKWARD = Operator(
    "mlp_backward",
    check=_check_backward,
    fake=_fake_backward,
    reference=_reference_backward,
)


def mlp(
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
) -> Tensor:
    """A network of one hidden layer: relu(x W₁ᵀ + b₁) W₂ᵀ + b₂.

    Args:
        x: (..., input_size); float16, bfloat16, float32 or float64. The two low precisions compute in float32.
        hidden_weights: (hidden_size, input_size), x's dtype, as are all parameters.
        hidden_bias: (1, hidden_size) as in the walk-through that this network comes from, or (hidden_size,), or None.
        output_weights: (output_size, hidden_size).
        output_bias: (1, output_size), or (output_size,), or None.

    Returns:
        (..., output_size).

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes that do not fit together, tensors on different devices.
    """
    arguments = (x, hidden_weights, hidden_bias, output_weights, output_bias)
    output, _ = FORWARD(*arguments)
    return output
