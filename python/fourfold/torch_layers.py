"""torch.nn's recurrent layers on fourfold's operators: subclasses, so that checkpoints, isinstance checks and programs
written for torch.nn's keep working."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fourfold import functional as F
from fourfold.freezing import Freezable, prepacked_weights
from fourfold.recurrent import expect_pair
from fourfold.sequence import lay_out_packed_reset, lay_out_reset, run_layers, tensors_of

_is_compiling = torch.compiler.is_compiling
_dynamo_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
_any_autocast_enabled = torch._C._is_any_autocast_enabled
# In which dtypes oneDNN has an LSTM for this CPU, by torch's own answer; torch asks none for float32.
_ONEDNN = {torch.float32: True}
if torch.backends.mkldnn.is_available():
    _ONEDNN[torch.bfloat16] = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    _ONEDNN[torch.float16] = torch.ops.mkldnn._is_mkldnn_fp16_supported()


def _dtype_under_autocast(state: Tensor) -> torch.dtype:
    """Of what torch's own steps give under a CPU's autocast: it casts the products alone, and the state is added."""
    return torch.promote_types(state.dtype, torch.get_autocast_dtype("cpu"))


def _torchs_lstm_is_onednns(x: Tensor) -> bool:
    """Whether torch.nn.LSTM hands an input that is not packed to oneDNN, whose results have autocast's dtype."""
    available = torch.backends.mkldnn.is_available() and (_is_compiling() or torch._C._get_mkldnn_enabled())
    return available and _ONEDNN.get(x.dtype, False)


@functools.cache
def _outside_dynamo() -> Callable[..., tuple]:
    """Dynamo breaks its graph at every nn.LSTM and GRU, ours too, unless told otherwise (``allow_rnn``). It would then
    try each function that the layer calls, at some tenths of a second each."""
    return torch.compiler.disable(lambda layer, *arguments: layer._forward(*arguments))


class _Layers(Freezable):
    """What LSTM and GRU share: torch's checks in torch's words, and the layout of input, states and reset."""

    def _parameter_names(self) -> list[tuple[str, ...]]:
        return [tuple(names) for names in self._all_weights]

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | PackedSequence | None = None
    ) -> tuple:
        if not _is_compiling() and _dynamo_callback():
            return _outside_dynamo()(self, input, hx, reset)
        return self._forward(input, hx, reset)

    def _forward(self, input: Any, hx: Any, reset: Any) -> tuple:
        parameters = [tensors_of(self, names) for names in self._all_weights]
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, reset, parameters)
        if not isinstance(input, Tensor):
            raise TypeError(
                f"{self.mode}: expected input to be a Tensor or a PackedSequence, but got {type(input).__name__}"
            )
        if input.dim() not in (2, 3):
            raise ValueError(f"{self.mode}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        states = self._initial_states(x, x.shape[1], hx, batched)
        self._check(x, states, parameters[0][0])
        reset = lay_out_reset(self, self.mode, reset, input)
        output, final = self._run_layers(parameters, x, states, None, reset)
        if not batched:
            return output.squeeze(1), self._as_hx([s.squeeze(1) for s in final])
        return output.transpose(0, 1) if self.batch_first else output, self._as_hx(final)

    def _forward_packed(self, input: PackedSequence, hx: Any, reset: Any, parameters: list) -> tuple:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        # In a captured graph a given state's batch is the batch, so that the graph need not read batch_sizes.
        given = hx is not None and _is_compiling()
        batch = (hx[0] if self.mode == "LSTM" else hx).shape[-2] if given else int(batch_sizes[0])
        states = self._initial_states(data, batch, hx, True)
        self._check(data, states, parameters[0][0], batch_sizes)
        if hx is not None and sorted_indices is not None:
            states = [s.index_select(1, sorted_indices) for s in states]
        reset = lay_out_packed_reset(self.mode, reset, input)
        output, final = self._run_layers(parameters, data, states, batch_sizes, reset)
        if unsorted_indices is not None:
            final = [s.index_select(1, unsorted_indices) for s in final]
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), self._as_hx(final)

    def _run_layers(self, parameters: list, x: Tensor, states: Any, batch_sizes: Any, reset: Any) -> tuple:
        output, final = run_layers(self, self._operator, parameters, x, states, batch_sizes, reset)
        if not _any_autocast_enabled() or not x.is_cpu or not torch.is_autocast_enabled("cpu"):
            return output, final
        if self.mode == "LSTM" and batch_sizes is None and _torchs_lstm_is_onednns(x):
            return output, final
        dtype = _dtype_under_autocast(states[-1])
        return output.to(dtype), tuple(s.to(dtype) for s in final)

    def _initial_states(self, x: Tensor, batch: Any, hx: Any, batched: bool) -> list[Tensor]:
        lstm = self.mode == "LSTM"
        if hx is None:
            directions = 2 if self.bidirectional else 1
            zeros = x.new_zeros(self.num_layers * directions, batch, self.hidden_size)
            return [zeros, zeros] if lstm else [zeros]
        if lstm:
            states = list(expect_pair("LSTM", hx, "(h_0, c_0)"))
        elif isinstance(hx, Tensor):
            states = [hx]
        else:
            raise TypeError(f"GRU: expected hx to be a torch.Tensor, but got {type(hx).__name__}")
        wanted = 3 if batched else 2
        if any(s.dim() != wanted for s in states):
            got = f"({states[0].dim()}-D, {states[-1].dim()}-D) tensors" if lstm else f"{hx.dim()}-D tensor"
            raise RuntimeError(
                f"For {'batched' if batched else 'unbatched'} {wanted}-D input, hx {'and cx ' * lstm}should also be "
                f"{wanted}-D but got {got}"
            )
        return states if batched else [s.unsqueeze(1) for s in states]

    def _check(self, x: Tensor, states: list[Tensor], weight: Tensor, batch_sizes: Tensor | None = None) -> None:
        """x: time first. The fast path compares; only what looks wrong goes through torch's own checks."""
        batch = states[0].shape[1] if batch_sizes is not None else x.shape[1]
        directions = 2 if self.bidirectional else 1
        shape = (self.num_layers * directions, batch, self.hidden_size)
        fits = x.shape[-1] == self.input_size and x.dtype == weight.dtype and all(s.shape == shape for s in states)
        if batch_sizes is not None and fits and not _is_compiling():
            fits = batch == int(batch_sizes[0])
        if not fits:
            self._update_flat_weights()
            laid_out = x.transpose(0, 1) if self.batch_first and batch_sizes is None else x
            self.check_forward_args(laid_out, self._as_hx(states), batch_sizes)
        if x.shape[0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")

    def _as_hx(self, states: Any) -> Any:
        return tuple(states) if self.mode == "LSTM" else states[0]


class LSTM(_Layers, nn.LSTM):
    """:class:`torch.nn.LSTM`, each layer and direction in one call, with restarts within a sequence.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`torch.nn.LSTM`, whose parameters, their names and initial values these are. There is no proj_size.

    Shapes:
        ``output, (h_n, c_n) = lstm(input, (h_0, c_0), reset)``, with D = 2 if bidirectional else 1:

        - input: (time, batch, input_size), or with batch_first (batch, time, input_size), or unbatched
          (time, input_size), or a PackedSequence
        - h_0, c_0, h_n, c_n: (D * num_layers, batch, hidden_size), unbatched without batch. Left out, zero.
        - output: input's shape with D * hidden_size last, packed when input is.
        - reset: input's shape without its last dimension, of bools, packed when input is: True where a new segment
          begins. Every layer then begins the step with a zero state, and no gradient passes to the segment before. The
          reverse direction begins anew at the last step of each segment: the results are those of each segment run
          alone, with h_0 and c_0 for the forward direction of the first, unless it begins with a reset, and for the
          reverse direction of the last.

    Each call reads the weights as they are; :func:`fourfold.freeze` declares them constant.

    Raises:
        ValueError, RuntimeError: what torch.nn.LSTM refuses, in its words; proj_size; a reset of another shape.
        TypeError: dtypes that differ.
    """

    _operator = staticmethod(F.lstm)
    _prepack = staticmethod(torch.ops.fourfold.lstm_prepack.default)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.proj_size:
            raise ValueError(
                f"LSTM: expected proj_size to be 0, but got {self.proj_size}; a projected LSTM is torch.nn.LSTM's alone"
            )


class GRU(_Layers, nn.GRU):
    """:class:`torch.nn.GRU`, each layer and direction in one call, with restarts within a sequence.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`torch.nn.GRU`, whose parameters, their names and initial values these are.

    Shapes:
        ``output, h_n = gru(input, h_0, reset)``; :class:`LSTM` describes each.

    Raises:
        ValueError, RuntimeError: what torch.nn.GRU refuses, in its words; a reset of another shape.
        TypeError: dtypes that differ.
    """

    _operator = staticmethod(F.gru)
    _prepack = staticmethod(torch.ops.fourfold.gru_prepack.default)


_CELL_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class _Cell(Freezable):
    """One step of a layer: a sequence of length one."""

    def _parameter_names(self) -> list[tuple[str, ...]]:
        return [_CELL_NAMES]

    def _step(self, x: Tensor, states: tuple[Tensor, ...]) -> Any:
        """x: (batch, input_size). Returns the operator's final state."""
        if x.shape[-1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {x.shape[-1]} expected {self.input_size}")
        for k, state in enumerate(states):
            if state.shape[0] != x.shape[0]:
                raise RuntimeError(f"Input batch size {x.shape[0]} doesn't match hidden{k} batch size {state.shape[0]}")
            if state.shape[-1] != self.hidden_size:
                raise RuntimeError(
                    f"hidden{k} has inconsistent hidden_size: got {state.shape[-1]}, expected {self.hidden_size}"
                )
        parameters = tensors_of(self, _CELL_NAMES)
        if _any_autocast_enabled() and x.is_cpu and torch.is_autocast_enabled("cpu"):
            return self._step_under_autocast(x, states, parameters)
        prepacked = prepacked_weights(self, [parameters], x)
        prepacked = None if prepacked is None else prepacked[0]
        return self._operator(x.unsqueeze(0), *states, *parameters, prepacked=prepacked)[1]

    def _step_under_autocast(self, x: Tensor, states: tuple[Tensor, ...], parameters: list[Tensor | None]) -> Any:
        """In the dtype of the state that torch's cell returns: rounded at each step, a state would soon stand still."""
        dtype = _dtype_under_autocast(states[-1])
        given = (x.unsqueeze(0), *states, *parameters)
        with torch.autocast("cpu", enabled=False):
            return self._operator(*(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in given))[1]


class LSTMCell(_Cell, nn.LSTMCell):
    """:class:`torch.nn.LSTMCell` on the operator of :class:`LSTM`: ``h, c = cell(x, (h, c))``.

    Args:
        input_size, hidden_size, bias, device, dtype: as in :class:`torch.nn.LSTMCell`, whose parameters these are.

    Shapes:
        x (batch, input_size) and the state (batch, hidden_size) each; unbatched without batch. Left out, zero.

    Raises:
        ValueError, RuntimeError: what torch.nn.LSTMCell refuses, in its words.
        TypeError: dtypes that differ.
    """

    _operator = staticmethod(F.lstm)
    _prepack = staticmethod(torch.ops.fourfold.lstm_prepack.default)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if input.dim() not in (1, 2):
            raise ValueError(f"LSTMCell: Expected input to be 1D or 2D, got {input.dim()}D instead")
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if hx is None:
            h = c = x.new_zeros(x.shape[0], self.hidden_size)
        else:
            h, c = expect_pair("LSTMCell", hx, "(h, c)")
            for k, value in enumerate((h, c)):
                if value.dim() not in (1, 2):
                    raise ValueError(f"LSTMCell: Expected hx[{k}] to be 1D or 2D, got {value.dim()}D instead")
            h, c = (h, c) if batched else (h.unsqueeze(0), c.unsqueeze(0))
        h, c = self._step(x, (h, c))
        return (h, c) if batched else (h.squeeze(0), c.squeeze(0))


class GRUCell(_Cell, nn.GRUCell):
    """:class:`torch.nn.GRUCell` on the operator of :class:`GRU`: ``h = cell(x, h)``.

    Args:
        input_size, hidden_size, bias, device, dtype: as in :class:`torch.nn.GRUCell`, whose parameters these are.

    Shapes:
        x (batch, input_size) and h (batch, hidden_size); unbatched without batch. A state left out is zero.

    Raises:
        ValueError, RuntimeError: what torch.nn.GRUCell refuses, in its words.
        TypeError: dtypes that differ.
    """

    _operator = staticmethod(F.gru)
    _prepack = staticmethod(torch.ops.fourfold.gru_prepack.default)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if input.dim() not in (1, 2):
            raise ValueError(f"GRUCell: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if hx is not None and hx.dim() not in (1, 2):
            raise ValueError(f"GRUCell: Expected hidden to be 1D or 2D, got {hx.dim()}D instead")
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if hx is None:
            hx = input.new_zeros(*input.shape[:-1], self.hidden_size)
        h = hx if batched else hx.unsqueeze(0)
        h = self._step(x, (h,))
        return h if batched else h.squeeze(0)
