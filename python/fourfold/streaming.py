"""Weights that stay packed from one call to the next, which is what makes one step a call cheap.

A copy serves a call only while torch vouches that its parameters are what they were: the same tensors, at the same
address, with the same count of in-place changes, and no optimiser has made a step, for a fused step counts nothing.
What torch cannot see is a write behind its back, through ``.data`` or numpy; :meth:`Streams.repack` is for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

MOST_STEPS = 16  # of a call that keeps its weights packed: over more, packing costs little, and memory is worth more

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_any_autocast_enabled = torch._C._is_any_autocast_enabled
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack


class _Steps:
    """How many times optimisers are known to have changed parameters. The hook only sets a mark: a counter would be
    read, and so guarded, by an optimiser's step that torch.compile captures."""

    def __init__(self) -> None:
        self.watching = False
        self.made = False
        self.count = 0

    def watch(self) -> None:
        if not self.watching:
            register_optimizer_step_post_hook(self._note)
            self.watching = True

    def _note(self, *_: Any) -> None:
        self.made = True

    def current(self) -> int:
        if self.made:
            self.made = False
            self.count += 1
        return self.count


class _Copy(NamedTuple):
    parameters: tuple[Tensor | None, ...]
    storages: tuple[Any, ...]  # alive with the copy, so that their addresses are nobody else's
    marks: tuple
    packed: Tensor


_steps = _Steps()
# Beside the modules and not in them: a copy of a module, pickled or deep, has none of it.
_copies: WeakKeyDictionary[nn.Module, dict[int, _Copy]] = WeakKeyDictionary()


class Streams:
    """A module whose weights may stay packed between calls in eval mode without gradient."""

    def repack(self) -> None:
        """Forgets the packed weights. Call it after a write that torch cannot see: through ``.data``, through numpy, or
        by another library's kernel."""
        _copies.pop(self, None)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.repack()
        return super()._apply(*args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        if mode:
            self.repack()
        return super().train(mode)


def may_stream(module: nn.Module, x: Tensor, steps: Any) -> bool:
    """Whether a call is one of those that keep their weights packed."""
    return not (
        _is_compiling()
        or module.training
        or _is_grad_enabled()
        or type(x) is not Tensor
        or not x.is_cpu
        or steps > MOST_STEPS
        or _any_autocast_enabled()
        or _transforms_active()
        or _is_tracing()
        or _dispatch_modes()
    )


def packed_weights(
    module: nn.Module, k: int, parameters: Sequence[Tensor | None], pack: Callable[..., Tensor]
) -> Tensor | None:
    """The module's ``k``th packed weights, made of the parameters anew unless they are certain to be the same. None
    for parameters that may change unseen: those of inference mode, of a subclass, and in memory shared by processes."""
    copies = _copies.get(module)
    known = copies.get(k) if copies is not None else None
    if known is not None and _same(known.parameters, parameters) and known.marks == _marks(parameters):
        return known.packed
    tensors = [p for p in parameters if p is not None]
    if not all(type(p) in (Tensor, nn.Parameter) and p.is_cpu and not p.is_inference() for p in tensors):
        return None
    if any(p.is_shared() for p in tensors):
        return None
    _steps.watch()
    marks = _marks(parameters)  # before the copy is made: a change meanwhile makes it stale
    storages = tuple(p.untyped_storage() for p in tensors)
    packed = pack(*(None if p is None else p.detach() for p in parameters))
    # In one assignment, so that threads see a whole copy or none.
    _copies.setdefault(module, {})[k] = _Copy(tuple(parameters), storages, marks, packed)
    return packed


def _same(known: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> bool:
    return len(known) == len(given) and all(a is b for a, b in zip(known, given, strict=True))


def _marks(parameters: Sequence[Tensor | None]) -> tuple:
    """What changes with each change of the parameters' values that torch knows of."""
    seen: list[Any] = [_steps.current()]
    for p in parameters:
        if p is not None:
            seen += (p.data_ptr(), p._version)
    return tuple(seen)
