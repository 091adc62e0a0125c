"""lltm: the LLTM over a whole sequence, one layer and direction."""

from __future__ import annotations

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._recurrent import Cell, declare

FORWARD = declare(
    Cell(
        "lltm",
        states=("h", "c"),
        kept=3,
        parameters={
            "weights": "3*hidden_size hidden_size+input_size",
            "bias": "? (1) 3*hidden_size",
        },
        definition=reference.lltm,
    )
)


def lltm(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    prepacked: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The LLTM over a whole sequence in one call; :func:`lltm_cell` gives the formula of a step.

    Args:
        input: (time, batch, input_size), or (rows, input_size) when packed; float16, bfloat16, float32 or float64.
            On a CPU the two low precisions accumulate, and carry the state from step to step, in float32.
        h_0, c_0: (batch, hidden_size), input's dtype.
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or (1, 3 * hidden_size), or None.
        reverse: run from the last step to the first.
        batch_sizes: (time), int64, on the CPU: of packed input, how many rows each step has, as in
            :class:`torch.nn.utils.rnn.PackedSequence`. It begins with batch and never rises.
        reset: (time, batch), bool: where a sequence starts anew. There the state before the step is zero, and no
            gradient passes to earlier steps. (rows) when packed.
        prepacked: what ``torch.ops.fourfold.lltm_prepack`` made of the same parameters on the same CPU: calls that
            share it need not lay them out each for itself.

    Returns:
        output, (h_n, c_n): output has input's shape with hidden_size last; the state after the last step that each row
        takes part in, (batch, hidden_size) each.

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes or batch_sizes that do not fit together, tensors on different devices.
    """
    call = FORWARD.traced if is_compiling() else FORWARD.call
    output, h_n, c_n = call(
        input, h_0, c_0, weights, bias, reverse, batch_sizes, reset, prepacked, _check.allows_tf32(input)
    )
    return output, (h_n, c_n)
