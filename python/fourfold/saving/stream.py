"""A stream of calls of a loaded model, which keeps the state between them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fourfold import _native
from fourfold.saving.tree import Structure


class Stream:
    """Calls of a loaded model in order, such as frames of sound: :meth:`fourfold.Model.stream` makes it.

    The arguments that were saved as the model's state take results of the call before. A call takes the other
    arguments, and returns the other results; of a tuple or list of which one is left, that one. Streams of one model
    are independent; call each from one thread at a time.

    Raises:
        TypeError, ValueError: as the model does; and ValueError if sizes of the state don't follow from the arguments'.
    """

    def __init__(self, native: object, structure: str, first: Mapping[str, Tensor]):
        self._structure = Structure(structure)
        self._native = _native.module.Stream(native, dict(first))

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._structure.unflatten(self._native(*self._structure.flatten(args, kwargs)))

    @property
    def state(self) -> dict[str, Tensor]:
        """The state by the names of the model's arguments; empty before the first call."""
        return _native.module.state_of_stream(self._native)

    def reset(self, streams: Tensor | None = None, *, dim: int = 0) -> None:
        """Begins again.

        Args:
            streams: those of a batch that begin again, bool (batch); all by default.
            dim: the state's dimension that counts them, such as 1 for an LSTM's (layers, batch, features).

        Raises:
            ValueError: streams of another size or dtype.
        """
        if streams is not None and not isinstance(streams, torch.Tensor):
            raise TypeError(f"reset: expected streams to be a tensor, but got {type(streams).__name__}")
        _native.module.reset_stream(self._native, streams, dim)
