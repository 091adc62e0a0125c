"""Prevents torch from decomposing some operators while a graph is traced, before a backend could."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

# Their Python kernels decompose them into many operators; torch's own kernels are 2 to 20 times as fast.
KEPT = ("upsample_", "_upsample_", "hardshrink", "softshrink")
KEYS = ("Autograd", "CompositeImplicitAutograd")

_lock = threading.Lock()


class Tracing(threading.local):
    keeps = False  # whether this thread traces a graph in which they stay whole


_tracing = Tracing()


@contextmanager
def kept_whole(inputs: Sequence[object]) -> Iterator[None]:
    """While active, torch traces each of these operators, and its gradient, as one node, in this thread only. Does
    nothing if a size is symbolic, because torch's kernels would specialize it."""
    before, keeps = _tracing.keeps, not any(map(is_symbolic, inputs))
    if keeps:
        with _lock:
            wrap_kernels()
    _tracing.keeps = keeps
    try:
        yield
    finally:
        _tracing.keeps = before


def is_symbolic(given: object) -> bool:
    if isinstance(given, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in given.shape)
    return isinstance(given, (torch.SymInt, torch.SymFloat))


@functools.cache
def wrap_kernels() -> None:
    """Once per process: makes each Python kernel call torch's own kernel if this thread keeps operators whole. Has no
    effect in a torch that stores its Python kernels elsewhere."""
    import torch._decomp  # registers them

    keys = [key for key in (getattr(torch._C.DispatchKey, name, None) for name in KEYS) if key is not None]
    for name in dir(torch.ops.aten):
        if name.startswith(KEPT) and "backward" not in name:
            packet = getattr(torch.ops.aten, name)
            for overload in [getattr(packet, overload) for overload in packet.overloads() if "out" not in overload]:
                kernels = getattr(overload, "py_kernels", None)
                if isinstance(kernels, dict) and hasattr(overload, "_dispatch_cache"):
                    kernels |= {key: kept_or(overload, kernels[key]) for key in keys if key in kernels}
                    overload._dispatch_cache.clear()


def kept_or(overload: Callable[..., object], kernel: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(kernel)
    def call(*args: object, **kwargs: object) -> object:
        if not _tracing.keeps:
            return kernel(*args, **kwargs)
        with torch._C._DisablePythonDispatcher():  # as torch traces with static sizes
            return overload(*args, **kwargs)

    return call
