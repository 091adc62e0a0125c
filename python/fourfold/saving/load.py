"""``fourfold.load``: a model from its file. It imports neither the compiler nor torch.export."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fourfold import _native
from fourfold.saving.executor import executor
from fourfold.saving.state import structure_of_stream
from fourfold.saving.stream import Stream
from fourfold.saving.tree import Structure


class Tensors(Mapping[str, Tensor]):
    """A loaded model's tensors. One that isn't asked for can't be written to."""

    def __init__(self, native: object, names: list[str]):
        self._native = native
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return executor().tensor_of_model(self._native, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"<tensors of a fourfold model: {', '.join(self._names)}>"


class Model:
    """A loaded model. Call it like the exported program; it returns the results in the same structure.

    Calls compute no gradients, in any grad mode. Arguments and buffers that the exported model changes are changed in
    place; call a model with such buffers from one thread at a time.

    Raises:
        TypeError: arguments of another structure.
        ValueError: tensors of another dtype, device or shape, or sizes outside the exported bounds; the error names the
            argument.
    """

    def __init__(self, native: object, path: str):
        self._native = native
        self._path = path
        self._graph, structure, self._names, names, results, self._state = executor().describe_model(native)
        self._tensors = Tensors(native, names)
        self._structure = Structure(structure)
        if self._structure.leaves != (len(self._names), results):
            raise ValueError(
                f"load: expected the structure of {len(self._names)} arguments and {results} results, but got one of "
                f"{' and '.join(map(str, self._structure.leaves))}"
            )

    def __call__(self, *args: object, **kwargs: object) -> object:
        structure = self._structure
        if not (structure.is_flat and not kwargs and len(args) == len(self._names)):
            args = structure.flatten(args, kwargs)
        return structure.unflatten(self._native(*args))

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments' leaves, in order."""
        return list(self._names)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Parameters, buffers and constants by name. They are the model's own memory: later calls read values that are
        written to them. Taking a weight ends its packing: products with it are slower from then on.
        """
        return self._tensors

    def stream(self, **state: Tensor) -> Stream:
        """Calls that keep the state between them, of a model that was saved with ``state=``.

            stream = fourfold.load("model.ff").stream()
            probabilities = [stream(frame) for frame in frames]

        Args:
            state: tensors to begin with, by the names of the arguments; zeros by default.

        Raises:
            ValueError: a model that was saved without its state, or other names.
        """
        structure = structure_of_stream(self._structure.inputs, self._structure.outputs, self._state)
        return Stream(self._native, structure, state)

    def __str__(self) -> str:
        """The graph as text."""
        from fourfold.saving.text import text_of

        return text_of(self._graph)

    def __repr__(self) -> str:
        return f"<fourfold model {self._path!r}: {', '.join(self._names)}>"


def load(path: str | os.PathLike[str], *, device: torch.device | str | None = None, allow: Iterable[str] = ()) -> Model:
    """Loads a model that :func:`fourfold.save` wrote. Nothing in the file is executed or unpickled; the whole file is
    checked before anything runs.

    The weights stay in the mapped file: don't write into the file of a model that is in use, replace it, as
    ``fourfold.save`` does.

    Args:
        path: the file.
        device: where the model runs: its weights and constants move there, and it replaces all devices in the graph.
            None is the CPU. On devices for which fourfold generates no programs, torch's operators run instead.
        allow: namespaces of operators that the file may call besides ``aten``, ``prims`` and ``fourfold``, such as
            ``("mylib",)``. Import the library that registers them first. These operators receive any arguments that the
            file has, so allow them only for files that you trust.

    Returns:
        The model, a :class:`Model`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that can't be loaded, with the reason.
        ImportError: fourfold was installed without its compiled library.
    """
    _native.expect_library("load")
    namespaces = [] if isinstance(allow, str) else list(allow)
    if isinstance(allow, str) or not all(isinstance(name, str) for name in namespaces):
        raise TypeError(f"load: expected allow to be a tuple of namespaces, such as ('mylib',), but got {allow!r}")
    where = None if device is None else str(_usable(torch.device(device)))
    name = os.fsdecode(path)
    if not Path(name).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return Model(executor().Model(name, where, namespaces, _generator(torch.device(where or "cpu"))), name)


def _usable(device: torch.device) -> torch.device:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # torch raises either, by device and build
        reason = str(error).partition("\n")[0].partition(". ")[0]  # without the list of backends
        raise ValueError(
            f"load: expected a device that torch can use here, but got '{device}': torch says: {reason}"
        ) from error
    return device


def _generator(device: torch.device) -> int:
    """The generator's number, -1 for torch's operators. Loop nests are compiled in the background if llvmlite is
    installed, and a GPU's kernels when a layout is first called."""
    from fourfold.compiler.nest.jit import service
    from fourfold.devices import programs

    return -1 if programs.obstacle(device.type) else service.number(device=device)
