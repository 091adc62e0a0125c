"""``fourfold.load``: a model from its file. It imports neither the compiler nor torch.export."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fourfold import _native
from fourfold.saving.tree import Structure


class Model:
    """A loaded model. It is called as the exported program was, and returns its results in their structure.

    Calls compute no gradients, whatever grad mode says. Tensors that the model was exported to change, arguments and
    buffers, are changed in place; a model with such buffers is called by one thread at a time.

    Raises TypeError for arguments of another structure, and ValueError for tensors of another dtype, device or shape,
    or sizes out of the exported bounds, with the argument's name."""

    def __init__(self, native: object, path: str):
        self._native = native
        self._path = path
        self._graph, structure, self._names, self._tensors, results = _native.module.describe_model(native)
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
        """Parameters, buffers and constants by their names, in the model's own memory: later calls read what is written
        there."""
        return dict(self._tensors)

    def __str__(self) -> str:
        """The graph, for people to read."""
        from fourfold.saving.text import text_of

        return text_of(self._graph)

    def __repr__(self) -> str:
        return f"<fourfold model {self._path!r}: {', '.join(self._names)}>"


def load(path: str | os.PathLike[str], *, device: torch.device | str | None = None, allow: Iterable[str] = ()) -> Model:
    """Load a model that :func:`fourfold.save` wrote. Nothing of the file is executed or unpickled: it is read, and
    everything in it is checked, before anything runs.

    The weights stay in the file's memory, which is mapped. So replace the file of a model that runs; don't write into
    it. (``fourfold.save`` replaces files.)

    path: the file.
    device: where the model runs: its weights and constants go there, and all devices in the graph become this one. None
    is the CPU. Programs run on devices that fourfold generates code for; elsewhere torch's operators take their place.
    allow: namespaces of operators that the file may call besides ``aten``, ``prims`` and ``fourfold``, such as
    ``("mylib",)``. Import what registers them first. Such operators get any arguments that the file has, so allow them
    only for files that you trust.

    Raises ValueError for a file that can't be loaded, with what is wrong with it; ImportError where this build of
    fourfold has no module for the installed torch."""
    _native.expect_library("load")
    if _native.module is None:
        raise ImportError(
            f"load: expected fourfold's module for torch {_native.VERSION}, but calls run in {_native.road}; install a "
            "torch that this fourfold was built for, or build fourfold for this one"
        )
    namespaces = [] if isinstance(allow, str) else list(allow)
    if isinstance(allow, str) or not all(isinstance(name, str) for name in namespaces):
        raise TypeError(f"load: expected allow to be a tuple of namespaces, such as ('mylib',), but got {allow!r}")
    where = None if device is None else str(torch.device(device))
    name = os.fspath(path)
    return Model(_native.module.Model(name, where, namespaces, _generator(torch.device(where or "cpu"))), name)


def _generator(device: torch.device) -> int:
    """What runs programs, -1 for torch's operators. Loop nests are compiled behind calls, where llvmlite is installed,
    and a GPU's kernels when a layout first comes."""
    from fourfold.compiler.nest import service
    from fourfold.devices import programs

    return -1 if programs.obstacle(device.type) else service.number(device=device)
