"""The LLTM, one step of it and over whole sequences."""

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fourfold import functional as F
from fourfold.nn.checks import expect_features, expect_pair, expect_size, expect_unbatched, not_dense
from fourfold.nn.recurrent import Layers, tensors_of


class _Tutorials(nn.Module):
    """The tutorial's parameters, of a cell or of each layer and direction."""

    _all_weights: Sequence[Sequence[str]]

    def reset_parameters(self) -> None:
        layer: Any = self  # not an RNNBase, but it has the same attributes
        nn.RNNBase.reset_parameters(layer)  # the tutorial has the same initialisation

    def _add_parameters(self, names: Sequence[str], input_size: int, bias: bool, like: dict[str, Any]) -> None:
        rows = 3 * self.hidden_size
        weights = torch.empty(rows, self.hidden_size + input_size, **like)
        self.register_parameter(names[0], nn.Parameter(weights))
        self.register_parameter(names[1], nn.Parameter(torch.empty(rows, **like)) if bias else None)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for _, bias in self._all_weights:
            key = prefix + bias
            if getattr(state_dict.get(key), "shape", None) == (1, 3 * self.hidden_size):  # the tutorial's shape
                state_dict[key] = state_dict[key].reshape(-1)
        super()._load_from_state_dict(state_dict, prefix, *args)


class LLTMCell(_Tutorials):
    """One step of the LLTM, the recurrent cell of PyTorch's C++ extension tutorial; :func:`fourfold.lltm_cell` has
    its formula.

    Args:
        input_size, hidden_size, bias, device, dtype: as in :class:`torch.nn.LSTMCell`.

    Shapes:
        ``h, c = cell(x, (h, c))`` with x (batch, input_size) and the state (batch, hidden_size) each; unbatched,
        (input_size,) and (hidden_size,). The default state is zero.

    Attributes:
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or None. A checkpoint that holds (1, 3 * hidden_size) loads too.

        Initially both are uniform within ±1/√hidden_size, the tutorial's rule.

    Raises:
        ValueError: a size below 1, or shapes that do not fit together.
        TypeError: dtypes that differ, or are not floating point.
    """

    _all_weights = (("weights", "bias"),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.input_size: int = expect_size("LLTMCell", "input_size", input_size)
        self.hidden_size: int = expect_size("LLTMCell", "hidden_size", hidden_size)
        self._add_parameters(("weights", "bias"), self.input_size, bias, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        weights, bias = tensors_of(self, ("weights", "bias"))
        try:
            batched = x.dim() != 1
            rows = x if batched else x.unsqueeze(0)
            if state is None:
                h = c = rows.new_zeros(*rows.shape[:-1], self.hidden_size)
            else:
                h, c = expect_pair("LLTMCell", state, "(h, c)")
                if not batched:
                    h, c = expect_unbatched("LLTMCell", "h", h), expect_unbatched("LLTMCell", "c", c)
            h, c = F.lltm_cell(rows, h, c, weights, bias)
            return (h, c) if batched else (h.squeeze(0), c.squeeze(0))
        except (AttributeError, RuntimeError, TypeError, ValueError):
            expect_features("LLTMCell", x, self.input_size, weights)
            raise

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is not None else ", bias=False")


class LLTM(Layers, _Tutorials):
    """The LLTM over whole sequences, with the signature of :class:`torch.nn.LSTM`.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`torch.nn.LSTM`.

    Shapes:
        ``output, (h_n, c_n) = lltm(input, (h_0, c_0), reset)``; :class:`LSTM` describes each. With zero time
        steps or a batch of zero, the outputs are empty, and the initial state is returned.

    Attributes:
        weights_l[k], weights_l[k]_reverse: (3 * hidden_size, hidden_size + the layer's input size), h before x, gates
            in the order i, o, g.
        bias_l[k], bias_l[k]_reverse: (3 * hidden_size,), or None. A checkpoint that holds (1, 3 * hidden_size) loads.

        Initially all are uniform within ±1/√hidden_size, the tutorial's rule.

    Raises:
        ValueError: a size below 1, a dropout outside [0, 1], shapes that don't fit, or the checkpoint of a cell.
        TypeError: dtypes that differ, or are not floating point.
    """

    _name = "LLTM"
    _operator = staticmethod(F.lltm)
    proj_size = 0  # read by torch's repr

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.input_size: int = expect_size("LLTM", "input_size", input_size)
        self.hidden_size: int = expect_size("LLTM", "hidden_size", hidden_size)
        self.num_layers: int = expect_size("LLTM", "num_layers", num_layers)
        if not isinstance(dropout, numbers.Real) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(f"LLTM: expected dropout to be a number in [0, 1], but got {dropout!r}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"LLTM: dropout={dropout} has no effect with num_layers=1: it acts between layers", stacklevel=2
            )
        self.bias: bool = bool(bias)
        self.batch_first: bool = bool(batch_first)
        self.dropout: float = float(dropout)
        self.bidirectional: bool = bool(bidirectional)
        self.num_directions = 2 if self.bidirectional else 1
        self._all_weights = []
        for layer in range(self.num_layers):
            size = self.input_size if layer == 0 else self.hidden_size * self.num_directions
            for direction in ("", "_reverse")[: self.num_directions]:
                self._all_weights.append([f"weights_l{layer}{direction}", f"bias_l{layer}{direction}"])
                self._add_parameters(self._all_weights[-1], size, bias, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | PackedSequence | None = None
    ) -> tuple[Tensor | PackedSequence, Any]:
        try:
            return super().forward(input, hx, reset)
        except (RuntimeError, TypeError, ValueError) as error:
            if (kind := not_dense(input, hx)) is None:
                raise
            raise TypeError(f"LLTM: expected the input and the state to be dense tensors, but got {kind}") from error

    def extra_repr(self) -> str:
        layer: Any = self
        return nn.RNNBase.extra_repr(layer)

    def flatten_parameters(self) -> None:
        """For compatibility with :class:`torch.nn.LSTM`; does nothing."""

    def _wrong_dimensions(self, input: Tensor) -> str:
        return (
            f"expected input to have 3 dimensions, or 2 when unbatched, but got shape {tuple(input.shape)}; for a "
            "single step use fourfold.nn.LLTMCell"
        )

    def _given_states(self, hx: Any, batch: int | None, batched: bool) -> Sequence[Tensor]:
        states = expect_pair("LLTM", hx, "(h_0, c_0)")
        shape = self._state_shape(states[0].size(-2) if batch is None else batch)
        expected = shape if batched else (shape[0], shape[2])
        for name, state in zip(("h_0", "c_0"), states, strict=True):
            if tuple(state.shape) != expected:
                names = "num_layers * num_directions, batch, hidden_size"
                names = names if batched else names.replace(" batch,", "")
                hint = "; for a single step use fourfold.nn.LLTMCell" if batched and state.dim() == 2 else ""
                raise ValueError(
                    f"LLTM: expected {name} to have shape ({names}) = {expected}, but got {tuple(state.shape)}{hint}"
                )
        return states if batched else [s.unsqueeze(1) for s in states]

    def _check(self, x: Tensor, states: Sequence[Tensor], weight: Tensor, batch_sizes: Tensor | None) -> None:
        expect_features("LLTM", x, self.input_size, weight)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}weights" in state_dict:
            raise ValueError(
                f"LLTM: this checkpoint holds {prefix}weights, which is a cell's; load it into fourfold.nn.LLTMCell, "
                f"or rename {prefix}weights to {prefix}weights_l0 and {prefix}bias to {prefix}bias_l0"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)
