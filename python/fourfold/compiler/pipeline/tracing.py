"""Keeps operators whole that torch decomposes while it traces a graph, before any backend runs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

# Their decompositions consist of many operators; torch's own kernels are 2 to 20 times as fast.
KEPT = ("upsample_", "_upsample_", "hardshrink", "softshrink")
LOOP = torch.ops.higher_order.while_loop
KEYS = ("Autograd", "CompositeImplicitAutograd")

_lock = threading.Lock()
_tracing = 0  # how many traces keep them whole now
_aside: list[tuple[object, dict[object, object]]] = []  # operators, with the kernels that were removed from them


@contextmanager
def kept_whole(module: nn.Module, inputs: Sequence[object]) -> Iterator[None]:
    """In this context torch traces each of these operators and its gradient as one. Does nothing if a size of the
    captured module is symbolic, since torch's kernels would specialize it. Dynamo compiles one function at a time;
    a thread that traces without Dynamo meanwhile, as make_fx does, also keeps the operators whole."""
    graphs = (part.graph for part in module.modules() if isinstance(part, GraphModule))
    traced = [node.meta.get("example_value") for graph in graphs for node in graph.nodes]
    if any(map(is_symbolic, tree_leaves([traced, list(inputs)]))):
        yield
        return
    enter()
    try:
        yield
    finally:
        leave()


@contextmanager
def counting_loops(module: GraphModule, inputs: Sequence[object]) -> Iterator[None]:
    """In this context torch traces the gradient of ``while_loop``, which reads how many steps there were, whatever
    ``torch._dynamo.config.capture_scalar_outputs`` is."""
    mode = detect_fake_mode(inputs)
    env = mode and mode.shape_env
    loops = (part.graph.find_nodes(op="call_function", target=LOOP) for part in module.modules() if is_graph(part))
    if env is None or not hasattr(env, "settings") or not any(loops):
        yield
        return
    before, env.settings = env.settings, dataclasses.replace(env.settings, allow_scalar_outputs=True)
    try:
        yield
    finally:
        env.settings = before


def is_graph(module: nn.Module) -> bool:
    return isinstance(module, GraphModule)


def is_symbolic(given: object) -> bool:
    if isinstance(given, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in given.shape)
    return isinstance(given, (torch.SymInt, torch.SymFloat))


def enter() -> None:
    global _tracing
    with _lock:
        found = [] if _tracing else kept_overloads()
        _tracing += 1
        for overload in found:
            taken = {}
            for key in filter(None, (getattr(torch._C.DispatchKey, name, None) for name in KEYS)):
                if key in overload.py_kernels:
                    taken[key] = overload.py_kernels.pop(key)
            if taken:
                overload._dispatch_cache.clear()
                _aside.append((overload, taken))


def leave() -> None:
    global _tracing
    with _lock:
        _tracing -= 1
        while not _tracing and _aside:
            overload, taken = _aside.pop()
            overload.py_kernels.update(taken)
            overload._dispatch_cache.clear()


def kept_overloads() -> list[object]:
    """The overloads that torch has Python kernels for; none under a torch that keeps these elsewhere."""
    import torch._decomp  # registers them

    found = []
    for name in dir(torch.ops.aten):
        if name.startswith(KEPT) and "backward" not in name:
            packet = getattr(torch.ops.aten, name)
            found += [getattr(packet, overload) for overload in packet.overloads() if "out" not in overload]
    return [o for o in found if isinstance(getattr(o, "py_kernels", None), dict) and hasattr(o, "_dispatch_cache")]
