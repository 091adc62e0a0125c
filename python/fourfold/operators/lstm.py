"""lstm: the LSTM over a whole sequence, one layer and direction."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fourfold import reference
from fourfold.operators import _check, _pack
from fourfold.operators._recurrent import Cell, declare, expect_gates


class Forward(NamedTuple):
    """The operator's arguments, in order."""

    input: Tensor
    h_0: Tensor
    c_0: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    reverse: bool = False
    batch_sizes: Tensor | None = None
    save_for_backward: bool = True
    allow_tf32: bool = False
    reset: Tensor | None = None
    packed: Tensor | None = None


class Backward(NamedTuple):
    """Its backward's."""

    grad_output: Tensor | None
    grad_h_n: Tensor | None
    grad_c_n: Tensor | None
    input: Tensor
    h_0: Tensor
    c_0: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    reverse: bool
    batch_sizes: Tensor | None
    output: Tensor
    gates: Tensor
    cells: Tensor
    need_input: bool = True
    need_weights: bool = True
    allow_tf32: bool = False
    reset: Tensor | None = None
    need_states: bool = True


FORWARD, BACKWARD = declare(
    Cell(
        "lstm",
        Forward,
        Backward,
        states=("h", "c"),
        gates=4,
        kept=4,
        parameters=("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
        check_parameters=expect_gates(4),
        definition=reference.lstm,
    )
)
_pack.declare("lstm", _pack.check_gates(4))


def lstm(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    packed: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer of :class:`torch.nn.LSTM` in one direction, a whole sequence in one call:
    c" = σ(f) c + σ(i) tanh(g), h" = σ(o) tanh(c"), with [i, f, g, o] = W_ih x + b_ih + W_hh h + b_hh.

    Args:
        input: (time, batch, input_size), or (rows, input_size) when packed; float16, bfloat16, float32 or float64.
            On a CPU the two low precisions accumulate, and carry the state from step to step, in float32.
        h_0, c_0: (batch, hidden_size), input's dtype.
        weight_ih: (4 * hidden_size, input_size), gates in the order i, f, g, o.
        weight_hh: (4 * hidden_size, hidden_size).
        bias_ih, bias_hh: (4 * hidden_size,) each, or None.
        reverse: run from the last step to the first.
        batch_sizes: (time), int64, on the CPU: of packed input, how many rows each step has, as in
            :class:`torch.nn.utils.rnn.PackedSequence`. It begins with batch and never rises.
        reset: (time, batch), bool: where a sequence starts anew. There the state before the step is zero, and no
            gradient passes to earlier steps. (rows) when packed.
        packed: what ``torch.ops.fourfold.lstm_pack`` made of the same parameters on the same CPU: calls that share it
            need not pack them each for itself.

    Returns:
        output, (h_n, c_n): output has input's shape with hidden_size last; the state after the last step that each row
        takes part in, (batch, hidden_size) each.

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes or batch_sizes that do not fit together, tensors on different devices.
    """
    settings = (_check.allows_tf32(input),) if isinstance(input, Tensor) else (False,)
    outputs = FORWARD(
        input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes, True, *settings, reset, packed
    )
    return outputs[0], (outputs[1], outputs[2])
