"""Recurrent layers: an operator computes one layer in one direction; here they are composed, with dropout between."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fourfold import functional as F
from fourfold.freezing import Freezable
from fourfold.sequence import lay_out_packed_reset, lay_out_reset, run_layers, tensors_of

State = tuple[Tensor, Tensor]


def expect_size(module: str, name: str, value: Any) -> int:
    """A layer's size: a whole number of at least 1."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{module}: expected {name} to be an int, but got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{module}: expected {name} to be at least 1, but got {value}")
    return int(value)


def expect_features(module: str, input: Any, input_size: int, parameter: Tensor) -> None:
    """What a user got wrong is the input, though it may be the parameters that then do not fit."""
    if isinstance(input, torch.fx.Proxy):  # which stands for a tensor while symbolic_trace looks on
        return
    if not isinstance(input, Tensor):
        raise TypeError(f"{module}: expected the input to be a torch.Tensor, but got {type(input).__name__}")
    if input.dim() > 0 and input.shape[-1] != input_size:
        raise ValueError(
            f"{module}: expected the last dimension of the input to be input_size = {input_size}, "
            f"but got shape {tuple(input.shape)}"
        )
    if input.device != parameter.device:
        raise ValueError(
            f"{module}: expected the input to be on the parameters' device {parameter.device}, but got {input.device}"
        )
    if input.dtype != parameter.dtype and not torch.is_autocast_enabled(input.device.type):
        raise TypeError(
            f"{module}: expected the input to have the parameters' dtype {parameter.dtype}, but got {input.dtype}"
        )


def expect_pair(module: str, state: Any, names: str) -> State:
    """A recurrent state: two tensors, and not one tensor that could be cut in two."""
    if not isinstance(state, (tuple, list)) or len(state) != 2 or not all(isinstance(s, Tensor) for s in state):
        raise TypeError(f"{module}: expected the state to be a pair of tensors, {names}")
    return state[0], state[1]


def reset_uniform(module: nn.Module, hidden_size: int) -> None:
    """The tutorials' rule: all parameters uniform within ±1/√hidden_size."""
    bound = 1 / math.sqrt(hidden_size)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound)


class LLTM(Freezable, nn.Module):
    """The LLTM over whole sequences, in the signature of :class:`torch.nn.LSTM`.

    Args:
        input_size: the size of each step of the input.
        hidden_size: the size of h and c.
        num_layers: how many layers, each on the one before.
        bias: whether the gates have a bias.
        batch_first: input and output are (batch, time, …) instead of (time, batch, …); states are not affected.
        dropout: the probability of dropout on the output of each layer but the last, in training.
        bidirectional: each layer runs in both directions; outputs are concatenated, forward first.
        device, dtype: of the parameters.

    Shapes:
        ``output, (h_n, c_n) = lltm(input, (h_0, c_0), reset)``, with D = 2 if bidirectional else 1:

        - input: (time, batch, input_size), or unbatched (time, input_size), or a PackedSequence
        - h_0, c_0, h_n, c_n: (D * num_layers, batch, hidden_size), unbatched without batch. Left out, zero.
        - output: input's shape with D * hidden_size last, packed when input is.
        - reset: input's shape without its last dimension, of bools: True where a new segment begins, as in
          :class:`fourfold.nn.LSTM`. Packed when input is.

        Zero time steps and zero batch give empty outputs, and the initial state back.

    Attributes:
        weights_l[k], weights_l[k]_reverse: (3 * hidden_size, hidden_size + the layer's input size), h before x, gates
            in the order i, o, g.
        bias_l[k], bias_l[k]_reverse: (3 * hidden_size,), or None.

    Raises:
        ValueError: a size below 1, a dropout outside [0, 1], shapes that do not fit together, the checkpoint of a cell.
        TypeError: dtypes that differ, or are not floating point.
    """

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
        self.input_size = expect_size("LLTM", "input_size", input_size)
        self.hidden_size = expect_size("LLTM", "hidden_size", hidden_size)
        self.num_layers = expect_size("LLTM", "num_layers", num_layers)
        if not isinstance(dropout, numbers.Real) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(f"LLTM: expected dropout to be a number in [0, 1], but got {dropout!r}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"LLTM: dropout={dropout} has no effect with num_layers=1: it acts between layers", stacklevel=2
            )
        self.bias = bool(bias)
        self.batch_first = bool(batch_first)
        self.dropout = float(dropout)
        self.bidirectional = bool(bidirectional)
        like = {"device": device, "dtype": dtype}
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size * self.num_directions
            for suffix in self._suffixes(layer):
                weights = torch.empty(3 * hidden_size, hidden_size + size, **like)
                self.register_parameter(f"weights{suffix}", nn.Parameter(weights))
                values = nn.Parameter(torch.empty(3 * hidden_size, **like)) if bias else None
                self.register_parameter(f"bias{suffix}", values)
        self.reset_parameters()

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}{direction}" for direction in ("", "_reverse")[: self.num_directions]]

    _prepack = staticmethod(torch.ops.fourfold.lltm_prepack.default)

    def _parameter_names(self) -> list[tuple[str, ...]]:
        suffixes = [suffix for layer in range(self.num_layers) for suffix in self._suffixes(layer)]
        return [(f"weights{suffix}", f"bias{suffix}") for suffix in suffixes]

    def reset_parameters(self) -> None:
        """The tutorial's rule: all parameters uniform within ±1/√hidden_size."""
        reset_uniform(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """For programs written for :class:`torch.nn.LSTM`: there is nothing to flatten here."""

    def forward(
        self, input: Tensor | PackedSequence, hx: State | None = None, reset: Tensor | PackedSequence | None = None
    ) -> tuple[Tensor | PackedSequence, State]:
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, reset)
        if not isinstance(input, Tensor):
            raise TypeError(f"LLTM: expected input to be a Tensor or a PackedSequence, but got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise ValueError(
                "LLTM: expected input to have 3 dimensions, or 2 when unbatched, but got shape "
                f"{tuple(input.shape)}; for a single step use fourfold.nn.LLTMCell"
            )
        expect_features("LLTM", input, self.input_size, self.weights_l0)
        batched = input.dim() == 3
        reset = lay_out_reset(self, "LLTM", reset, input)
        batch_dim = 0 if self.batch_first else 1
        if not batched:
            input = input.unsqueeze(batch_dim)
        steps = input.transpose(0, 1) if self.batch_first else input
        states = self._initial_state(steps, steps.size(1), hx, batched)
        output, (h_n, c_n) = self._layers(steps, states, None, reset)
        if self.batch_first:
            output = output.transpose(0, 1)
        if not batched:
            output, h_n, c_n = output.squeeze(batch_dim), h_n.squeeze(1), c_n.squeeze(1)
        return output, (h_n, c_n)

    def _forward_packed(self, input: PackedSequence, hx: State | None, reset: Any) -> tuple[PackedSequence, State]:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        expect_features("LLTM", data, self.input_size, self.weights_l0)
        # With a state given its batch is the batch, so a captured graph need not read batch_sizes.
        batch = int(batch_sizes[0]) if hx is None else expect_pair("LLTM", hx, "(h_0, c_0)")[0].size(-2)
        h, c = self._initial_state(data, batch, hx, True)
        if hx is not None and sorted_indices is not None:
            h, c = h.index_select(1, sorted_indices), c.index_select(1, sorted_indices)
        output, (h_n, c_n) = self._layers(data, (h, c), batch_sizes, lay_out_packed_reset("LLTM", reset, input))
        if unsorted_indices is not None:
            h_n, c_n = h_n.index_select(1, unsorted_indices), c_n.index_select(1, unsorted_indices)
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), (h_n, c_n)

    def _initial_state(self, input: Tensor, batch: int, hx: State | None, batched: bool) -> State:
        shape = (self.num_layers * self.num_directions, batch, self.hidden_size)
        if hx is None:
            zeros = input.new_zeros(shape)
            return zeros, zeros
        states = []
        for name, state in zip(("h_0", "c_0"), expect_pair("LLTM", hx, "(h_0, c_0)"), strict=True):
            expected = shape if batched else (shape[0], shape[2])
            if tuple(state.shape) != expected:
                names = "num_layers * num_directions, batch, hidden_size"
                names = names if batched else names.replace(" batch,", "")
                hint = "; for a single step use fourfold.nn.LLTMCell" if batched and state.dim() == 2 else ""
                raise ValueError(
                    f"LLTM: expected {name} to have shape ({names}) = {expected}, but got {tuple(state.shape)}{hint}"
                )
            states.append(state if batched else state.unsqueeze(1))
        return states[0], states[1]

    def _layers(self, x: Tensor, state: State, batch_sizes: Tensor | None, reset: Tensor | None) -> tuple:
        parameters = [tensors_of(self, names) for names in self._parameter_names()]
        return run_layers(self, F.lltm, parameters, x, state, batch_sizes, reset)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}weights" in state_dict:
            raise ValueError(
                f"LLTM: this checkpoint holds {prefix}weights, which is a cell's; load it into fourfold.nn.LLTMCell, "
                f"or rename {prefix}weights to {prefix}weights_l0 and {prefix}bias to {prefix}bias_l0"
            )
        for layer in range(self.num_layers):
            for suffix in self._suffixes(layer):
                key = f"{prefix}bias{suffix}"
                if getattr(state_dict.get(key), "shape", None) == (1, 3 * self.hidden_size):
                    state_dict[key] = state_dict[key].reshape(-1)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text
