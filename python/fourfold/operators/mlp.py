"""mlp: a network of one hidden layer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._operator import Operator, Outputs, gradients_of, in_compute_dtype, map_each


class Forward(NamedTuple):
    """The operator's arguments, in order."""

    x: Tensor
    hidden_weights: Tensor
    hidden_bias: Tensor | None
    output_weights: Tensor
    output_bias: Tensor | None
    save_for_backward: bool = True


class Backward(NamedTuple):
    """Its backward's."""

    grad: Tensor
    x: Tensor
    hidden_weights: Tensor
    hidden_bias: Tensor | None
    output_weights: Tensor
    output_bias: Tensor | None
    hidden: Tensor
    need_x: bool = True
    need_weights: bool = True


def _check_arguments(op: str, a: Forward | Backward) -> None:
    biases = {"hidden": a.hidden_bias, "output": a.output_bias}
    named = {f"{layer}_bias": bias for layer, bias in biases.items() if bias is not None}
    _check.expect_tensors(op, x=a.x, hidden_weights=a.hidden_weights, output_weights=a.output_weights, **named)
    _check.expect_floating(op, "x", a.x)
    _check.expect_dtype(op, "hidden_weights", a.hidden_weights, a.x.dtype)
    _check.expect_dtype(op, "output_weights", a.output_weights, a.x.dtype)
    if a.x.dim() == 0:
        raise ValueError(f"{op}: expected x to have shape (..., input_size), but got ()")
    _check.expect_shape(op, "hidden_weights", a.hidden_weights, hidden_size=None, input_size=a.x.shape[-1])
    sizes = {"hidden": a.hidden_weights.shape[0]}
    _check.expect_shape(op, "output_weights", a.output_weights, output_size=None, hidden_size=sizes["hidden"])
    sizes["output"] = a.output_weights.shape[0]
    for layer, bias in biases.items():
        if bias is not None:
            _check.expect_dtype(op, f"{layer}_bias", bias, a.x.dtype)
            _check.expect_bias(op, f"{layer}_bias", bias, f"{layer}_size", sizes[layer])
    _check.expect_countable(op, "x", *a.x.shape)
    _check.expect_countable(op, "hidden_weights", *a.hidden_weights.shape)
    _check.expect_countable(op, "output_weights", *a.output_weights.shape)
    batch = math.prod(a.x.shape[:-1])
    _check.expect_countable(op, "the hidden layer", batch, sizes["hidden"])
    _check.expect_countable(op, "the output", batch, sizes["output"])


def _check_backward(*args: Any) -> None:
    op, a = "mlp_backward", Backward(*args)
    _check_arguments(op, a)
    _check.expect_tensors(op, x=a.x, grad=a.grad)
    _check.expect_floating(op, "grad", a.grad)
    output = (*a.x.shape[:-1], a.output_weights.shape[0])
    if a.grad.shape != output:
        raise ValueError(
            f"{op}: expected grad to have output's shape (..., {output[-1]}), but got {_check.shape_of(a.grad)}"
        )
    _check.expect_kept(
        op,
        a.hidden,
        a.x,
        _check.kept_dtype(a.x),
        batch=math.prod(a.x.shape[:-1]),
        hidden_size=a.hidden_weights.shape[0],
    )


def _fake(*args: Any) -> Outputs:
    a = Forward(*args)
    kept = (math.prod(a.x.shape[:-1]), a.hidden_weights.shape[0]) if a.save_for_backward else (0,)
    return (
        a.x.new_empty(*a.x.shape[:-1], a.output_weights.shape[0]),
        a.x.new_empty(kept, dtype=_check.kept_dtype(a.x)),
    )


def _fake_backward(*args: Any) -> Outputs:
    a = Backward(*args)
    parameters = (a.hidden_weights, a.hidden_bias, a.output_weights, a.output_bias)
    return (
        a.x.new_empty(a.x.shape if a.need_x else (0,)),
        *(a.x.new_empty(p.shape if a.need_weights and p is not None else (0,)) for p in parameters),
    )


def _reference(*args: Any) -> Tensor:
    return reference.mlp(*args[:5])


def _reference_backward(*args: Any) -> Outputs:
    a = Backward(*args)
    arguments = (a.x, a.hidden_weights, a.hidden_bias, a.output_weights, a.output_bias)
    return gradients_of(_reference, arguments, [a.grad], (a.need_x, *(a.need_weights,) * 4))


def _setup_context(ctx: Any, inputs: tuple, output: Outputs) -> None:
    ctx.save_for_backward(*inputs[:5], output[1])


def _gradient(ctx: Any, grad: Tensor | None, _: None = None) -> tuple:
    if grad is None:
        return (None,) * 6
    saved = ctx.saved_tensors  # once: under checkpointing each access unpacks anew, and a second one is refused
    need_x, need_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:5])
    grads = BACKWARD(grad, *saved, need_x, need_weights)
    needed = (need_x, *(need_weights and p is not None for p in saved[1:5]))
    return (*(g if need else None for g, need in zip(grads, needed, strict=True)), None)


def _vmap(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is one more leading dimension of x."""
    if in_dims[0] is None or any(d is not None for d in in_dims[1:]):
        return map_each(operator, info, in_dims, *args)
    x = args[0].movedim(in_dims[0], 0)
    output, hidden = operator.op(x, *args[1:])
    size, batch = info.batch_size, math.prod(x.shape[1:-1])
    kept = hidden.expand(size, 0) if hidden.dim() == 1 else hidden.unflatten(0, (size, batch))
    return (output, kept), (0, 0)


FORWARD = Operator(
    "mlp",
    check=lambda *args: _check_arguments("mlp", Forward(*args)),
    fake=_fake,
    reference=in_compute_dtype(_reference),
    setup_context=_setup_context,
    backward=_gradient,
    saved=1,
    vmap=_vmap,
    casts=True,
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
        hidden_bias: (1, hidden_size) as in the tutorial that this network comes from, or (hidden_size,), or None.
        output_weights: (output_size, hidden_size).
        output_bias: (1, output_size), or (output_size,), or None.

    Returns:
        (..., output_size).

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes that do not fit together, tensors on different devices.
    """
    return FORWARD(x, hidden_weights, hidden_bias, output_weights, output_bias)[0]
