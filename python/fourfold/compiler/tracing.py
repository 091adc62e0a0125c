"""Keeps operators whole that torch decomposes while it traces a graph, before any backend runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from fourfold.compiler.lowering import product_gradients

# Their decompositions consist of many operators; torch's own kernels are 2 to 20 times as fast.
KEPT = ("upsample_", "_upsample_", "hardshrink", "softshrink")
KEYS = ("Autograd", "CompositeImplicitAutograd")

Kernel = Callable[..., object]


class Kernels:
    """Changes of operators' Python kernels, in effect while any trace is in this context. find: returns operators and
    dispatch keys, each with the kernel that replaces torch's, or None."""

    def __init__(self, find: Callable[[], Iterable[tuple[object, object, Kernel | None]]]):
        self.find = find
        self.lock = threading.Lock()
        self.traces = 0
        self.aside: list[tuple[object, object, Kernel | None]] = []  # what was there before

    def __enter__(self) -> None:
        with self.lock:
            self.traces += 1
            if self.traces == 1:
                self.aside = [(*place, self.replace(*place, kernel)) for *place, kernel in self.find()]

    def __exit__(self, *raised: object) -> None:
        with self.lock:
            self.traces -= 1
            if not self.traces:
                for overload, key, kernel in self.aside:
                    self.replace(overload, key, kernel)

    def replace(self, overload: object, key: object, kernel: Kernel | None) -> Kernel | None:
        before = overload.py_kernels.pop(key, None)
        if kernel is not None:
            overload.py_kernels[key] = kernel
        overload._dispatch_cache.clear()
        return before


@contextmanager
def kept_whole(module: nn.Module, inputs: Sequence[object]) -> Iterator[None]:
    """In this context torch traces each of these operators and its gradient as one, also those of products; the first
    not if a size of the captured module is symbolic, since torch's kernels would specialize it, and products not under
    functorch's transforms, which differentiate by themselves. Dynamo compiles one function at a time; a thread that
    traces without Dynamo meanwhile, as make_fx does, also keeps the operators whole."""
    nodes = [node for part in module.modules() if isinstance(part, GraphModule) for node in part.graph.nodes]
    traced = [node.meta.get("example_value") for node in nodes]
    is_any_symbolic = any(map(is_symbolic, tree_leaves([traced, list(inputs)])))
    transforms = any(str(getattr(node.target, "__module__", "")).startswith("torch._functorch") for node in nodes)
    with nullcontext() if is_any_symbolic else WHOLE, nullcontext() if transforms else PRODUCTS:
        yield


def is_symbolic(given: object) -> bool:
    if isinstance(given, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in given.shape)
    return isinstance(given, (torch.SymInt, torch.SymFloat))


def can_be_changed(overload: object) -> bool:
    """Not under a torch that keeps Python kernels elsewhere."""
    return isinstance(getattr(overload, "py_kernels", None), dict) and hasattr(overload, "_dispatch_cache")


def kernels_of_kept() -> Iterator[tuple[object, object, None]]:
    import torch._decomp  # registers them

    keys = [key for key in (getattr(torch._C.DispatchKey, name, None) for name in KEYS) if key is not None]
    for name in dir(torch.ops.aten):
        if name.startswith(KEPT) and "backward" not in name:
            packet = getattr(torch.ops.aten, name)
            for overload in (getattr(packet, each) for each in packet.overloads() if "out" not in each):
                if can_be_changed(overload):
                    yield from ((overload, key, None) for key in keys if key in overload.py_kernels)


def kernels_of_products() -> Iterator[tuple[object, object, Kernel]]:
    return (place for place in product_gradients.kernels() if can_be_changed(place[0]))


WHOLE, PRODUCTS = Kernels(kernels_of_kept), Kernels(kernels_of_products)
