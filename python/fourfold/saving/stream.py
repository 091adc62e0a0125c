"""A stream of calls of a loaded model, which keeps the state between them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fourfold.saving.executor import executor
from fourfold.saving.tree import Structure


class Stream:
    """Calls of a loaded model in order, such as frames of sound: :meth:`fourfold.Model.stream` makes it.

    The arguments that were saved as the model's state take results of the call before. A call takes the other
    arguments, and returns the other results in their structure: of a tuple or list of which one is left, that one; a
    named tuple becomes a tuple. The state shares no memory with arguments and results. After an exception it is that of
    before, except for what the model changes in place. Streams of one model are independent, but for buffers that the
    model changes; calls of one stream by several threads wait for each other.

    Raises:
        TypeError, ValueError: as the model does; and ValueError if sizes of the state don't follow from the arguments'.
    """

    def __init__(self, native: object, structure: str, first: Mapping[str, Tensor]):
        self._structure = Structure(structure)
        for name, tensor in first.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"stream: expected {name} to be a tensor, but got {type(tensor).__name__}")
        self._native = executor().Stream(native, dict(first))

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._structure.unflatten(self._native(*self._structure.flatten(args, kwargs)))

    @property
    def state(self) -> dict[str, Tensor]:
        """A copy of the state, by the names in the model's ``arguments``; empty before the first call."""
        return executor().state_of_stream(self._native)

    def reset(self, streams: Tensor | None = None, *, dim: int | Mapping[str, int] | None = None) -> None:
        """Returns to the beginning: to zeros, or the tensors that the stream began with.

        Args:
            streams: those of a batch that do, bool (batch); all by default.
            dim: the dimension of each state that counts them, such as 1 for an LSTM's (layers, batch, features), or one
                for each state by name. By default that of the one dynamic size that all states have.

        Raises:
            TypeError: streams that are no tensor.
            ValueError: streams of another size or dtype, or without ``dim`` states whose sizes don't tell it.
        """
        if streams is not None and not isinstance(streams, torch.Tensor):
            raise TypeError(f"reset: expected streams to be a tensor, but got {type(streams).__name__}")
        executor().reset_stream(self._native, streams, dict(dim) if isinstance(dim, Mapping) else dim)
