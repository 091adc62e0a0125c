"""The recurrent layers that the benchmarks compare: what defines each, torch.nn's, and fourfold's by whichever road."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import fourfold
from benchmarks.problem import Candidate
from fourfold import reference

Layer = Callable[..., tuple[Tensor, ...]]  # of input and states (batch, hidden_size); gives the output, then the states


@dataclass(frozen=True)
class Kind:
    """states: how many tensors the state is. joined: whether one matrix holds the weights of h and x."""

    name: str
    gates: int
    states: int
    joined: bool = False

    @property
    def torch_name(self) -> str:
        """torch.nn's layer that it is compared with."""
        return "LSTM" if self.name == "LLTM" else self.name

    def shapes(self, input_size: int, hidden_size: int) -> list[tuple[int, ...]]:
        rows = self.gates * hidden_size
        if self.joined:
            return [(rows, hidden_size + input_size), (rows,)]
        return [(rows, input_size), (rows, hidden_size), (rows,), (rows,)]

    def draw(self, input_size: int, hidden_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Parameters as the modules draw theirs."""
        bound = hidden_size**-0.5
        shapes = self.shapes(input_size, hidden_size)
        return tuple(torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in shapes)

    def definition(self, **settings: Any) -> Callable[..., tuple[Tensor, ...]]:
        """Of input, states and parameters, in plain PyTorch. settings: ``batch_sizes`` or ``reset``."""
        function = getattr(reference, self.name.lower())

        def define(input: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            return flat(function(input, *rest, **settings))

        return define


LLTM, LSTM, GRU = Kind("LLTM", 3, 2, joined=True), Kind("LSTM", 4, 2), Kind("GRU", 3, 1)
KINDS = {kind.name: kind for kind in (LLTM, LSTM, GRU)}


def flat(result: tuple[Tensor, Any]) -> tuple[Tensor, ...]:
    """A layer's ``output, state`` in one tuple; the state of one layer without its first dimension."""
    output, state = result
    states = state if isinstance(state, tuple) else (state,)
    return output, *(s.squeeze(0) if s.dim() == 3 else s for s in states)


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


def ours(
    kind: Kind,
    input_size: int,
    hidden_size: int,
    made: dict[str, Any] | None = None,
    training: bool = True,
    **settings: Any,
) -> Candidate:
    """fourfold's module; settings: ``batch_sizes`` of packed input, or ``reset``."""
    module = getattr(fourfold.nn, kind.name)(input_size, hidden_size, **(made or {})).train(training)
    return Candidate(call_module(module, **settings), tuple(module.parameters()))


def torchs(
    kind: Kind, input_size: int, hidden_size: int, made: dict[str, Any] | None = None, **settings: Any
) -> Candidate:
    """torch.nn's layer; settings: ``batch_sizes`` of packed input."""
    module = getattr(nn, kind.torch_name)(input_size, hidden_size, **(made or {}))
    return Candidate(call_module(module, **settings), tuple(module.parameters()))


def deep_mlp(sizes: Sequence[int], activation: str) -> Candidate:
    """fourfold's network of any depth; parameters as nn.Sequential's, a weight and a bias a layer."""
    module = fourfold.nn.MLP(list(sizes), activation=activation)
    named = list(module.named_parameters())
    weights, biases = ([value for name, value in named if word in name] for word in ("weight", "bias"))
    pairs = zip(weights, biases, strict=True)
    return Candidate(lambda x: (module(x),), tuple(value for pair in pairs for value in pair))
