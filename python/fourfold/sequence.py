"""An operator computes one layer in one direction; here they are composed: layers, directions, dropout between, and the
restarts that a mask gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fourfold.freezing import prepacked_weights


def tensors_of(module: nn.Module, names: Sequence[str]) -> list[Tensor | None]:
    """Parameters by name. Most lie in the module's dictionary; a parametrized one is an attribute."""
    found = module._parameters
    return [p if (p := found.get(name)) is not None else getattr(module, name) for name in names]


def lay_out_reset(module: nn.Module, name: str, reset: Any, input: Tensor) -> Tensor | None:
    """The mask as the operators take it, time first. ``input`` is the module's input as the user gave it."""
    if reset is None:
        return None
    if not isinstance(reset, Tensor):
        raise TypeError(f"{name}: expected reset to be a torch.Tensor of bools, but got {type(reset).__name__}")
    if reset.dtype != torch.bool:
        raise TypeError(
            f"{name}: expected reset to have dtype torch.bool, but got {reset.dtype}; convert it with reset.bool()"
        )
    if reset.shape != input.shape[:-1]:
        steps = {2: "(time,)", 3: "(batch, time)" if module.batch_first else "(time, batch)"}[input.dim()]
        raise ValueError(
            f"{name}: expected reset to have shape {steps} = {tuple(input.shape[:-1])}, but got {tuple(reset.shape)}"
        )
    if input.dim() == 2:
        return reset.unsqueeze(1)
    return reset.transpose(0, 1) if module.batch_first else reset


def lay_out_packed_reset(name: str, reset: Any, input: PackedSequence) -> Tensor | None:
    if reset is None:
        return None
    alike = isinstance(reset, PackedSequence) and reset.data.shape == input.data.shape[:1]
    if not alike or reset.data.dtype != torch.bool:
        raise ValueError(
            f"{name}: expected reset to be a PackedSequence of bools with one for each step of the input, as the input "
            "is packed; pack the mask with the input's lengths"
        )
    for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        _expect_same_packing(name, field, getattr(reset, field), getattr(input, field))
    return reset.data


def _expect_same_packing(name: str, field: str, given: Tensor | None, wanted: Tensor | None) -> None:
    if given is wanted:
        return
    sentence = (
        f"{name}: expected reset to have the input's {field}, but they differ; pack the mask as the input is packed, "
        "with the same lengths and the same enforce_sorted"
    )
    comparable = given is not None and wanted is not None and given.shape == wanted.shape
    if comparable and torch.compiler.is_compiling():  # a captured graph knows no values: it compares when it runs
        torch._assert_async((given == wanted.to(given.device)).all(), sentence)
    elif not comparable or not torch.equal(given, wanted.to(given.device)):
        raise ValueError(sentence)


def reset_of_reverse(reset: Tensor | None, batch_sizes: Tensor | None) -> Tensor | None:
    """Where the reverse direction restarts: at the last step of each segment, which is the one before a reset."""
    if reset is None:
        return None
    if batch_sizes is None:
        moved = reset.roll(-1, 0)
        moved[-1:] = False  # not concatenated from parts, whose sizes a captured graph would have to add up
        return moved
    # A row of step t moves up to the same sequence's row of step t - 1, which lies batch_sizes[t - 1] rows before.
    earlier = torch.repeat_interleave(batch_sizes[:-1], batch_sizes[1:])
    first = reset.shape[0] - earlier.shape[0]
    moved = torch.zeros_like(reset)
    rows = torch.arange(first, reset.shape[0], dtype=earlier.dtype, device=earlier.device)
    moved[(rows - earlier).to(reset.device)] = reset[first:]
    return moved


def run_layers(
    module: nn.Module,
    run: Callable[..., tuple],
    parameters: Sequence[Sequence[Tensor | None]],
    x: Tensor,
    states: Sequence[Tensor],
    batch_sizes: Tensor | None,
    reset: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers of a module that has torch.nn.LSTM's ``num_layers``, ``bidirectional`` and ``dropout``.

    run: the operator's function, for one layer and direction.
    parameters: one sequence a layer and direction, in the order of the states.
    x: (time, batch, input_size), or (rows, input_size) when packed.
    states: (num_layers * directions, batch, hidden_size) each.
    reset: (time, batch) or (rows), or None.

    Returns the last layer's output and the final states, as ``states``.
    """
    directions = 2 if module.bidirectional else 1
    resets = (reset, reset_of_reverse(reset, batch_sizes) if directions == 2 else None)
    single = len(parameters) == 1
    initial = [(s[0],) if single else s.unbind(0) for s in states]
    prepacked = prepacked_weights(module, parameters, x)
    final: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            output, state = run(
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
        if module.dropout > 0 and layer < module.num_layers - 1:
            x = nn.functional.dropout(x, module.dropout, module.training)
    if single:
        return x, tuple(s.unsqueeze(0) for s in final[0])
    return x, tuple(torch.stack(column) for column in zip(*final, strict=True))
