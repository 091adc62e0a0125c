"""What the recurrent operators share: from a cell's description, checks, fake kernels, gradients and vmap rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent operator's description.

    Forward, Backward: the arguments of the operator and of its backward, named tuples in their order.
    states: the names of what a step hands to the next.
    gates: the rows of weights of one hidden unit. kept: the values of one that the forward keeps for the backward.
    parameters: the arguments that hold the weights, in order.
    check_parameters: raises for parameters that do not fit ``input`` and the hidden size.
    definition: the operator in plain torch; returns the output and the final state.
    """

    name: str
    Forward: type
    Backward: type
    states: tuple[str, ...]
    gates: int
    kept: int
    parameters: tuple[str, ...]
    check_parameters: Callable[[str, Any, Any], None]
    definition: Callable[..., tuple]

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The arguments that have a gradient, in order."""
        return ("input", *(f"{s}_0" for s in self.states), *self.parameters)

    def kept_shapes(self, rows: Any, hidden_size: Any) -> list[tuple]:
        """Of what the forward keeps: the gates, and of each state but h every step's."""
        return [(rows, self.kept * hidden_size), *((rows, hidden_size) for _ in self.states[1:])]


def rows_of(a: Any) -> Any:
    return a.input.shape[0] if a.batch_sizes is not None else a.input.shape[0] * a.input.shape[1]


def check_arguments(cell: Cell, op: str, a: Any) -> None:
    named = {name: getattr(a, name, None) for name in (*cell.differentiable, "reset", "packed")}
    _check.expect_tensors(op, **{name: tensor for name, tensor in named.items() if tensor is not None})
    _check.expect_floating(op, "input", a.input)
    for state in cell.states:
        _check.expect_dtype(op, f"{state}_0", named[f"{state}_0"], a.input.dtype)
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
    for state in cell.states[1:]:
        _check.expect_shape(op, f"{state}_0", named[f"{state}_0"], batch=batch, hidden_size=hidden_size)
    _check.expect_countable(op, "input", *a.input.shape)
    _check.expect_countable(op, "h_0", *a.h_0.shape)
    if a.reset is not None:
        _check.expect_dtype(op, "reset", a.reset, torch.bool)
        steps = {"rows": a.input.shape[0]} if a.batch_sizes is not None else {"time": a.input.shape[0], "batch": batch}
        _check.expect_shape(op, "reset", a.reset, **steps)
    _check.expect_countable(op, "what is kept of each step", rows_of(a), cell.kept * hidden_size)
    cell.check_parameters(op, a, hidden_size)
    if a.batch_sizes is not None:
        _check.expect_dtype(op, "batch_sizes", a.batch_sizes, torch.int64)
        _check.expect_shape(op, "batch_sizes", a.batch_sizes, time=None)
    if named["packed"] is not None:
        _check.expect_packed(op, named["packed"])


def expect_gates(gates: int) -> Callable[[str, Any, Any], None]:
    """The check of parameters that lie as torch.nn.LSTM and GRU have them."""

    def check(op: str, a: Any, hidden_size: Any) -> None:
        weights = {"weight_ih": a.weight_ih, "weight_hh": a.weight_hh}
        biases = {"bias_ih": a.bias_ih, "bias_hh": a.bias_hh}
        _check.expect_gate_parameters(op, a.input, hidden_size, gates, weights, biases)

    return check


def _check_backward(cell: Cell, *args: Any) -> None:
    op, a = f"{cell.name}_backward", cell.Backward(*args)
    check_arguments(cell, op, a)
    batch, hidden_size = a.h_0.shape
    for state in cell.states:
        grad = getattr(a, f"grad_{state}_n")
        _check.expect_gradient(op, f"grad_{state}_n", grad, a.input, batch=batch, hidden_size=hidden_size)
    rows = rows_of(a)
    output = {"rows": rows} if a.batch_sizes is not None else {"time": a.input.shape[0], "batch": batch}
    _check.expect_gradient(op, "output", a.output, a.input, **output, hidden_size=hidden_size)
    _check.expect_gradient(op, "grad_output", a.grad_output, a.input, **output, hidden_size=hidden_size)
    kept = (a.gates, a.cells) if len(cell.states) > 1 else (a.gates,)
    names = (_check.multiple_of_hidden(cell.kept), "hidden_size")
    for tensor, name, shape in zip(kept, names, cell.kept_shapes(rows, hidden_size), strict=False):
        _check.expect_kept(op, tensor, a.input, kept_dtype(a.input), **{"rows": rows, name: shape[1]})


def kept_dtype(like: Tensor) -> torch.dtype:
    """bfloat16 is kept as it is, whatever it is computed in; float16 is computed in float32 on a CPU, and kept so."""
    return like.dtype if like.dtype == torch.bfloat16 else _check.kept_dtype(like)


def _fake(cell: Cell, *args: Any) -> Outputs:
    a = cell.Forward(*args)
    hidden_size = a.h_0.shape[1]
    kept = cell.kept_shapes(rows_of(a), hidden_size) if a.save_for_backward else [(0,)] * len(cell.states)
    return (
        a.input.new_empty(*a.input.shape[:-1], hidden_size),
        *(a.h_0.new_empty(a.h_0.shape) for _ in cell.states),
        *(a.input.new_empty(shape, dtype=kept_dtype(a.input)) for shape in kept),
    )


def _fake_backward(cell: Cell, *args: Any) -> Outputs:
    a = cell.Backward(*args)
    parameters = (getattr(a, name) for name in cell.parameters)
    return (
        a.input.new_empty(a.input.shape if a.need_input else (0,)),
        *(a.h_0.new_empty(a.h_0.shape if a.need_states else (0,)) for _ in cell.states),
        *(a.input.new_empty(p.shape if a.need_weights and p is not None else (0,)) for p in parameters),
    )


def _reference(cell: Cell, *args: Any) -> Outputs:
    a = cell.Forward(*args)
    if a.batch_sizes is not None:
        if _is_fake(a.batch_sizes):
            raise NotImplementedError(
                f"{cell.name}: forward-mode and second derivatives of packed input read batch_sizes, which a captured "
                "graph does not know; compute them outside torch.compile"
            )
        _check.expect_batch_sizes(cell.name, a.batch_sizes, a.input.shape[0], a.h_0.shape[0])
    names = (*cell.differentiable, "reverse", "batch_sizes", "reset")
    output, state = cell.definition(**{name: getattr(a, name) for name in names})
    return (output, *state) if isinstance(state, tuple) else (output, state)


def _is_fake(tensor: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _reference_backward(cell: Cell, *args: Any) -> Outputs:
    a = cell.Backward(*args)
    names = (*cell.differentiable, "reverse", "batch_sizes", "reset")
    given = cell.Forward(**{name: getattr(a, name) for name in names})
    grads = [a.grad_output, *(getattr(a, f"grad_{state}_n") for state in cell.states)]
    needed = (a.need_input, *(a.need_states for _ in cell.states), *(a.need_weights for _ in cell.parameters))
    return gradients_of(lambda *arguments: _reference(cell, *arguments), tuple(given), grads, needed)


def _vmap(cell: Cell, operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """With the parameters unmapped, the mapped dimension is more batch; packed input has no batch dimension to fold."""
    a, dims = cell.Forward(*args), cell.Forward(*in_dims)
    states = [f"{state}_0" for state in cell.states]
    folded = {"input": 1, "reset": 1, **dict.fromkeys(states, 0)}
    mapped = any(getattr(dims, name) is not None for name in cell.Forward._fields if name not in folded)
    if a.batch_sizes is not None or mapped:
        return map_each(operator, info, in_dims, *args)
    size = info.batch_size
    time, batch = unmapped_shape(a.input, dims.input)[:2]
    whole = {
        name: fold_batch(getattr(a, name), getattr(dims, name), size, dim)
        for name, dim in folded.items()
        if getattr(a, name) is not None
    }
    output, *others = operator.op(*a._replace(**whole))
    outputs = (
        output.unflatten(1, (size, batch)),
        *(state.unflatten(0, (size, batch)) for state in others[: len(states)]),
        *(_kept_rows(kept, time, size, batch) for kept in others[len(states) :]),
    )
    return outputs, (1, *(0 for _ in others))


def _kept_rows(kept: Tensor, time: int, size: int, batch: int) -> Tensor:
    if kept.dim() == 1:
        return kept.expand(size, 0)
    columns = kept.shape[1]
    return kept.reshape(time, size, batch, columns).movedim(1, 0).reshape(size, time * batch, columns)


def declare(cell: Cell) -> tuple[Operator, Operator]:
    """The operator and its backward."""
    fields = cell.Forward._fields
    first_parameter = 1 + len(cell.states)
    places = [fields.index(name) for name in (*cell.differentiable, "batch_sizes", "reset")]
    reverse, allow_tf32 = fields.index("reverse"), fields.index("allow_tf32")
    kept = slice(first_parameter, None)
    tail = (None,) * (len(fields) - len(cell.differentiable))

    def setup_context(ctx: Any, inputs: tuple, outputs: Outputs) -> None:
        # A copy, so that a user may change the output in place, as torch.nn's layers allow.
        ctx.save_for_backward(*(inputs[k] for k in places), outputs[0].clone(), *outputs[kept])
        ctx.reverse, ctx.allow_tf32 = inputs[reverse], inputs[allow_tf32]

    def gradient(ctx: Any, *grads: Tensor | None) -> tuple:
        grads = grads[:first_parameter]
        if all(grad is None for grad in grads):
            return (None,) * len(fields)
        saved = ctx.saved_tensors
        count = len(cell.differentiable)
        arguments, batch_sizes, reset = saved[:count], saved[count], saved[count + 1]
        need = ctx.needs_input_grad
        need_states, need_weights = any(need[1:first_parameter]), any(need[first_parameter:count])
        results = backward(
            *cell.Backward(
                *grads, *arguments, ctx.reverse, batch_sizes, *saved[count + 2 :], need[0], need_weights,
                ctx.allow_tf32, reset, need_states,
            )
        )  # fmt: skip
        states = (need_states,) * len(cell.states)
        parameters = (need_weights and p is not None for p in arguments[first_parameter:])
        needed = (need[0], *states, *parameters)
        return (*(g if wanted else None for g, wanted in zip(results, needed, strict=True)), *tail)

    forward = Operator(
        cell.name,
        check=lambda *args: check_arguments(cell, cell.name, cell.Forward(*args)),
        fake=lambda *args: _fake(cell, *args),
        reference=in_compute_dtype(lambda *args: _reference(cell, *args)),
        setup_context=setup_context,
        backward=gradient,
        saved=len(cell.states),
        vmap=lambda *args: _vmap(cell, *args),
        casts=True,
    )
    backward = Operator(
        f"{cell.name}_backward",
        check=lambda *args: _check_backward(cell, *args),
        fake=lambda *args: _fake_backward(cell, *args),
        reference=lambda *args: _reference_backward(cell, *args),
    )
    return forward, backward
