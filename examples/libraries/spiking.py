"""snntorch and norse: a spiking network over all time steps in one call of fourfold.scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold

STATES = ("syn", "mem", "spk")  # snntorch's names for what a neuron keeps


def snntorch_over_time(net: nn.Module, x: Tensor) -> Any:
    """x: (time, ...). What ``net`` returns in each step, stacked. The neurons were made with init_hidden=True; they
    begin with the states that they have (``snntorch.utils.reset`` clears them) and keep the last ones."""
    import snntorch

    first = net(x[0])  # gives the states their shapes
    neurons = [module for module in net.modules() if isinstance(module, snntorch.SpikingNeuron)]
    kept = [(neuron, name) for neuron in neurons for name in STATES if name in neuron._buffers]

    def step(state: list[Tensor], x: Tensor) -> tuple[list[Tensor], Any]:
        for (neuron, name), value in zip(kept, state, strict=True):
            setattr(neuron, name, value)
        y = net(x)
        return [getattr(neuron, name) for neuron, name in kept], y

    if len(x) == 1:
        return pytree.tree_map(lambda result: result.unsqueeze(0), first)
    _, others = fourfold.scan(step, [getattr(neuron, name) for neuron, name in kept], x[1:])
    return before(first, others)


def norse_over_time(net: nn.Module, x: Tensor, state: Any = None) -> tuple[Any, Any]:
    """x: (time, ...). net: a norse.torch.SequentialState, or a cell. Returns results and last state, as Lift."""
    first, state = net(x[0], state)

    def step(state: Any, x: Tensor) -> tuple[Any, Any]:
        y, state = net(x, list(state) if isinstance(state, list) else state)  # SequentialState writes into its list
        return state, y

    if len(x) == 1:
        return pytree.tree_map(lambda result: result.unsqueeze(0), first), state
    state, others = fourfold.scan(step, state, x[1:])
    return before(first, others), state


def before(first: Any, others: Any) -> Any:
    return pytree.tree_map(lambda a, b: torch.cat((a.unsqueeze(0), b)), first, others)
