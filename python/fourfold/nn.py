"""fourfold's operators as modules. Parameters bear the names and shapes of the published tutorials, so their
checkpoints load."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fourfold import functional as F
from fourfold.mlp import MLP
from fourfold.recurrent import LLTM, expect_features, expect_pair, expect_size, reset_uniform
from fourfold.sequence import tensors_of
from fourfold.torch_layers import GRU, LSTM, GRUCell, LSTMCell

__all__ = ["GRU", "LLTM", "LSTM", "MLP", "Axpby", "GRUCell", "LLTMCell", "LSTMCell", "Softshrink"]


class Axpby(nn.Module):
    """αx + βy; :func:`fourfold.axpby` says the rest.

    Args:
        alpha, beta: numbers.
    """

    def __init__(self, alpha: float = 2, beta: float = 1):
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.axpby(x, y, self.alpha, self.beta)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, beta={self.beta}"


class Softshrink(nn.Module):
    """Shrinks each element towards zero by λ, as :class:`torch.nn.Softshrink` does.

    Args:
        lambd: λ, at least 0.
    """

    def __init__(self, lambd: float = 0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class LLTMCell(nn.Module):
    """One step of the LLTM, the recurrent cell of PyTorch's C++ extension tutorial; :func:`fourfold.lltm_cell` gives
    its formula.

    Args:
        input_size: the size of x.
        hidden_size: the size of h and c.
        bias: whether the gates have a bias.
        device, dtype: of the parameters.

    Shapes:
        ``h, c = cell(x, (h, c))`` with x (batch, input_size) and the state (batch, hidden_size) each; unbatched,
        (input_size,) and (hidden_size,). A state left out is zero.

    Attributes:
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or None. A checkpoint that holds (1, 3 * hidden_size) loads too.

    Raises:
        ValueError: a size below 1, or shapes that do not fit together.
        TypeError: dtypes that differ, or are not floating point.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.input_size = expect_size("LLTMCell", "input_size", input_size)
        self.hidden_size = expect_size("LLTMCell", "hidden_size", hidden_size)
        like = {"device": device, "dtype": dtype}
        self.weights = nn.Parameter(torch.empty(3 * hidden_size, hidden_size + input_size, **like))
        self.register_parameter("bias", nn.Parameter(torch.empty(3 * hidden_size, **like)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The tutorial's rule: all parameters uniform within ±1/√hidden_size."""
        reset_uniform(self, self.hidden_size)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        weights, bias = tensors_of(self, ("weights", "bias"))
        try:
            return self._step(x, state, weights, bias)
        except (AttributeError, TypeError, ValueError):
            expect_features("LLTMCell", x, self.input_size, weights)
            raise

    def _step(self, x: Tensor, state: Any, weights: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        batched = x.dim() != 1
        rows = x if batched else x.unsqueeze(0)
        if state is None:
            h = c = rows.new_zeros(*rows.shape[:-1], self.hidden_size)
        else:
            h, c = expect_pair("LLTMCell", state, "(h, c)")
            h, c = (h, c) if batched else (h.unsqueeze(0), c.unsqueeze(0))
        h, c = F.lltm_cell(rows, h, c, weights, bias)
        return (h, c) if batched else (h.squeeze(0), c.squeeze(0))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        key = f"{prefix}bias"
        if getattr(state_dict.get(key), "shape", None) == (1, 3 * self.hidden_size):
            state_dict[key] = state_dict[key].reshape(-1)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is not None else ", bias=False")
