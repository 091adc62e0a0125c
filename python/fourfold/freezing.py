"""Weights that the user declares constant, which then stay packed between calls. Without such a declaration nothing is
kept: each call reads the current weights."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from fourfold import _native

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_any_autocast_enabled = torch._C._is_any_autocast_enabled
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack

Model = TypeVar("Model", bound=nn.Module)


class Freezable:
    """A module whose weights :func:`freeze` can pack.

    _operator: the function for one layer and direction. _all_weights: the names of the parameters of each.
    _read_by_calls: the names of the other attributes that calls read.
    """

    _operator: Callable[..., tuple]
    _all_weights: Sequence[Sequence[str]]
    _read_by_calls: Sequence[str]


class _Copy(NamedTuple):
    """One layer's packed weights, and what they were packed from."""

    names: Sequence[str]
    parameters: tuple[Tensor | None, ...]
    storages: tuple[Any, ...]  # kept alive, so that their addresses are not reused
    marks: list[Any]
    prepacked: Tensor


class _Frozen:
    """A module's copies.

    steps: the number of optimiser steps that had been seen when the copies were last compared with the weights.
    holders: what keeps the module frozen: ``freeze``, and each ``frozen`` block, by an object of its own.
    run: runs a whole call in C++, or only compares the weights; None without a C++ module for this torch, or if the
        module lacks an attribute that its class sets.
    """

    def __init__(self, module: Any, copies: list[_Copy], steps: int) -> None:
        self.copies = copies
        self.prepacked = [copy.prepacked for copy in copies]
        self.steps = steps
        self.holders: set[object] = set()
        self.run = _run_of(module, copies)


class _Steps:
    """Counts optimiser steps: a fused one changes parameters without incrementing their versions. The hook only sets a
    flag: a step that torch.compile captures would read a counter, and so guard it."""

    marked = False
    seen = 0

    def note(self, *_: Any) -> None:
        self.marked = True

    def count(self) -> int:
        if self.marked:
            self.marked = False
            self.seen += 1
        return self.seen


_steps = _Steps()
_watch_steps = functools.cache(lambda: register_optimizer_step_post_hook(_steps.note))
# Not an attribute of the modules, so that pickled and deep copies don't have it.
_frozen: WeakKeyDictionary[nn.Module, _Frozen] = WeakKeyDictionary()
_any_frozen = _frozen.data  # every call tests this first: its truth value costs less than the weak dictionary's
# For changes of _frozen and of holders. Reentrant: a generator's frozen block may end during another block's change.
_lock = threading.RLock()
_BY_FREEZE = object()


def freeze(model: Model) -> Model:
    """Declares the weights of a model's recurrent layers constant, and packs their current values for the following
    calls.

    Calls without gradient then read the packed weights, which makes calls of few steps faster, until :func:`unfreeze`.
    The packed copy needs as much memory as the weights. Calls with gradient, under autocast, compiled, exported or
    transformed by torch.func read the original weights. Freezing again packs again. Inside a :func:`frozen` block, the
    declaration outlasts the block.

    Args:
        model: a module that contains, or is, a :class:`fourfold.nn.LSTM`, ``GRU``, ``LLTM``, ``LSTMCell`` or
            ``GRUCell`` with its weights on the CPU. Layers on other devices stay unchanged.

    Returns:
        model.

    Raises:
        TypeError: model is not a torch.nn.Module.
        ValueError: there is no such layer, or its weights are computed (parametrized), of a tensor subclass, or created
            in inference mode, where torch counts no writes.
        RuntimeError: later, by a call of a frozen layer whose weights were replaced, written in place, moved, or
            changed by an optimiser step. Writes that torch does not count are not detected, so don't freeze models
            whose weights are written through ``.data``, NumPy, collectives, ``UntypedStorage.copy_``, functional fused
            optimisers or ``torch.autograd._unsafe_preserve_version_counter``, or by another process after
            ``share_memory_``.
    """
    _expect_module("freeze", model)
    _hold(model, _BY_FREEZE)
    return model


def _expect_module(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: expected model to be a torch.nn.Module, but got {type(model).__name__}")


def _hold(model: nn.Module, holder: object) -> list[nn.Module]:
    """Packs a model's layers; returns those that are frozen now."""
    layers = [module for module in model.modules() if isinstance(module, Freezable)]
    if not layers:
        raise ValueError(
            f"freeze: expected a model with recurrent layers of fourfold.nn, but {type(model).__name__} has none; "
            "fourfold.optimize converts torch.nn's layers"
        )
    steps = _steps.count()  # before the copies are made, as their marks are
    made = {module: _Frozen(module, copies, steps) for module in layers if (copies := _copies_of(module))}
    if not made:
        device = next(layers[0].parameters()).device
        raise ValueError(
            "freeze: expected weights on the CPU, because only the CPU's kernels read packed weights, but these are on "
            f"{device}; leave a model on this device unfrozen"
        )
    _watch_steps()
    with _lock:
        for module, kept in made.items():
            if (before := _frozen.get(module)) is not None:
                kept.holders = before.holders
            kept.holders.add(holder)
            _frozen[module] = kept
    return list(made)


def unfreeze(model: Model) -> Model:
    """Ends :func:`freeze` and all open :func:`frozen` blocks, in any thread, for these layers: the packed weights are
    freed, and calls read the current weights.

    Args:
        model: the model, or a part of it. Layers that are not frozen stay unchanged.

    Returns:
        model.

    Raises:
        TypeError: model is not a torch.nn.Module.
    """
    _expect_module("unfreeze", model)
    modules = list(model.modules())
    with _lock:
        for module in modules:
            _frozen.pop(module, None)
    return model


def frozen(model: Model) -> contextlib.AbstractContextManager[Model]:
    """:func:`freeze` for the duration of a ``with`` block.

    Blocks may overlap, in one thread or in several, for the same layers or for parts of a model. A layer is unfrozen
    when the last block that holds it ends, unless :func:`freeze` was called for it too. Each block packs the current
    weights.

    Args, Raises:
        As in :func:`freeze`.
    """
    _expect_module("frozen", model)
    return _held(model)


@contextlib.contextmanager
def _held(model: Model) -> Iterator[Model]:
    holder = object()
    modules = _hold(model, holder)
    try:
        yield model
    finally:
        with _lock:
            for module in modules:
                if (kept := _frozen.get(module)) is not None:
                    kept.holders.discard(holder)
                    if not kept.holders:
                        _frozen.pop(module, None)


def is_frozen(module: nn.Module) -> bool:
    return module in _frozen


def run_frozen(module: Freezable, input: Any, hx: Any, reset: Any = None) -> Any:
    """Runs a frozen module's call in C++, which checks everything that :func:`prepacked_weights` checks. None for calls
    that Python handles: those that read the original weights, have to raise an error, or are uncommon."""
    if not _any_frozen or (kept := _frozen.get(module)) is None:
        return None
    if kept.run is None or _steps.marked or kept.steps != _steps.seen:
        return None
    return kept.run(module.__dict__, input, hx, reset)


def prepacked_weights(
    module: nn.Module, parameters: Sequence[Sequence[Tensor | None]], x: Tensor
) -> list[Tensor] | None:
    """The packed weights of a frozen module's layers, for a call that may use them; else None.

    parameters: each layer's, which the call would otherwise read.
    """
    if _is_compiling() or not _any_frozen or (kept := _frozen.get(module)) is None:
        return None
    if (
        _is_grad_enabled()
        or type(x) is not Tensor
        or not x.is_cpu
        or _any_autocast_enabled()
        or _transforms_active()
        or _is_tracing()
        or _dispatch_modes()
    ):
        return None
    if kept.run is None or not kept.run(module.__dict__):
        for copy, given in zip(kept.copies, parameters, strict=True):
            if not _is_as_packed(copy, given):
                _refuse(module, copy, given)
    seen = _steps.count()  # before the weights are compared: another thread may see a step meanwhile
    if kept.steps != seen:
        for copy in kept.copies:
            if not torch.equal(copy.prepacked, _prepack(module, copy.parameters)):
                _refuse(module, copy, ())
        kept.steps = seen
    return kept.prepacked


def _copies_of(module: Any) -> list[_Copy]:
    """Packs each layer's weights; empty if they are not on the CPU."""
    copies = []
    for names in module._all_weights:
        parameters = tuple(getattr(module, name) for name in names)
        tensors = [p for p in parameters if p is not None]
        if not all(p.is_cpu for p in tensors):
            return []
        for name, p in zip(names, parameters, strict=True):
            if p is not None and (wrong := _why_not_plain(module, name, p)):
                raise ValueError(
                    f"freeze: expected {type(module).__name__}'s weights to be plain parameters, but {name} {wrong}; "
                    "freeze the other layers by themselves"
                )
        marks = _marks(parameters)  # before the copy is made: a change meanwhile is found
        storages = tuple(p.untyped_storage() for p in tensors)
        copies.append(_Copy(names, parameters, storages, marks, _prepack(module, parameters)))
    return copies


def _why_not_plain(module: nn.Module, name: str, parameter: Tensor) -> str | None:
    if name not in module._parameters:
        return "is computed in each call"
    if type(parameter) not in (Tensor, nn.Parameter):
        return f"is a {type(parameter).__name__}"
    if parameter.is_inference():
        return "was made in inference mode, where torch counts no writes (clone it outside that mode)"
    return None


def _run_of(module: Any, copies: list[_Copy]) -> Callable[..., Any] | None:
    own = vars(module)
    if _native.module is None or not all(name in own for name in module._read_by_calls):
        return None
    attributes = {name: own[name] for name in module._read_by_calls}
    if attributes.get("dropout", 0) > 0 and module.num_layers > 1:
        attributes["training"] = False
    kept = [(copy.names, copy.parameters, copy.marks, copy.prepacked) for copy in copies]
    name = f"fourfold::{module._operator.__name__}"
    is_cell = "num_layers" not in attributes
    batch_first, bidirectional = (attributes.get(name, False) for name in ("batch_first", "bidirectional"))
    return _native.module.Frozen(name, attributes, kept, is_cell, batch_first, bidirectional)


def _prepack(module: Any, parameters: Sequence[Tensor | None]) -> Tensor:
    with torch.no_grad():
        return getattr(torch.ops.fourfold, f"{module._operator.__name__}_prepack")(*parameters)


def _is_as_packed(copy: _Copy, given: Sequence[Tensor | None]) -> bool:
    """An explicit loop, because it takes a good part of a small call's time."""
    for p, q, mark in zip(copy.parameters, given, copy.marks, strict=True):
        if p is not q or (p is not None and (p.data_ptr() != mark[0] or p._version != mark[1])):
            return False
    return True


def _marks(parameters: Sequence[Tensor | None]) -> list[Any]:
    """Each parameter's address and version, which show the changes that torch counts; inference tensors have no
    version."""
    return [None if p is None else (p.data_ptr(), None if p.is_inference() else p._version) for p in parameters]


def _refuse(module: nn.Module, copy: _Copy, given: Sequence[Tensor | None]) -> None:
    known = zip(copy.names, copy.parameters, copy.marks, given, _marks(given), strict=False)
    changed = [name for name, p, mark, q, now in known if p is not q or mark != now] or copy.names
    raise RuntimeError(
        f"{type(module).__name__}: expected the weights to stay as fourfold.freeze packed them, but "
        f"{', '.join(changed)} changed; call fourfold.unfreeze(model) before they do, fourfold.freeze(model) after it"
    )
