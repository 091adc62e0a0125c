"""A recurrent layer of any cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from fourfold.nn.lltm import LLTMCell
from fourfold.nn.recurrent import lay_out_packed_reset, lay_out_reset, reset_of_reverse

Cells = nn.Module | Sequence[nn.Module] | Callable[[int, bool], nn.Module]


class Recurrent(nn.Module):
    """A recurrent layer of any cell, by :func:`fourfold.scan`, with several layers, directions, dropout, packed input,
    restarts, and torch.nn.LSTM's conventions for states.

    Args:
        cell: a module called as ``y, state = cell(x, state)`` with x of shape (batch, features), y of shape (batch,
            output features) and a state, a tensor or a pytree of tensors with the batch as their first dimension.
            torch.nn's LSTMCell, GRUCell and RNNCell, which return the state alone, and fourfold.nn.LLTMCell are cells
            too. For several layers or directions: a list of cells, in torch.nn.LSTM's order (layer 0, layer 0 reversed,
            layer 1, …), or a function of the layer's number and whether it is reversed that returns a cell.
        num_layers: the number of stacked layers.
        batch_first: input and output are (batch, time, features) instead of (time, batch, features).
        bidirectional: each layer has a second cell, which starts with the last step; outputs are concatenated.
        dropout: the probability of dropout on each layer's output except the last one's, in training.

    Raises:
        TypeError, ValueError: other cells, or a number of cells that isn't num_layers times directions.
    """

    def __init__(
        self,
        cell: Cells,
        num_layers: int = 1,
        batch_first: bool = False,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        if type(num_layers) is not int or num_layers < 1:
            raise ValueError(f"Recurrent: expected num_layers to be a positive integer, but got {num_layers!r}")
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
            raise ValueError(f"Recurrent: expected dropout to be a probability, but got {dropout!r}")
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        self.dropout: float = float(dropout)
        self.cells: nn.ModuleList = nn.ModuleList(cells_of(cell, num_layers, bidirectional))

    def extra_repr(self) -> str:
        text = f"num_layers={self.num_layers}"
        for name in ("batch_first", "bidirectional", "dropout"):
            if getattr(self, name):
                text += f", {name}={getattr(self, name)}"
        return text

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        reset: Tensor | PackedSequence | None = None,
        reset_state: Any = None,
    ) -> tuple[Tensor | PackedSequence, Any]:
        """Returns the output of the last layer, and the last state.

        Args:
            input: (time, batch, features), with batch_first (batch, time, features), unbatched (time, features), or
                packed.
            hx: the initial state, each of whose tensors has shape (num_layers * directions, batch, …), without batch
                for unbatched input. None: the result of the cell's method ``initial_state(x)`` for the first step's x,
                and zeros for cells of torch.nn and LLTMCell.
            reset: bools of the input's shape without features, packed for packed input: True where a sequence restarts
                before the step, and in the reverse direction after the step.
            reset_state: the state to restart from, like hx; None as for hx.

        Raises:
            TypeError, ValueError: arguments that don't fit.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, reset, reset_state)
        if not isinstance(input, Tensor) or input.dim() not in (2, 3):
            got = f"shape {tuple(input.shape)}" if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(
                f"Recurrent: expected input to be a PackedSequence or to have 2 or 3 dimensions, but got {got}"
            )
        is_batched = input.dim() == 3
        reset = lay_out_reset("Recurrent", reset, input, self.batch_first)
        x = input if is_batched else input.unsqueeze(1)
        if is_batched and self.batch_first:
            x = x.transpose(0, 1)
        if not is_batched:
            hx, reset_state = (
                pytree.tree_map_only(Tensor, lambda leaf: leaf.unsqueeze(1), given) for given in (hx, reset_state)
            )
        output, state = self._run(x, hx, reset, reset_state, None)
        if not is_batched:
            return output.squeeze(1), pytree.tree_map_only(Tensor, lambda leaf: leaf.squeeze(1), state)
        return output.transpose(0, 1) if self.batch_first else output, state

    def _forward_packed(
        self, input: PackedSequence, hx: Any, reset: Any, reset_state: Any
    ) -> tuple[PackedSequence, Any]:
        """On padded steps a sequence keeps its state."""
        data, batch_sizes, order, back = input
        reset = lay_out_packed_reset("Recurrent", reset, input)
        is_step = torch.arange(int(batch_sizes[0]), device=batch_sizes.device) < batch_sizes[:, None]
        is_step = is_step.to(data.device)

        def padded(rows: Tensor) -> Tensor:
            whole = rows.new_zeros((*is_step.shape, *rows.shape[1:]))
            return whole.masked_scatter(is_step.view(*is_step.shape, *[1] * (rows.dim() - 1)), rows)

        if order is not None:
            hx, reset_state = (
                pytree.tree_map_only(Tensor, lambda leaf: leaf.index_select(1, order), given)
                for given in (hx, reset_state)
            )
        reset = None if reset is None else padded(reset)
        output, state = self._run(padded(data), hx, reset, reset_state, is_step)
        if back is not None:
            state = pytree.tree_map_only(Tensor, lambda leaf: leaf.index_select(1, back), state)
        return PackedSequence(output[is_step], batch_sizes, order, back), state

    def _run(
        self, x: Tensor, hx: Any, reset: Tensor | None, reset_state: Any, is_step: Tensor | None
    ) -> tuple[Tensor, Any]:
        """is_step: (time, batch), False on padded steps."""
        directions = 2 if self.bidirectional else 1
        count = self.num_layers * directions
        initial, restarted = (
            states_of(given, count, x.shape[1], name) for given, name in ((hx, "hx"), (reset_state, "reset_state"))
        )
        resets = [reset, backwards(reset, is_step)] if reset is not None else [None, None]
        final = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                cell = self.cells[k]
                first = initial_state(cell, x) if hx is None else initial[k]
                to = None
                if reset is not None:
                    to = initial_state(cell, x) if reset_state is None else restarted[k]
                y, state = run_cell(cell, x, first, resets[direction], to, is_step, direction == 1)
                outputs.append(y)
                final.append(state)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if self.dropout > 0 and layer < self.num_layers - 1:
                x = nn.functional.dropout(x, self.dropout, self.training)
        return x, pytree.tree_map(lambda *leaves: torch.stack(leaves), *final)


def cells_of(cell: Cells, num_layers: int, bidirectional: bool) -> Iterator[nn.Module]:
    wanted = [(layer, is_reverse) for layer in range(num_layers) for is_reverse in (False, True)[: 1 + bidirectional]]
    if isinstance(cell, nn.Module) and not isinstance(cell, nn.ModuleList):
        given: list[Any] = [cell]
    elif isinstance(cell, (list, tuple, nn.ModuleList)):
        given = list(cell)
    elif isinstance(cell, type):
        raise TypeError(
            f"Recurrent: expected cell to be a module, but got the class {cell.__name__}; create an instance"
        )
    elif callable(cell):
        given = [cell(layer, is_reverse) for layer, is_reverse in wanted]
    else:
        raise TypeError(f"Recurrent: expected cell to be a module, a list or a function, but got {type(cell).__name__}")
    if len(given) != len(wanted):
        raise ValueError(
            f"Recurrent: expected {len(wanted)} cells for {num_layers} layers"
            f"{' of two directions' if bidirectional else ''}, but got {len(given)}; pass a list, or a function "
            "(layer, reverse) that makes one"
        )
    for each in given:
        if not isinstance(each, nn.Module):
            raise TypeError(f"Recurrent: expected cells to be modules, but got {type(each).__name__}")
        yield each


def initial_state(cell: nn.Module, x: Tensor) -> Any:
    """x: (time, batch, features)."""
    make = getattr(cell, "initial_state", None)
    if make is not None:
        return make(x[0])
    if isinstance(cell, (nn.LSTMCell, nn.GRUCell, nn.RNNCell, LLTMCell)):
        wanted = next(cell.parameters()).dtype
        if x.dtype != wanted and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(
                f"Recurrent: expected the input to have the cell's dtype {wanted}, but got {x.dtype}; convert it with "
                f"input.to({wanted})"
            )
        zeros = x.new_zeros((x.shape[1], cell.hidden_size))
        return (zeros, zeros) if isinstance(cell, (nn.LSTMCell, LLTMCell)) else zeros
    raise TypeError(
        f"Recurrent: expected a cell, called as cell(x, state), with a method initial_state(x) or a first state hx, "
        f"but {type(cell).__name__} has no such method and hx is None"
    )


def states_of(given: Any, count: int, batch: int, name: str) -> list[Any]:
    """The state of each layer and direction."""
    for leaf in pytree.tree_leaves(given):
        if not isinstance(leaf, Tensor) or leaf.dim() < 2 or leaf.shape[:2] != (count, batch):
            got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            if leaf is not None:
                raise ValueError(f"Recurrent: expected tensors in {name} of shape ({count}, {batch}, …), but got {got}")
    return [pytree.tree_map_only(Tensor, lambda leaf, k=k: leaf[k], given) for k in range(count)]


def backwards(reset: Tensor, is_step: Tensor | None) -> Tensor:
    """Where the reversed direction restarts."""
    moved = reset_of_reverse(reset, None)
    return moved if is_step is None else moved & is_step


def run_cell(
    cell: nn.Module, x: Tensor, state: Any, reset: Tensor | None, to: Any, is_step: Tensor | None, reverse: bool
) -> tuple[Tensor, Any]:
    """One layer in one direction."""
    from fourfold.scanning import scan  # imports the compiler, and with it torch's
    from fourfold.scanning.structure import NotAPair, is_pair

    returns_state = isinstance(cell, (nn.LSTMCell, nn.GRUCell, nn.RNNCell, LLTMCell))

    def step(carry: Any, given: tuple[Tensor, Tensor | None, Tensor | None]) -> tuple[Any, Tensor]:
        x, restarts, runs = given
        old = carry if restarts is None else chosen(restarts, to, carry)
        if returns_state:
            new = cell(x, old)
            y = new[0] if isinstance(new, tuple) else new
        else:
            returned = cell(x, old)
            if not is_pair(returned):
                return returned  # scan raises NotAPair
            y, new = returned
        return new if runs is None else chosen(runs, new, carry), y

    try:
        state, y = scan(step, state, (x, reset, is_step), reverse=reverse)
    except NotAPair as error:
        got = str(error).rpartition(" but got ")[2]
        wanted = "Recurrent: expected the cell to return a pair, its output and the new state"
        raise TypeError(f"{wanted}, but got {got}") from error
    return y, state


def chosen(mask: Tensor, a: Any, b: Any) -> Any:
    """Selects a state for each sequence of the batch."""

    def one(left: Tensor, right: Tensor) -> Tensor:
        return torch.where(mask.view(-1, *[1] * (left.dim() - 1)), left, right)

    return pytree.tree_map(one, a, b)
