"""gru: the GRU over a whole sequence, one layer and direction."""

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators._check import allows_tf32
from fourfold.operators._recurrent import declare

FORWARD = declare(
    "gru",
    kept=4,
    parameters={
        "weight_ih": "3*hidden_size input_size",
        "weight_hh": "3*hidden_size hidden_size",
        "bias_ih": "? 3*hidden_size",
        "bias_hh": "? 3*hidden_size",
    },
    definition=reference.gru,
)


def gru(
    input: Tensor,
    h_0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    prepacked: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One layer of :class:`torch.nn.GRU` in one direction, a whole sequence in one call: h" = (1 - z) n + z h with
    r = σ(r_x + r_h), z = σ(z_x + z_h), n = tanh(n_x + r n_h), where [r_x, z_x, n_x] = W_ih x + b_ih and
    [r_h, z_h, n_h] = W_hh h + b_hh.

    Args:
        input, reverse, batch_sizes, reset: as in :func:`lstm`.
        h_0: (batch, hidden_size), input's dtype.
        weight_ih: (3 * hidden_size, input_size), gates in the order r, z, n.
        weight_hh: (3 * hidden_size, hidden_size).
        bias_ih, bias_hh: (3 * hidden_size,) each, or None.
        prepacked: as in :func:`lstm`, by ``torch.ops.fourfold.gru_prepack``.

    Returns:
        output, h_n: output has input's shape with hidden_size last; h_n (batch, hidden_size) is h after each row's last
        step.

    Raises:
        TypeError: an argument is not a dense floating-point tensor, or dtypes differ.
        ValueError: shapes or batch_sizes that don't fit together, tensors on different devices.
    """
    call = FORWARD.traced if is_compiling() else FORWARD.call
    tf32 = allows_tf32(input)
    return call(input, h_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes, reset, prepacked, tf32)
