"""A stream of a model's calls, as cpp/model/stream.cpp runs it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fourfold.saving.in_python.model import Model
from fourfold.saving.in_python.values import shown


class Stream:
    """Stream(model, {name: first state}): called with the other leaves, returns a list of the others. Raises
    ValueError."""

    def __init__(self, model: Model, first: Mapping[str, Tensor]):
        if not model.state:
            raise ValueError(
                "stream: expected a model that was saved with its state: fourfold.save(program, path, state={...})"
            )
        self.model, self.lock = model, threading.Lock()
        self.names = [model.signature.arguments[argument].name for argument, _ in model.state]
        self.first: list[Tensor | None] = [None] * len(self.names)
        for name, tensor in first.items():
            self.first[self.place_of(name)] = tensor.detach().clone()
        self.now: list[Tensor] = []  # empty before the first call

    def place_of(self, name: str) -> int:
        if name not in self.names:
            known = ", ".join(self.names)
            raise ValueError(f"stream: expected the name of a state, {known}, but got {shown(name)}")
        return self.names.index(name)

    def __call__(self, *inputs: Any) -> list[Any]:
        with self.lock, torch.no_grad():
            own, count = self.model.state, len(self.model.signature.arguments)
            if len(inputs) + len(own) != count:
                raise ValueError(f"stream: expected {count - len(own)} arguments, but got {len(inputs)}")
            others, places = iter(inputs), {argument for argument, _ in own}
            given = [None if k in places else next(others) for k in range(count)]
            state = list(self.now) or self.begun(given)
            for (argument, _), tensor in zip(own, state, strict=True):
                given[argument] = tensor
            return self.sorted(self.model(*given), given, state)

    def begun(self, given: Sequence[Any]) -> list[Tensor]:
        """The first state, whose dynamic sizes follow from those of the other arguments."""
        known = list(given)
        for (argument, _), first in zip(self.model.state, self.first, strict=True):
            known[argument] = first
        return [
            self.model.signature.zeros(argument, known) if first is None else first.clone()
            for (argument, _), first in zip(self.model.state, self.first, strict=True)
        ]

    def sorted(self, results: Sequence[Any], taken: list[Any], state: list[Tensor]) -> list[Any]:
        """Keeps the state among the results, and returns the others. What is kept shares no memory with what anybody
        else has: a caller may write the next frame into the tensor of the last one."""
        kept = {result for _, result in self.model.state}
        others = [result for k, result in enumerate(results) if k not in kept]
        for (_, result), own in zip(self.model.state, state, strict=True):
            if result < 0:  # changed in place: it remains the stream's own
                others = [other.clone() if share_memory(own, [other]) else other for other in others]
        taken = [*taken, *others, *self.model.tensors.values()]
        for k, (_, result) in enumerate(self.model.state):
            if result >= 0:
                found = results[result]
                state[k] = found.clone() if share_memory(found, taken) else found
                taken.append(state[k])
        self.now = state
        return others

    def reset(self, streams: Tensor | None, dim: int | Mapping[str, int] | None) -> None:
        with self.lock, torch.no_grad():
            if streams is None:
                self.now = []
                return
            dims = self.dims_of(dim)
            if streams.dim() != 1 or streams.dtype != torch.bool:
                raise ValueError("reset: expected streams to be bool and of one dimension")
            every = zip(self.names, dims, self.first, self.now, strict=False)
            self.now = [restarted(streams, *each) for each in every]

    def dims_of(self, dim: int | Mapping[str, int] | None) -> list[int]:
        if isinstance(dim, int):
            return [dim] * len(self.names)
        if dim is None:
            found = self.model.signature.dimensions_of_streams([argument for argument, _ in self.model.state])
            if found is None:
                raise ValueError(
                    "reset: expected dim, the state's dimension that counts the streams, because no dynamic size of "
                    "the exported program tells it"
                )
            return found
        if len(dim) != len(self.names):
            raise ValueError("reset: expected a dimension for each state")
        by_place = {self.place_of(name): own for name, own in dim.items()}
        return [by_place[k] for k in range(len(self.names))]

    def copied_state(self) -> dict[str, Tensor]:
        with self.lock, torch.no_grad():
            return {name: tensor.clone() for name, tensor in zip(self.names, self.now, strict=False)}


def share_memory(tensor: Tensor, others: Iterable[Any]) -> bool:
    own = tensor.untyped_storage().data_ptr()
    return any(isinstance(other, Tensor) and other.untyped_storage().data_ptr() == own for other in others)


def restarted(streams: Tensor, name: str, given: int, first: Tensor | None, now: Tensor) -> Tensor:
    dim = given + now.dim() if given < 0 else given
    if not 0 <= dim < now.dim():
        raise ValueError(
            f"reset: expected {name} to have a dimension {given} that counts the streams, but it has the sizes "
            f"{list(now.shape)}"
        )
    if now.size(dim) != streams.size(0):
        raise ValueError(
            f"reset: expected streams to have {now.size(dim)} elements, as dimension {dim} of {name}, but got "
            f"{streams.size(0)}"
        )
    shape = [streams.size(0) if k == dim else 1 for k in range(now.dim())]
    begin = torch.zeros_like(now) if first is None else first
    return torch.where(streams.to(now.device).view(shape), begin, now)
