"""Recurrent modules of each kind, and ways in which their weights can change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters
from torch.optim.sgd import sgd as functional_sgd

import fourfold

KINDS = {
    "LSTM": lambda **options: fourfold.nn.LSTM(3, 20, num_layers=2, bidirectional=True, **options),
    "GRU": lambda **options: fourfold.nn.GRU(3, 20, **options),
    "LLTM": lambda **options: fourfold.nn.LLTM(3, 20, num_layers=2, **options),
    "LSTMCell": lambda **options: fourfold.nn.LSTMCell(3, 20, bias=False, **options),
    "GRUCell": lambda **options: fourfold.nn.GRUCell(3, 20, **options),
}


def input_of(module: nn.Module) -> Tensor:
    like = next(module.parameters())
    x = torch.linspace(-1, 1, 6, dtype=torch.float64, device=like.device).to(like.dtype)
    return x.reshape(2, 3) if isinstance(module, nn.RNNCellBase) else x.reshape(1, 2, 3)


def first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else first(result[0])


def stream(module: nn.Module) -> Tensor:
    """One call without gradient, which a frozen module computes from its prepacked weights."""
    with torch.no_grad():
        return first(module(input_of(module)))


def current(module: nn.Module) -> Tensor:
    """The result of a module of the same kind that never had other weights."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for own, given in zip(twin.parameters(), module.parameters(), strict=True):
            own.set_(given.detach().clone())
    return stream(twin)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


def step(make: Callable[[list], torch.optim.Optimizer]) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        optimizer = make(list(module.parameters()))
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        optimizer.zero_grad()

    return change


def compiled_step(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    torch.compile(optimizer.step, backend="eager")()


def load(assign: bool) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        module.load_state_dict({k: v + 0.25 for k, v in module.state_dict().items()}, assign=assign)

    return change


def in_place(module: nn.Module) -> None:
    with torch.no_grad():
        next(module.parameters()).mul_(0.5)


def in_place_in_inference_mode(module: nn.Module) -> None:
    with torch.inference_mode():
        next(module.parameters()).mul_(0.5)


def through_a_view(module: nn.Module) -> None:
    next(module.parameters()).detach()[0].fill_(0.3)


def initialised(module: nn.Module) -> None:
    nn.init.constant_(next(module.parameters()), 0.1)


def exchanged(module: nn.Module) -> None:
    name, p = next(module.named_parameters())
    setattr(module, name, nn.Parameter(p.detach() * 0.5))


def back_and_forth(module: nn.Module) -> None:
    """Memory is freed and may be allocated again at the same address with other values."""
    for p in module.parameters():
        p.data = p.data.bfloat16()
        p.data = p.data.float()


def pruned(module: nn.Module) -> None:
    prune.random_unstructured(module, next(iter(module._parameters)), 0.5)


def fused_functional(module: nn.Module) -> None:
    """torch's functional optimisers increase no version counter and call no hook."""
    parameters = list(module.parameters())
    with torch.no_grad():
        functional_sgd(
            parameters, [torch.ones_like(p) for p in parameters], [None] * len(parameters), fused=True,
            weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip


def polyak(module: nn.Module) -> None:
    """The update of a target network."""
    for p in module.parameters():
        p.data.mul_(0.9)
        torch.add(p.data, torch.ones_like(p), alpha=0.1, out=p.data)


def through_a_vector(module: nn.Module) -> None:
    vector = parameters_to_vector(module.parameters()).detach().clone()
    vector_to_parameters(vector, module.parameters())
    vector.mul_(0.5)


# Changes that torch counts or an optimiser reports: a frozen module raises.
SEEN = {
    "sgd": step(lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)),
    "sgd-foreach": step(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)),
    "sgd-fused": step(lambda p: torch.optim.SGD(p, lr=0.1, fused=True)),
    "adam-foreach": step(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True)),
    "adam-fused": step(lambda p: torch.optim.Adam(p, lr=0.1, fused=True)),
    "adamw-fused": step(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    "adagrad-fused": step(lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True)),
    "compiled-step": compiled_step,
    "load_state_dict": load(False),
    "load_state_dict-assign": load(True),
    "in-place": in_place,
    "in-place-in-inference-mode": in_place_in_inference_mode,
    "through-a-view": through_a_view,
    "init": initialised,
    "exchanged": exchanged,
    "to-bfloat16-and-back": lambda module: module.to(torch.bfloat16).to(torch.float32),
    "data-to-bfloat16-and-back": back_and_forth,
    "to-double": lambda module: module.to(torch.float64),
    "share_memory": lambda module: (module.share_memory(), in_place(module)),
    "pruned": pruned,
    "vector": through_a_vector,
}
# Changes that can't be detected.
UNSEEN = {
    "data": lambda module: next(module.parameters()).data.sub_(0.1),
    "polyak": polyak,
    "numpy": lambda module: next(module.parameters()).detach().numpy().__imul__(0.5),
    "sgd-fused-functional": fused_functional,
}
