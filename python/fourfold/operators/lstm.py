"""lstm: the LSTM over a whole sequence, one layer and direction."""

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators._check import allows_tf32
from fourfold.operators._recurrent import declare

FORWARD = declare(
    "lstm",
    kept=4,
    parameters={
        "weight_ih": "4*hidden_size input_size",
        "weight_hh": "4*hidden_size hidden_size",
        "bias_ih": "? 4*hidden_size",
        "bias_hh": "? 4*hidden_size",
    },
    definition=reference.lstm,
)


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
    prepacked: Tensor | None = None,
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
        batch_sizes: (time), int64, on the CPU: for packed input the number of rows of each step, as in
            :class:`torch.nn.utils.rnn.PackedSequence`. It begins with batch and never increases.
        reset: (time, batch), bool: where a sequence restarts: the state before that step is zero, and no gradient
            flows to earlier steps. (rows) when packed.
        prepacked: the result of ``torch.ops.fourfold.lstm_prepack`` for the same parameters on the same CPU; calls that
            share it don't pack the weights again.

    Returns:
        output, (h_n, c_n): output has input's shape with hidden_size last; h_n and c_n, (batch, hidden_size) each, are
        the state after each row's last step.

    Raises:
        TypeError: an argument is not a dense floating-point tensor, or dtypes differ.
        ValueError: shapes or batch_sizes that don't fit together, tensors on different devices.
    """
    call = FORWARD.traced if is_compiling() else FORWARD.call
    tf32 = allows_tf32(input)
    output, h_n, c_n = call(
        input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes, reset, prepacked, tf32
    )
    return output, (h_n, c_n)
