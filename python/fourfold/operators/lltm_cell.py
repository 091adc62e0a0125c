"""lltm_cell: one step of the LLTM."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._operator import (
    Operator,
    Outputs,
    fold_batch,
    gradients_of,
    in_compute_dtype,
    map_each,
    unmapped_shape,
)


class Forward(NamedTuple):
    """The operator's arguments, in order."""

    x: Tensor
    h: Tensor
    c: Tensor
    weights: Tensor
    bias: Tensor | None = None
    save_for_backward: bool = True


class Backward(NamedTuple):
    """Its backward's."""

    grad_next_h: Tensor | None
    grad_next_c: Tensor | None
    x: Tensor
    h: Tensor
    c: Tensor
    weights: Tensor
    bias: Tensor | None
    next_c: Tensor
    gates: Tensor
    need_x: bool = True
    need_h: bool = True
    need_weights: bool = True


def _check_arguments(op: str, a: Forward | Backward) -> None:
    named = {"x": a.x, "h": a.h, "c": a.c, "weights": a.weights} | ({} if a.bias is None else {"bias": a.bias})
    _check.expect_tensors(op, **named)
    _check.expect_floating(op, "x", a.x)
    _check.expect_dtype(op, "h", a.h, a.x.dtype)
    _check.expect_dtype(op, "c", a.c, a.x.dtype)
    _check.expect_shape(op, "x", a.x, batch=None, input_size=None)
    _check.expect_shape(op, "h", a.h, batch=a.x.shape[0], hidden_size=None)
    _check.expect_shape(op, "c", a.c, batch=a.x.shape[0], hidden_size=a.h.shape[1])
    _check.expect_countable(op, "x", *a.x.shape)
    _check.expect_countable(op, "h", *a.h.shape)
    _check.expect_lltm_parameters(op, a.x.dtype, a.x.shape[-1], a.h.shape[1], a.weights, a.bias)


def _check_backward(*args: Any) -> None:
    op, a = "lltm_cell_backward", Backward(*args)
    _check_arguments(op, a)
    state = {"batch": a.h.shape[0], "hidden_size": a.h.shape[1]}
    for name in ("grad_next_h", "grad_next_c", "next_c"):
        _check.expect_gradient(op, name, getattr(a, name), a.x, **state)
    _check.expect_kept(op, a.gates, a.x, _check.kept_dtype(a.x), batch=a.h.shape[0], three_hidden=3 * a.h.shape[1])


def _fake(*args: Any) -> Outputs:
    a = Forward(*args)
    batch, hidden_size = a.h.shape
    kept = (batch, 3 * hidden_size) if a.save_for_backward else (0,)
    return (
        a.h.new_empty(batch, hidden_size),
        a.h.new_empty(batch, hidden_size),
        a.h.new_empty(kept, dtype=_check.kept_dtype(a.x)),
    )


def _fake_backward(*args: Any) -> Outputs:
    a = Backward(*args)
    return (
        a.x.new_empty(a.x.shape if a.need_x else (0,)),
        a.h.new_empty(a.h.shape if a.need_h else (0,)),
        a.c.new_empty(a.c.shape),
        a.weights.new_empty(a.weights.shape if a.need_weights else (0,)),
        a.x.new_empty(a.bias.shape if a.need_weights and a.bias is not None else (0,)),
    )


def _reference(*args: Any) -> Outputs:
    return reference.lltm_cell(*args[:5])


def _reference_backward(*args: Any) -> Outputs:
    a = Backward(*args)
    arguments = (a.x, a.h, a.c, a.weights, a.bias)
    needed = (a.need_x, a.need_h, True, a.need_weights, a.need_weights)
    return gradients_of(_reference, arguments, (a.grad_next_h, a.grad_next_c), needed)


def _setup_context(ctx: Any, inputs: tuple, output: Outputs) -> None:
    _, next_c, gates = output
    ctx.save_for_backward(*inputs[:5], next_c.clone(), gates)  # a copy, so that a user may change c' in place


def _gradient(ctx: Any, grad_next_h: Tensor | None, grad_next_c: Tensor | None, unused: None = None) -> tuple:
    if grad_next_h is None and grad_next_c is None:
        return (None,) * 6
    saved = ctx.saved_tensors  # once: under checkpointing each access unpacks anew, and a second one is refused
    need_x, need_h, _, *parameters = ctx.needs_input_grad[:5]
    need_weights = any(parameters)
    grad_x, grad_h, grad_c, grad_weights, grad_bias = BACKWARD(
        grad_next_h, grad_next_c, *saved, need_x, need_h, need_weights
    )
    return (
        grad_x if need_x else None,
        grad_h if need_h else None,
        grad_c,
        grad_weights if need_weights else None,
        grad_bias if need_weights and saved[4] is not None else None,
        None,
    )


def _vmap(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is more batch."""
    if any(d is not None for d in in_dims[3:]):
        return map_each(operator, info, in_dims, *args)
    size, (x, h, c, *rest) = info.batch_size, args
    batch = unmapped_shape(h, in_dims[1])[0]
    folded = (fold_batch(t, d, size, 0) for t, d in zip((x, h, c), in_dims, strict=False))
    next_h, next_c, gates = operator.op(*folded, *rest)
    kept = gates.expand(size, 0) if gates.dim() == 1 else gates.unflatten(0, (size, batch))
    return (next_h.unflatten(0, (size, batch)), next_c.unflatten(0, (size, batch)), kept), (0, 0, 0)


FORWARD = Operator(
    "lltm_cell",
    check=lambda *args: _check_arguments("lltm_cell", Forward(*args)),
    fake=_fake,
    reference=in_compute_dtype(_reference),
    setup_context=_setup_context,
    backward=_gradient,
    saved=1,
    vmap=_vmap,
    casts=True,
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
    outputs = FORWARD(x, h, c, weights, bias)
    return outputs[0], outputs[1]
