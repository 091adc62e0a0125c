"""torch.nn's recurrent layers on fourfold's operators: subclasses, so that checkpoints, isinstance checks and programs
written for torch.nn's keep working."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fourfold import _onnx
from fourfold import functional as F
from fourfold.freezing import Freezable, prepacked_weights, run_frozen
from fourfold.nn import recurrent
from fourfold.nn.checks import expect_pair, expect_unbatched, not_dense
from fourfold.nn.recurrent import Layers, tensors_of

_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_dynamo_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
_any_autocast_enabled = torch._C._is_any_autocast_enabled
# Whether oneDNN has an LSTM for this CPU, by dtype, according to torch, which checks nothing for float32.
_ONEDNN = {torch.float32: True}
if torch.backends.mkldnn.is_available():
    _ONEDNN[torch.bfloat16] = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    _ONEDNN[torch.float16] = torch.ops.mkldnn._is_mkldnn_fp16_supported()


def _dtype_under_autocast(state: Tensor) -> torch.dtype:
    """The dtype of torch's own results under autocast on a CPU: it casts the products only, and the state is added."""
    return torch.promote_types(state.dtype, torch.get_autocast_dtype("cpu"))


def in_torchs_dtype(
    name: str,
    x: Tensor,
    states: Sequence[Tensor],
    batch_sizes: Tensor | None,
    output: Tensor,
    final: tuple[Tensor, ...],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A layer's results in the dtype of torch.nn's results under autocast on a CPU. name: LSTM or GRU."""
    if not _any_autocast_enabled() or not x.is_cpu or not torch.is_autocast_enabled("cpu"):
        return output, final
    onednn = torch.backends.mkldnn.is_available() and (_is_compiling() or torch._C._get_mkldnn_enabled())
    if onednn and name == "LSTM" and batch_sizes is None and _ONEDNN.get(x.dtype, False):
        return output, final  # torch.nn.LSTM runs such an input in oneDNN, whose results have autocast's dtype
    dtype = _dtype_under_autocast(states[-1])
    return output.to(dtype), tuple(s.to(dtype) for s in final)


@functools.cache
def _outside_dynamo() -> Callable[..., tuple]:
    """Runs a layer outside of Dynamo, which breaks its graph at every nn.LSTM and GRU, ours too, unless ``allow_rnn``
    is set or it captures for fourfold. It would then try each function that the layer calls, at some tenths of a second
    each."""
    return torch.compiler.disable(lambda layer, *arguments: layer._forward(*arguments))


def _as_torch_has_it(layer: Any, kind: str, error: Exception, *arguments: Any) -> Any:
    """Calls torch's own layer with a tensor that is not dense, which the operators rejected with that error; torch
    supports some of them."""
    try:
        return layer._torch_class.forward(layer, *arguments)
    except (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        sentence = f"{layer._name}: expected the input and the state to be dense tensors, but got {kind}"
        raise TypeError(sentence) from error


class _TorchLayers(Layers):
    """The common part of LSTM and GRU: torch's checks with torch's messages, and autocast's dtypes."""

    _torch_class: type[nn.RNNBase]

    def _forward(self, input: Any, hx: Any, reset: Any) -> tuple:
        try:
            return Layers.forward(self, input, hx, reset)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if reset is not None or (kind := not_dense(input, hx)) is None:
                raise
            return _as_torch_has_it(self, kind, error, input, hx)

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | PackedSequence | None = None
    ) -> tuple[Tensor | PackedSequence, Any]:
        if _is_compiling() or _is_tracing():
            return self._captured(input, hx, reset)
        if _dynamo_callback():
            return _outside_dynamo()(self, input, hx, reset)
        return self._forward(input, hx, reset)

    def _captured(self, input: Any, hx: Any, reset: Any) -> tuple:
        """Exports torch's own layer to ONNX, which has it for any number of steps; ours would be unrolled."""
        if reset is None and _onnx.is_exporting():
            return self._torch_class.forward(self, input, hx)
        if recurrent.breaks_graph(input, hx):
            return recurrent.between_graphs(self, input, hx, reset)
        return self._forward(input, hx, reset)

    def _wrong_dimensions(self, input: Tensor) -> str:
        return f"Expected input to be 2D or 3D, got {input.dim()}D instead"

    def _given_states(self, hx: Any, batch: int | None, batched: bool) -> Sequence[Tensor]:
        lstm = self._name == "LSTM"
        if not lstm and not isinstance(hx, Tensor):
            got = f"{type(hx).__name__}; only an LSTM's state is a pair" if isinstance(hx, tuple) else type(hx).__name__
            raise TypeError(f"GRU: expected hx to be a torch.Tensor, h_0, but got {got}")
        states = expect_pair("LSTM", hx, "(h_0, c_0)") if lstm else (hx,)
        wanted = 3 if batched else 2
        if any(s.dim() != wanted for s in states):
            got = f"({states[0].dim()}-D, {states[-1].dim()}-D) tensors" if lstm else f"{hx.dim()}-D tensor"
            raise RuntimeError(
                f"For {'batched' if batched else 'unbatched'} {wanted}-D input, hx {'and cx ' * lstm}should also be "
                f"{wanted}-D but got {got}"
            )
        return states if batched else [s.unsqueeze(1) for s in states]

    def _check(self, x: Tensor, states: Sequence[Tensor], weight: Tensor, batch_sizes: Tensor | None) -> None:
        """Compares shapes and dtypes; only if something is wrong, torch's own checks run."""
        batch = states[0].shape[1] if batch_sizes is not None else x.shape[1]
        shape = self._state_shape(batch)
        fits = x.shape[-1] == self.input_size and x.dtype == weight.dtype and all(s.shape == shape for s in states)
        if batch_sizes is not None and fits and not _is_compiling():
            fits = batch == int(batch_sizes[0])
        if not fits:
            if not x.is_floating_point() and not _any_autocast_enabled():  # torch would also advise model.to(x.dtype)
                raise ValueError(
                    f"RNN input dtype ({x.dtype}) does not match weight dtype ({weight.dtype}). Convert input: "
                    f"input.to({weight.dtype})"
                )
            self._update_flat_weights()
            laid_out = x.transpose(0, 1) if self.batch_first and batch_sizes is None else x
            self.check_forward_args(laid_out, self._as_hx(states), batch_sizes)
        if x.shape[0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")

    def _run_layers(self, parameters: Any, x: Tensor, states: Any, batch_sizes: Tensor | None, reset: Any) -> tuple:
        output, final = super()._run_layers(parameters, x, states, batch_sizes, reset)
        return in_torchs_dtype(self._name, x, states, batch_sizes, output, final)


class LSTM(_TorchLayers, nn.LSTM):
    """:class:`torch.nn.LSTM`, each layer and direction in one call, with restarts within a sequence.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`torch.nn.LSTM`, with the same parameters, names and initial values. proj_size is not supported.

    Shapes:
        ``output, (h_n, c_n) = lstm(input, (h_0, c_0), reset)``, with D = 2 if bidirectional else 1:

        - input: (time, batch, input_size), or with batch_first (batch, time, input_size), or unbatched
          (time, input_size), or a PackedSequence
        - h_0, c_0, h_n, c_n: (D * num_layers, batch, hidden_size), unbatched without batch. Default: zero.
        - output: input's shape with D * hidden_size last, packed when input is.
        - reset: bools of input's shape without its last dimension, packed when input is: True where a new segment
          begins. Every layer then starts the step with a zero state, and no gradient flows to the previous segment. The
          reverse direction restarts at the last step of each segment: the results equal those of each segment run
          alone, with h_0 and c_0 for the forward direction of the first, unless it begins with a reset, and for the
          reverse direction of the last.

    Each call reads the current weights; :func:`fourfold.freeze` declares them constant.

    Raises:
        ValueError, RuntimeError: as in torch.nn.LSTM; proj_size; a reset of another shape.
        TypeError: dtypes that differ.
    """

    _name = "LSTM"
    _torch_class = nn.LSTM
    _operator = staticmethod(F.lstm)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.proj_size:
            raise ValueError(
                f"LSTM: expected proj_size to be 0, but got {self.proj_size}; use torch.nn.LSTM for a projected LSTM"
            )


class GRU(_TorchLayers, nn.GRU):
    """:class:`torch.nn.GRU`, each layer and direction in one call, with restarts within a sequence.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`torch.nn.GRU`, with the same parameters, names and initial values.

    Shapes:
        ``output, h_n = gru(input, h_0, reset)``; :class:`LSTM` describes each.

    Raises:
        As in :class:`LSTM` and torch.nn.GRU.
    """

    _name = "GRU"
    _torch_class = nn.GRU
    _state_count = 1
    _operator = staticmethod(F.gru)


CELL_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class _Cell(Freezable):
    """One step of a layer: a sequence of length one. _states: the names of the state's parts in torch's errors."""

    _name: str
    _torch_class: type[nn.RNNCellBase]
    _states: tuple[str, ...]
    _all_weights = (CELL_NAMES,)
    _read_by_calls = ("input_size", "hidden_size")

    def _forward(self, input: Tensor, states: Sequence[Tensor] | None) -> Any:
        if not _is_compiling() and (results := run_frozen(self, input, states)) is not None:
            return results
        try:
            return self._step(input, states)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if (kind := not_dense(input, states)) is None:
                raise
            hx = states if states is None or len(self._states) == 2 else states[0]
            return _as_torch_has_it(self, kind, error, input, hx)

    def _step(self, input: Tensor, states: Sequence[Tensor] | None) -> Any:
        dim = input.dim()
        if dim not in (1, 2):
            raise ValueError(f"{self._name}: Expected input to be 1D or 2D, got {dim}D instead")
        x = input if dim == 2 else input.unsqueeze(0)
        if states is None:
            states = [x.new_zeros(x.shape[0], self.hidden_size)] * len(self._states)
        else:
            for k, state in enumerate(states):
                if state.dim() not in (1, 2):
                    raise ValueError(
                        f"{self._name}: Expected {self._states[k]} to be 1D or 2D, got {state.dim()}D instead"
                    )
            if dim == 1:
                states = [expect_unbatched(self._name, n, s) for n, s in zip(self._states, states, strict=True)]
        self._check(x, states)
        parameters = tensors_of(self, CELL_NAMES)
        if _any_autocast_enabled() and x.is_cpu and torch.is_autocast_enabled("cpu"):
            final = self._step_under_autocast(x, states, parameters)
        else:
            prepacked = prepacked_weights(self, [parameters], x)
            prepacked = None if prepacked is None else prepacked[0]
            final = self._operator(x.unsqueeze(0), *states, *parameters, prepacked=prepacked)[1]
        if dim == 2:
            return final
        return tuple(s.squeeze(0) for s in final) if isinstance(final, tuple) else final.squeeze(0)

    def _check(self, x: Tensor, states: Sequence[Tensor]) -> None:
        batch, size = x.shape
        if size != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {size} expected {self.input_size}")
        for k, state in enumerate(states):
            shape = state.shape
            if shape[0] != batch:
                raise RuntimeError(f"Input batch size {batch} doesn't match hidden{k} batch size {shape[0]}")
            if shape[-1] != self.hidden_size:
                raise RuntimeError(
                    f"hidden{k} has inconsistent hidden_size: got {shape[-1]}, expected {self.hidden_size}"
                )

    def _step_under_autocast(self, x: Tensor, states: Sequence[Tensor], parameters: list[Tensor | None]) -> Any:
        """Computes in the dtype of torch's new state: a state rounded to less at each step would soon stop changing."""
        dtype = _dtype_under_autocast(states[-1])
        given = (x.unsqueeze(0), *states, *parameters)
        with torch.autocast("cpu", enabled=False):
            return self._operator(*(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in given))[1]


class LSTMCell(_Cell, nn.LSTMCell):
    """:class:`torch.nn.LSTMCell` on the operator of :class:`LSTM`: ``h, c = cell(x, (h, c))``.

    Args:
        input_size, hidden_size, bias, device, dtype: as in :class:`torch.nn.LSTMCell`, with the same parameters.

    Shapes:
        x (batch, input_size) and the state (batch, hidden_size) each; unbatched without batch. Default: zero.

    Raises:
        ValueError, RuntimeError: as in torch.nn.LSTMCell.
        TypeError: dtypes that differ.
    """

    _name = "LSTMCell"
    _torch_class = nn.LSTMCell
    _states = ("hx[0]", "hx[1]")
    _operator = staticmethod(F.lstm)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return self._forward(input, None if hx is None else expect_pair("LSTMCell", hx, "(h, c)"))


class GRUCell(_Cell, nn.GRUCell):
    """:class:`torch.nn.GRUCell` on the operator of :class:`GRU`: ``h = cell(x, h)``.

    Args, Shapes, Raises:
        As in :class:`LSTMCell` and :class:`torch.nn.GRUCell`; the state is h (batch, hidden_size).
    """

    _name = "GRUCell"
    _torch_class = nn.GRUCell
    _states = ("hidden",)
    _operator = staticmethod(F.gru)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._forward(input, None if hx is None else (hx,))
