"""lltm_cell: one step of the LLTM."""

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators import _shapes

STATE = "batch hidden_size"
ARGUMENTS = {
    "x": "batch input_size",
    "h": STATE,
    "c": STATE,
    "weights": "3*hidden_size hidden_size+input_size",
    "bias": "? (1) 3*hidden_size",
}
RESULTS = {"next_h": STATE, "next_c": STATE, "kept": "batch 3*hidden_size"}
FORWARD = _shapes.declare("lltm_cell", lambda a: (ARGUMENTS, RESULTS), reference.lltm_cell)


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
        TypeError: an argument is not a dense floating-point tensor, or dtypes differ.
        ValueError: shapes that don't fit together, tensors on different devices.
    """
    return (FORWARD.traced if is_compiling() else FORWARD.call)(x, h, c, weights, bias)
