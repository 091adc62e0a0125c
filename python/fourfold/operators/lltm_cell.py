"""lltm_cell: one step of the LLTM."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._operator import Operator, Outputs, fold_batch, in_compute_dtype, map_each, vjp_of


def _check_arguments(op: str, x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None) -> None:
    named = {"x": x, "h": h, "c": c, "weights": weights} | ({} if bias is None else {"bias": bias})
    _check.expect_tensors(op, **named)
    _check.expect_floating(op, "x", x)
    for name, tensor in list(named.items())[1:4]:
        _check.expect_dtype(op, name, tensor, x.dtype)
    _check.expect_shape(op, "x", x, batch=None, input_size=None)
    _check.expect_shape(op, "h", h, batch=x.shape[0], hidden_size=None)
    hidden_size = h.shape[1]
    _check.expect_shape(op, "c", c, batch=x.shape[0], hidden_size=hidden_size)
    _check.expect_shape(op, "weights", weights, three_hidden=3 * hidden_size, hidden_and_input=hidden_size + x.shape[1])
    if bias is not None:
        _check.expect_dtype(op, "bias", bias, x.dtype)
        _check.expect_bias(op, "bias", bias, "3 * hidden_size", 3 * hidden_size)


def _check_forward(
    x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None = None, save_for_backward: bool = True
) -> None:
    _check_arguments("lltm_cell", x, h, c, weights, bias)


def _fake(
    x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None = None, save_for_backward: bool = True
) -> Outputs:
    batch, hidden_size = h.shape
    shape = (batch, 3 * hidden_size) if save_for_backward else (0,)
    return (
        h.new_empty(batch, hidden_size),
        h.new_empty(batch, hidden_size),
        h.new_empty(shape, dtype=_check.compute_dtype(x.dtype)),
    )


def _reference(
    x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None = None, save_for_backward: bool = True
) -> Outputs:
    return reference.lltm_cell(x, h, c, weights, bias)


def _setup_context(ctx: Any, inputs: tuple, output: Outputs) -> None:
    _, next_c, gates = output
    ctx.save_for_backward(*inputs[:5], next_c, gates)


def _gradient(ctx: Any, grad_next_h: Tensor | None, grad_next_c: Tensor | None, _: None = None) -> tuple:
    if grad_next_h is None and grad_next_c is None:
        return (None,) * 6
    x, h, c, weights, bias, next_c, gates = ctx.saved_tensors
    need_x, need_h, *_ = ctx.needs_input_grad
    need_weights = any(ctx.needs_input_grad[3:5])
    grad_x, grad_h, grad_c, grad_weights, grad_bias = BACKWARD(
        grad_next_h, grad_next_c, x, h, c, weights, bias, next_c, gates, need_x, need_h, need_weights
    )
    return (
        grad_x if need_x else None,
        grad_h if need_h else None,
        grad_c,
        grad_weights if need_weights else None,
        grad_bias if need_weights and bias is not None else None,
        None,
    )


def _vmap(
    operator: Operator, info: Any, in_dims: tuple, x: Tensor, h: Tensor, c: Tensor, weights: Tensor, *rest: Any
) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is more batch."""
    if any(d is not None for d in in_dims[3:]):
        return map_each(operator, info, in_dims, x, h, c, weights, *rest)
    size = info.batch_size
    folded = (fold_batch(t, d, size, 0) for t, d in zip((x, h, c), in_dims, strict=False))
    next_h, next_c, gates = operator.op(*folded, weights, *rest)
    if gates.dim() == 1:
        gates = gates.expand(size, 0)
    return tuple(t.unflatten(0, (size, -1)) if t.dim() == 2 and t.numel() else t for t in (next_h, next_c, gates)), 0


def _check_backward(
    grad_next_h: Tensor | None,
    grad_next_c: Tensor | None,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    next_c: Tensor,
    gates: Tensor,
    need_x: bool = True,
    need_h: bool = True,
    need_weights: bool = True,
) -> None:
    _check_arguments("lltm_cell_backward", x, h, c, weights, bias)


def _fake_backward(
    grad_next_h: Tensor | None,
    grad_next_c: Tensor | None,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    next_c: Tensor,
    gates: Tensor,
    need_x: bool = True,
    need_h: bool = True,
    need_weights: bool = True,
) -> Outputs:
    return (
        x.new_empty(x.shape if need_x else (0,)),
        h.new_empty(h.shape if need_h else (0,)),
        c.new_empty(c.shape),
        weights.new_empty(weights.shape if need_weights else (0,)),
        x.new_empty(bias.shape if need_weights and bias is not None else (0,)),
    )


def _reference_backward(
    grad_next_h: Tensor | None,
    grad_next_c: Tensor | None,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    next_c: Tensor,
    gates: Tensor,
    need_x: bool = True,
    need_h: bool = True,
    need_weights: bool = True,
) -> Outputs:
    """As a function of the forward's own arguments: what it kept is computed from them once more."""
    grads = vjp_of(in_compute_dtype(_reference), (x, h, c, weights, bias), (grad_next_h, grad_next_c))
    needed = (need_x, need_h, True, need_weights, need_weights)
    return tuple(g if need and g is not None else x.new_zeros(0) for g, need in zip(grads, needed, strict=True))


FORWARD = Operator(
    "lltm_cell",
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
    "lltm_cell_backward",
    check=_check_backward,
    fake=_fake_backward,
    reference=_reference_backward,
)


def lltm_cell(x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One step of the LLTM, the recurrent cell of PyTorch's C++ extension tutorial.

    With [i, o, g] = [h, x] Wᵀ + b:  c' = c + σ(i) elu(g),  h' = σ(o) tanh(c').

    Args:
        x: (batch, input_size); float16, bfloat16, float32 or float64. The two low precisions compute in float32.
        h, c: (batch, hidden_size), x's dtype.
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or (1, 3 * hidden_size), or None.

    Returns:
        (h', c'), each (batch, hidden_size).

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes that do not fit together, tensors on different devices.
    """
    arguments = (x, h, c, weights, bias)
    next_h, next_c, _ = FORWARD(*arguments)
    return next_h, next_c
