"""lltm: the LLTM over a whole sequence, one layer and direction."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
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

    input: Tensor
    h_0: Tensor
    c_0: Tensor
    weights: Tensor
    bias: Tensor | None = None
    reverse: bool = False
    batch_sizes: Tensor | None = None
    save_for_backward: bool = True
    allow_tf32: bool = False


class Backward(NamedTuple):
    """Its backward's."""

    grad_output: Tensor | None
    grad_h_n: Tensor | None
    grad_c_n: Tensor | None
    input: Tensor
    h_0: Tensor
    c_0: Tensor
    weights: Tensor
    bias: Tensor | None
    reverse: bool
    batch_sizes: Tensor | None
    output: Tensor
    gates: Tensor
    cells: Tensor
    need_input: bool = True
    need_weights: bool = True
    allow_tf32: bool = False


def _check_arguments(op: str, a: Forward | Backward) -> None:
    named = {"input": a.input, "h_0": a.h_0, "c_0": a.c_0, "weights": a.weights}
    _check.expect_tensors(op, **named, **({} if a.bias is None else {"bias": a.bias}))
    _check.expect_floating(op, "input", a.input)
    _check.expect_dtype(op, "h_0", a.h_0, a.input.dtype)
    _check.expect_dtype(op, "c_0", a.c_0, a.input.dtype)
    if a.batch_sizes is None:
        _check.expect_shape(op, "input", a.input, time=None, batch=None, input_size=None)
        batch = a.input.shape[1]
    else:
        _check.expect_tensor(op, "batch_sizes", a.batch_sizes)
        if a.batch_sizes.device.type != "cpu" and not (a.batch_sizes.is_meta and a.input.is_meta):
            raise ValueError(f"{op}: expected batch_sizes to be on the CPU, but got {a.batch_sizes.device}")
        _check.expect_shape(op, "input", a.input, rows=None, input_size=None)
        batch = None
    _check.expect_shape(op, "h_0", a.h_0, batch=batch, hidden_size=None)
    batch, hidden_size = a.h_0.shape
    _check.expect_shape(op, "c_0", a.c_0, batch=batch, hidden_size=hidden_size)
    _check.expect_lltm_parameters(op, a.input, hidden_size, a.weights, a.bias)
    if a.batch_sizes is not None:
        _check.expect_dtype(op, "batch_sizes", a.batch_sizes, torch.int64)
        _check.expect_shape(op, "batch_sizes", a.batch_sizes, time=None)


def _check_backward(*args: Any) -> None:
    op, a = "lltm_backward", Backward(*args)
    _check_arguments(op, a)
    batch, hidden_size = a.h_0.shape
    state = {"batch": batch, "hidden_size": hidden_size}
    _check.expect_gradient(op, "grad_h_n", a.grad_h_n, a.input, **state)
    _check.expect_gradient(op, "grad_c_n", a.grad_c_n, a.input, **state)
    packed = a.batch_sizes is not None
    rows = a.input.shape[0] if packed else a.input.shape[0] * batch
    output = {"rows": rows} if packed else {"time": a.input.shape[0], "batch": batch}
    _check.expect_gradient(op, "output", a.output, a.input, **output, hidden_size=hidden_size)
    _check.expect_gradient(op, "grad_output", a.grad_output, a.input, **output, hidden_size=hidden_size)
    _check.expect_kept(op, a.gates, a.input, rows=rows, three_hidden=3 * hidden_size)
    _check.expect_kept(op, a.cells, a.input, rows=rows, hidden_size=hidden_size)


def _fake(*args: Any) -> Outputs:
    a = Forward(*args)
    hidden_size = a.h_0.shape[1]
    rows = a.input.shape[0] * a.input.shape[1] if a.batch_sizes is None else a.input.shape[0]
    dtype = _check.kept_dtype(a.input)
    return (
        a.input.new_empty(*a.input.shape[:-1], hidden_size),
        a.h_0.new_empty(a.h_0.shape),
        a.c_0.new_empty(a.c_0.shape),
        a.input.new_empty((rows, 3 * hidden_size) if a.save_for_backward else (0,), dtype=dtype),
        a.input.new_empty((rows, hidden_size) if a.save_for_backward else (0,), dtype=dtype),
    )


def _fake_backward(*args: Any) -> Outputs:
    a = Backward(*args)
    return (
        a.input.new_empty(a.input.shape if a.need_input else (0,)),
        a.h_0.new_empty(a.h_0.shape),
        a.c_0.new_empty(a.c_0.shape),
        a.weights.new_empty(a.weights.shape if a.need_weights else (0,)),
        a.input.new_empty(a.bias.shape if a.need_weights and a.bias is not None else (0,)),
    )


def _reference(*args: Any) -> Outputs:
    a = Forward(*args)
    if a.batch_sizes is not None:
        if _is_fake(a.batch_sizes):
            raise NotImplementedError(
                "lltm: forward-mode and second derivatives of packed input read batch_sizes, which a captured graph "
                "does not know; compute them outside torch.compile"
            )
        _check.expect_batch_sizes("lltm", a.batch_sizes, a.input.shape[0], a.h_0.shape[0])
    output, (h_n, c_n) = reference.lltm(*args[:7])
    return output, h_n, c_n


def _is_fake(tensor: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _reference_backward(*args: Any) -> Outputs:
    a = Backward(*args)
    arguments = (a.input, a.h_0, a.c_0, a.weights, a.bias, a.reverse, a.batch_sizes)
    needed = (a.need_input, True, True, a.need_weights, a.need_weights)
    return gradients_of(_reference, arguments, (a.grad_output, a.grad_h_n, a.grad_c_n), needed)


def _setup_context(ctx: Any, inputs: tuple, outputs: Outputs) -> None:
    a = Forward(*inputs)
    output, _, _, gates, cells = outputs
    ctx.save_for_backward(a.input, a.h_0, a.c_0, a.weights, a.bias, a.batch_sizes, output, gates, cells)
    ctx.reverse, ctx.allow_tf32 = a.reverse, a.allow_tf32


def _gradient(ctx: Any, *grads: Tensor | None) -> tuple:
    grad_output, grad_h_n, grad_c_n = grads[:3]
    if grad_output is None and grad_h_n is None and grad_c_n is None:
        return (None,) * 9
    input, h_0, c_0, weights, bias, batch_sizes, *kept = ctx.saved_tensors
    need_input, need_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3:5])
    layer = (input, h_0, c_0, weights, bias, ctx.reverse, batch_sizes)
    results = BACKWARD(grad_output, grad_h_n, grad_c_n, *layer, *kept, need_input, need_weights, ctx.allow_tf32)
    needed = (need_input, True, True, need_weights, need_weights and bias is not None)
    return (*(g if need else None for g, need in zip(results, needed, strict=True)), *(None,) * 4)


def _vmap(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is more batch; packed input has no batch dimension to fold."""
    a = Forward(*args)
    if a.batch_sizes is not None or any(d is not None for d in in_dims[3:]):
        return map_each(operator, info, in_dims, *args)
    size = info.batch_size
    time, batch = unmapped_shape(a.input, in_dims[0])[:2]
    state = zip(args[:3], in_dims, (1, 0, 0), strict=False)
    output, h_n, c_n, gates, cells = operator.op(*(fold_batch(t, d, size, dim) for t, d, dim in state), *args[3:])
    outputs = (
        output.unflatten(1, (size, batch)),
        h_n.unflatten(0, (size, batch)),
        c_n.unflatten(0, (size, batch)),
        *(_kept_rows(t, time, size, batch) for t in (gates, cells)),
    )
    return outputs, (1, 0, 0, 0, 0)


def _kept_rows(kept: Tensor, time: int, size: int, batch: int) -> Tensor:
    if kept.dim() == 1:
        return kept.expand(size, 0)
    columns = kept.shape[1]
    return kept.reshape(time, size, batch, columns).movedim(1, 0).reshape(size, time * batch, columns)


FORWARD = Operator(
    "lltm",
    check=lambda *args: _check_arguments("lltm", Forward(*args)),
    fake=_fake,
    reference=in_compute_dtype(_reference),
    setup_context=_setup_context,
    backward=_gradient,
    saved=2,
    vmap=_vmap,
    casts=True,
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
    settings = (_check.allows_tf32(input),) if isinstance(input, Tensor) else ()
    outputs = FORWARD(input, h_0, c_0, weights, bias, reverse, batch_sizes, True, *settings)
    return outputs[0], (outputs[1], outputs[2])
