"""lltm: the LLTM over a whole sequence, one layer and direction."""

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators._check import allows_tf32
from fourfold.operators._recurrent import declare

FORWARD = declare(
    "lltm",
    kept=3,
    parameters={"weights": "3*hidden_size hidden_size+input_size", "bias": "? (1) 3*hidden_size"},
    definition=reference.lltm,
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
    """One layer of the LLTM in one direction, a whole sequence in one call; :func:`lltm_cell` has the formula.

    Args:
        input, h_0, c_0, reverse, batch_sizes, reset: as in :func:`lstm`.
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or (1, 3 * hidden_size), or None.
        prepacked: as in :func:`lstm`, by ``torch.ops.fourfold.lltm_prepack``.

    Returns:
        output, (h_n, c_n): as in :func:`lstm`.

    Raises:
        TypeError: an argument is not a dense floating-point tensor, or dtypes differ.
        ValueError: shapes or batch_sizes that don't fit together, tensors on different devices.
    """
    call = FORWARD.traced if is_compiling() else FORWARD.call
    tf32 = allows_tf32(input)
    output, h_n, c_n = call(input, h_0, c_0, weights, bias, reverse, batch_sizes, reset, prepacked, tf32)
    return output, (h_n, c_n)
