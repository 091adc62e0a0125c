"""The recurrent layers that the suites compare: each one's definition, torch.nn's and fourfold's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import fourfold
from benchmarks.problem import Candidate
from fourfold import reference


@dataclass(frozen=True)
class Kind:
    """states: how many tensors the state is."""

    name: str
    gates: int
    states: int

    @property
    def rival(self) -> type[nn.Module]:
        return getattr(nn, "LSTM" if self.name == "LLTM" else self.name)

    def draw(self, input_size: int, hidden_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Parameters as the modules draw theirs; one matrix holds the LLTM's weights of h and x."""
        rows, bound = self.gates * hidden_size, hidden_size**-0.5
        shapes = [(rows, input_size), (rows, hidden_size), (rows,), (rows,)]
        shapes = [(rows, hidden_size + input_size), (rows,)] if self.name == "LLTM" else shapes
        return tuple(torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in shapes)

    def definition(self, **settings: Any) -> Callable[..., tuple[Tensor, ...]]:
        """Of input, states and parameters, in plain PyTorch. settings: ``batch_sizes`` or ``reset``."""
        function = getattr(reference, self.name.lower())
        return lambda *inputs: flat(function(*inputs, **settings))


LLTM, LSTM, GRU = Kind("LLTM", 3, 2), Kind("LSTM", 4, 2), Kind("GRU", 3, 1)
KINDS = {kind.name: kind for kind in (LLTM, LSTM, GRU)}


def flat(result: tuple[Tensor, Any]) -> tuple[Tensor, ...]:
    """A layer's ``output, state`` in one tuple; the state of one layer without its first dimension."""
    output, state = result
    return output, *(s.squeeze(0) if s.dim() == 3 else s for s in as_tuple(state))


def as_tuple(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def call_module(
    module: nn.Module, batch_sizes: Tensor | None = None, reset: Tensor | None = None
) -> Callable[..., tuple[Tensor, ...]]:
    """A module with nn.LSTM's signature as a function of input and states (batch, hidden_size)."""
    settings = {} if reset is None else {"reset": reset}

    def call(input: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        given = input if batch_sizes is None else PackedSequence(input, batch_sizes)
        outer = tuple(state.unsqueeze(0) for state in states)
        output, state = module(given, outer if len(outer) > 1 else outer[0], **settings)
        return flat((output if batch_sizes is None else output.data, state))

    return call


def layer(make: type[nn.Module], shape: tuple[int, int], **settings: Any) -> Candidate:
    """A layer of torch.nn's or fourfold's. settings: dtype and device, ``batch_sizes`` of packed input, ``reset``."""
    placed = {name: settings.pop(name) for name in ("device", "dtype") if name in settings}
    module = make(*shape, **placed)
    return Candidate(call_module(module, **settings), tuple(module.parameters()))


def ours(kind: Kind) -> type[nn.Module]:
    return getattr(fourfold.nn, kind.name)
