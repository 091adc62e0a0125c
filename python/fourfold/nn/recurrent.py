"""The common part of LLTM, LSTM and GRU. An operator computes one layer in one direction; this module composes layers,
directions, dropout between layers, packed input, and restarts from a mask."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fourfold.freezing import Freezable, prepacked_weights, run_frozen

_is_compiling = torch.compiler.is_compiling


def tensors_of(module: nn.Module, names: Sequence[str]) -> list[Tensor | None]:
    """Parameters by name. A module's own attribute look-up costs as much as the smallest network, so it is used only
    for parameters that are computed from others."""
    found = module._parameters
    return [found[name] if name in found else getattr(module, name) for name in names]


# fourfold.compiler.pipeline.capture replaces both functions.
def between_graphs(layer: Any, *arguments: Any) -> tuple[Any, Any]:
    """A call that Dynamo keeps out of graphs."""
    return layer.forward(*arguments)


def is_graph_whole() -> bool:
    """Whether Dynamo must capture a single graph."""
    return True


def breaks_graph(input: Any, hx: Any) -> bool:
    """Whether the batch is in batch_sizes alone, which a graph can't read."""
    is_read = hx is None and isinstance(input, PackedSequence) and input.sorted_indices is None
    return is_read and torch.compiler.is_dynamo_compiling() and not is_graph_whole()


class Layers(Freezable):
    """A module that has torch.nn.LSTM's ``num_layers``, ``batch_first``, ``bidirectional`` and ``dropout``.

    Subclasses define _name, for errors; _all_weights, the parameters' names of each layer and direction, in the order
    of the states; and

    - _wrong_dimensions(input): the message for an input with neither 2 nor 3 dimensions.
    - _given_states(hx, batch, batched): the user's states, checked, with a batch. batch is None for packed input.
    - _check(x, states, weight, batch_sizes): all other checks before the operator runs; x is time first.
    """

    _name: str
    _state_count = 2
    _read_by_calls = ("input_size", "hidden_size", "num_layers", "bidirectional", "batch_first", "dropout")

    def _state_shape(self, batch: Any) -> tuple[Any, ...]:
        return self.num_layers * (2 if self.bidirectional else 1), batch, self.hidden_size

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None, reset: Tensor | PackedSequence | None = None
    ) -> tuple[Tensor | PackedSequence, Any]:
        if not _is_compiling() and (results := run_frozen(self, input, hx, reset)) is not None:
            return results
        parameters = [tensors_of(self, names) for names in self._all_weights]
        if isinstance(input, PackedSequence):
            if breaks_graph(input, hx):
                return between_graphs(self, input, hx, reset)
            return self._forward_packed(input, hx, reset, parameters)
        if not isinstance(input, Tensor):
            raise TypeError(
                f"{self._name}: expected input to be a Tensor or a PackedSequence, but got {type(input).__name__}"
            )
        if input.dim() not in (2, 3):
            raise ValueError(f"{self._name}: {self._wrong_dimensions(input)}")
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        batch = x.shape[1]
        states = self._zero_states(x, batch) if hx is None else self._given_states(hx, batch, batched)
        self._check(x, states, parameters[0][0], None)
        reset = lay_out_reset(self._name, reset, input, self.batch_first)
        output, final = self._run_layers(parameters, x, states, None, reset)
        if not batched:
            return output.squeeze(1), self._as_hx([s.squeeze(1) for s in final])
        return output.transpose(0, 1) if self.batch_first else output, self._as_hx(final)

    def _forward_packed(self, input: PackedSequence, hx: Any, reset: Any, parameters: list) -> tuple:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        # A captured graph can't read batch_sizes; the states and the order of the sequences have the batch size too.
        if hx is None:
            states = self._zero_states(data, int(batch_sizes[0]) if sorted_indices is None else len(sorted_indices))
        else:
            states = self._given_states(hx, None, True)
        self._check(data, states, parameters[0][0], batch_sizes)
        if hx is not None and sorted_indices is not None:
            states = [s.index_select(1, sorted_indices) for s in states]
        reset = lay_out_packed_reset(self._name, reset, input)
        output, final = self._run_layers(parameters, data, states, batch_sizes, reset)
        if unsorted_indices is not None:
            final = [s.index_select(1, unsorted_indices) for s in final]
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), self._as_hx(final)

    def _zero_states(self, x: Tensor, batch: int) -> list[Tensor]:
        return [x.new_zeros(self._state_shape(batch))] * self._state_count

    def _as_hx(self, states: Sequence[Tensor]) -> Any:
        return tuple(states) if self._state_count > 1 else states[0]

    def _run_layers(
        self, parameters: list, x: Tensor, states: Sequence[Tensor], batch_sizes: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """x, states, batch_sizes, reset: as in :func:`run_layers`."""
        return run_layers(
            self._operator,
            parameters,
            x,
            states,
            num_layers=self.num_layers,
            dropout=self.dropout if self.training else 0.0,
            batch_sizes=batch_sizes,
            reset=reset,
            prepacked=prepacked_weights(self, parameters, x),
        )


def run_layers(
    operator: Callable[..., tuple],
    parameters: Sequence[Sequence[Tensor | None]],
    x: Tensor,
    states: Sequence[Tensor],
    *,
    num_layers: int,
    dropout: float,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
    prepacked: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The last layer's output and the final states, in the form of ``states``.

    operator: computes one layer in one direction. parameters: the operator's, for each layer and direction.
    x: (time, batch, input_size), or (rows, input_size) when packed. reset: (time, batch) or (rows), or None.
    states: (directions * num_layers, batch, hidden_size) each.
    """
    directions = len(parameters) // num_layers
    resets = (reset, reset_of_reverse(reset, batch_sizes) if directions == 2 else None)
    single = len(parameters) == 1
    initial = [(s[0],) if single else s.unbind(0) for s in states]
    final: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            output, state = operator(
                x,
                *(s[k] for s in initial),
                *parameters[k],
                reverse=direction == 1,
                batch_sizes=batch_sizes,
                reset=resets[direction],
                prepacked=None if prepacked is None else prepacked[k],
            )
            outputs.append(output)
            final.append(state if isinstance(state, tuple) else (state,))
        x = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
        if dropout > 0 and layer < num_layers - 1:
            x = nn.functional.dropout(x, dropout)
    if single:
        return x, tuple(s.unsqueeze(0) for s in final[0])
    return x, tuple(torch.stack(column) for column in zip(*final, strict=True))


def lay_out_reset(name: str, reset: Any, input: Tensor, batch_first: bool) -> Tensor | None:
    """The mask in the operators' layout, time first. input: the module's input, as the user passed it."""
    if reset is None:
        return None
    if not isinstance(reset, Tensor):
        raise TypeError(f"{name}: expected reset to be a torch.Tensor of bools, but got {type(reset).__name__}")
    if reset.dtype != torch.bool:
        raise TypeError(
            f"{name}: expected reset to have dtype torch.bool, but got {reset.dtype}; convert it with reset.bool()"
        )
    if reset.shape != input.shape[:-1]:
        steps = {2: "(time,)", 3: "(batch, time)" if batch_first else "(time, batch)"}[input.dim()]
        raise ValueError(
            f"{name}: expected reset to have shape {steps} = {tuple(input.shape[:-1])}, but got {tuple(reset.shape)}"
        )
    if input.dim() == 2:
        return reset.unsqueeze(1)
    return reset.transpose(0, 1) if batch_first else reset


def lay_out_packed_reset(name: str, reset: Any, input: PackedSequence) -> Tensor | None:
    if reset is None:
        return None
    alike = isinstance(reset, PackedSequence) and reset.data.shape == input.data.shape[:1]
    if not alike or reset.data.dtype != torch.bool:
        raise ValueError(
            f"{name}: expected reset to be a PackedSequence of bools with one for each step of the input, as the input "
            "is packed; pack the mask with the input's lengths"
        )
    for field, given, wanted in zip(input._fields[1:], reset[1:], input[1:], strict=True):
        if given is wanted:
            continue
        sentence = (
            f"{name}: expected reset to have the input's {field}, but they differ; pack the mask as the input is "
            "packed, with the same lengths and the same enforce_sorted"
        )
        comparable = given is not None and wanted is not None and given.shape == wanted.shape
        if comparable and torch.compiler.is_compiling():  # a captured graph has no values: it compares at run time
            torch._assert_async((given == wanted.to(given.device)).all(), sentence)
        elif not comparable or not torch.equal(given, wanted.to(given.device)):
            raise ValueError(sentence)
    return reset.data


def reset_of_reverse(reset: Tensor | None, batch_sizes: Tensor | None) -> Tensor | None:
    """Where the reverse direction restarts: at the last step of each segment, which is the one before a reset."""
    if reset is None:
        return None
    if batch_sizes is None:
        moved = reset.roll(-1, 0)
        # Not a concatenation, whose sizes a captured graph would add up; nor an assignment, which DTensor lacks.
        moved[-1:].fill_(False)
        return moved
    # A row of step t moves up to the same sequence's row of step t - 1, which lies batch_sizes[t - 1] rows before.
    earlier = torch.repeat_interleave(batch_sizes[:-1], batch_sizes[1:])
    first = reset.shape[0] - earlier.shape[0]
    moved = torch.zeros_like(reset)
    rows = torch.arange(first, reset.shape[0], dtype=earlier.dtype, device=earlier.device)
    moved[(rows - earlier).to(reset.device)] = reset[first:]
    return moved
