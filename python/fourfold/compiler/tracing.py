"""Operators that torch writes in terms of others before any backend is asked, kept whole while a graph is traced."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

# Their Python kernels write them in many operators; torch's own kernels are 2 to 20 times as fast.
KEPT = ("upsample_", "_upsample_", "hardshrink", "softshrink")
KEYS = ("Autograd", "CompositeImplicitAutograd")

_lock = threading.Lock()


class Tracing(threading.local):
    keeps = False  # whether this thread traces a graph that keeps them whole


_tracing = Tracing()


@contextmanager
def kept_whole(inputs: Sequence[object]) -> Iterator[None]:
    """Within, torch traces each of these operators and its gradient as one, in this thread alone. Does nothing where a
    size is a symbol, which torch's kernels would fix."""
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
    """Once for the process: each Python kernel leaves the call to torch's own where this thread keeps operators whole.
    A torch that has its Python kernels elsewhere keeps none."""
    import torch._decomp  # which registers them

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
        with torch._C._DisablePythonDispatcher():  # as torch traces where no size can be a symbol
            return overload(*args, **kwargs)

    return call
