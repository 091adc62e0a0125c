"""lltm: the LLTM over a whole sequence, one layer and direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._operator import Operator, Outputs, fold_batch, in_compute_dtype, map_each, vjp_of


def _check_arguments(
    op: str,
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    batch_sizes: Tensor | None = None,
) -> None:
    named = {"input": input, "h_0": h_0, "c_0": c_0, "weights": weights} | ({} if bias is None else {"bias": bias})
    _check.expect_tensors(op, **named)
    _check.expect_floating(op, "input", input)
    for name, tensor in list(named.items())[1:4]:
        _check.expect_dtype(op, name, tensor, input.dtype)
    if batch_sizes is None:
        _check.expect_shape(op, "input", input, time=None, batch=None, input_size=None)
        batch = input.shape[1]
    else:
        _check.expect_tensors(op, batch_sizes=batch_sizes)
        _check.expect_shape(op, "input", input, rows=None, input_size=None)
        batch = None
    _check.expect_shape(op, "h_0", h_0, batch=batch, hidden_size=None)
    batch, hidden_size = h_0.shape
    _check.expect_shape(op, "c_0", c_0, batch=batch, hidden_size=hidden_size)
    _check.expect_shape(
        op, "weights", weights, three_hidden=3 * hidden_size, hidden_and_input=hidden_size + input.shape[-1]
    )
    if bias is not None:
        _check.expect_dtype(op, "bias", bias, input.dtype)
        _check.expect_bias(op, "bias", bias, "3 * hidden_size", 3 * hidden_size)
    if batch_sizes is not None:
        _check.expect_dtype(op, "batch_sizes", batch_sizes, torch.int64)
        _check.expect_shape(op, "batch_sizes", batch_sizes, time=None)


def _check_forward(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    save_for_backward: bool = True,
) -> None:
    _check_arguments("lltm", input, h_0, c_0, weights, bias, batch_sizes)


def _fake(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    save_for_backward: bool = True,
) -> Outputs:
    hidden_size = h_0.shape[1]
    rows = input.shape[0] * input.shape[1] if batch_sizes is None else input.shape[0]
    dtype = _check.compute_dtype(input.dtype)
    return (
        input.new_empty(*input.shape[:-1], hidden_size),
        h_0.new_empty(h_0.shape),
        c_0.new_empty(c_0.shape),
        input.new_empty((rows, 3 * hidden_size) if save_for_backward else (0,), dtype=dtype),
        input.new_empty((rows, hidden_size) if save_for_backward else (0,), dtype=dtype),
    )


def _reference(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    save_for_backward: bool = True,
) -> Outputs:
    output, (h_n, c_n) = reference.lltm(input, h_0, c_0, weights, bias, reverse, batch_sizes)
    return output, h_n, c_n


def _setup_context(ctx: Any, inputs: tuple, outputs: Outputs) -> None:
    input, h_0, c_0, weights, bias, ctx.reverse, batch_sizes, _ = inputs
    output, _, _, gates, cells = outputs
    ctx.save_for_backward(input, h_0, c_0, weights, bias, batch_sizes, output, gates, cells)


def _gradient(
    ctx: Any,
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    *_: None,
) -> tuple:
    if grad_output is None and grad_h_n is None and grad_c_n is None:
        return (None,) * 8
    input, h_0, c_0, weights, bias, batch_sizes, output, gates, cells = ctx.saved_tensors
    need_input, need_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3:5])
    grads = BACKWARD(
        grad_output,
        grad_h_n,
        grad_c_n,
        input,
        h_0,
        c_0,
        weights,
        bias,
        ctx.reverse,
        batch_sizes,
        output,
        gates,
        cells,
        need_input,
        need_weights,
    )
    needed = (need_input, True, True, need_weights, need_weights and bias is not None)
    return (*(g if need else None for g, need in zip(grads, needed, strict=True)), None, None, None)


def _vmap(
    operator: Operator, info: Any, in_dims: tuple, input: Tensor, h_0: Tensor, c_0: Tensor, *rest: Any
) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is more batch; packed input has no batch dimension to fold."""
    packed = len(rest) > 3 and rest[3] is not None
    if packed or any(d is not None for d in in_dims[3:]):
        return map_each(operator, info, in_dims, input, h_0, c_0, *rest)
    size, (time, batch) = info.batch_size, _without(input, in_dims[0]).shape[:2]
    folded = (fold_batch(t, d, size, dim) for t, d, dim in zip((input, h_0, c_0), in_dims, (1, 0, 0), strict=False))
    output, h_n, c_n, gates, cells = operator.op(*folded, *rest)
    hidden_size = h_n.shape[1]
    outputs = (
        output.reshape(time, size, batch, hidden_size),
        h_n.reshape(size, batch, hidden_size),
        c_n.reshape(size, batch, hidden_size),
        *(_saved_rows(t, time, size, batch) for t in (gates, cells)),
    )
    return outputs, (1, 0, 0, 0, 0)


def _without(tensor: Tensor, mapped: int | None) -> Tensor:
    return tensor if mapped is None else tensor.select(mapped, 0)


def _saved_rows(saved: Tensor, time: int, size: int, batch: int) -> Tensor:
    if saved.dim() == 1:
        return saved.expand(size, 0)
    columns = saved.shape[1]
    return saved.reshape(time, size, batch, columns).movedim(1, 0).reshape(size, time * batch, columns)


def _check_backward(
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    reverse: bool,
    batch_sizes: Tensor | None,
    *kept_and_needed: Any,
) -> None:
    _check_arguments("lltm_backward", input, h_0, c_0, weights, bias, batch_sizes)


def _fake_backward(
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    reverse: bool,
    batch_sizes: Tensor | None,
    output: Tensor,
    gates: Tensor,
    cells: Tensor,
    need_input: bool = True,
    need_weights: bool = True,
) -> Outputs:
    return (
        input.new_empty(input.shape if need_input else (0,)),
        h_0.new_empty(h_0.shape),
        c_0.new_empty(c_0.shape),
        weights.new_empty(weights.shape if need_weights else (0,)),
        input.new_empty(bias.shape if need_weights and bias is not None else (0,)),
    )


def _reference_backward(
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    reverse: bool,
    batch_sizes: Tensor | None,
    output: Tensor,
    gates: Tensor,
    cells: Tensor,
    need_input: bool = True,
    need_weights: bool = True,
) -> Outputs:
    """As a function of the forward's own arguments: what it kept is computed from them once more."""
    arguments = (input, h_0, c_0, weights, bias, reverse, batch_sizes)
    grads = vjp_of(in_compute_dtype(_reference), arguments, (grad_output, grad_h_n, grad_c_n))[:5]
    needed = (need_input, True, True, need_weights, need_weights)
    return tuple(g if need and g is not None else input.new_zeros(0) for g, need in zip(grads, needed, strict=True))


FORWARD = Operator(
    "lltm",
    check=_check_forward,
    fake=_fake,
    reference=in_compute_dtype(_reference),
    setup_context=_setup_context,
    backward=_gradient,
    saved=2,
    vmap=_vmap,
    casts=True,
    inference=(False,),
)
BACKWARD = Operator(
    "lltm_backward",
    check=_check_backward,
    fake=_fake_backward,
    reference=_reference_backward,
)


def lltm(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The LLTM over a whole sequence in one call; :func:`lltm_cell` gives the formula of a step.

    Args:
        input: (time, batch, input_size), or (rows, input_size) when packed; float16, bfloat16, float32 or float64. The
            two low precisions compute in float32, the state between steps included.
        h_0, c_0: (batch, hidden_size), input's dtype.
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or (1, 3 * hidden_size), or None.
        reverse: run from the last step to the first.
        batch_sizes: (time), int64, on the CPU: of packed input, how many rows each step has, as in
            :class:`torch.nn.utils.rnn.PackedSequence`. It begins with batch and never rises.

    Returns:
        output, (h_n, c_n): output has input's shape with hidden_size last; the state after the last step that each row
        takes part in, (batch, hidden_size) each.

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes or batch_sizes that do not fit together, tensors on different devices.
    """
    arguments = (input, h_0, c_0, weights, bias, reverse, batch_sizes)
    output, h_n, c_n, _, _ = FORWARD(*arguments)
    return output, (h_n, c_n)
