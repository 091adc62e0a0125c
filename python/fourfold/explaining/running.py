"""Compiles and runs a function, and records the graphs and how long each stage took."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from fourfold.explaining.data import Stage

if TYPE_CHECKING:
    from fourfold.compiler.pipeline.record import CapturedGraph, Record
    from fourfold.scanning.record import Scan

MOST_COMPILATIONS, COMPILATIONS_SECONDS = 3, 3.0  # after the first
MOST_CALLS, FEWEST_CALLS, CALLS_SECONDS = 100, 5, 0.2
TORCHS = str(Path(torch.__file__).parent)
HALVES = ("forward", "backward")
CAPTURE = "capture (torch)"

Function = Callable[..., Any]
Settings = Mapping[str, object] | None


@dataclass
class Observed:
    captured: list[CapturedGraph]  # without graphs that torch discarded to capture them again
    breaks: list[str]  # reasons of the graph breaks
    scans: list[Scan] = field(default_factory=list)  # with their backward
    stages: list[Stage] = field(default_factory=list)
    compilations: int = 0  # "again" is the median of this many


@dataclass
class Compilation:
    """A function compiled for one call."""

    call: Function
    record: Record
    stages: dict[str, float]  # seconds of that call


def observe(
    f: Function, args: Sequence[Any], kwargs: Mapping[str, Any], options: Settings, dynamic: bool | None, timing: bool
) -> Observed:
    """timing: compile, call and differentiate f several times; otherwise f is called once."""
    is_loaded, start = "torch._dynamo" in sys.modules, perf_counter()
    import torch._dynamo
    from torch._dynamo.utils import counters

    from fourfold.compiler.options import Options
    from fourfold.scanning.record import recording

    load = {} if is_loaded else {"load torch's compiler": perf_counter() - start}
    Options.of(options)  # raises before anything is compiled
    call = functools.partial(called, args=args, kwargs=kwargs, differentiates=timing)
    compile = functools.partial(compiled, uncompiled(f), call, options, dynamic)
    breaks = dict(counters["graph_break"])
    # An earlier capture with other sizes must not make these sizes symbolic.
    static = {} if dynamic is not None else {"automatic_dynamic_shapes": False}
    with torch._dynamo.config.patch(static), torch.random.fork_rng(devices=[]):
        with recording() as scans:
            first = compile()
        reasons = [reason for reason, count in counters["graph_break"].items() if count > breaks.get(reason, 0)]
        for complete in (*first.record.complete, *(scan.complete for scan in scans)):
            complete()
        observed = Observed([one for one in first.record.captured if one.forward is not None], reasons, scans)
        if not timing:
            return observed
        calls = repeated(lambda: call(first.call), FEWEST_CALLS, MOST_CALLS, CALLS_SECONDS)
        others = repeated(compile, 1, MOST_COMPILATIONS, COMPILATIONS_SECONDS)
    later = {f"a later call, {half}": median(times) for half, *times in zip(HALVES, *calls, strict=False)}
    for each in (first, *others):
        each.stages[CAPTURE] = max(0.0, each.stages[CAPTURE] - later["a later call, forward"])
    warm = {name: median(each.stages[name] for each in others) for name in others[0].stages} | later
    cold = load | first.stages
    observed.stages = [Stage(name, cold.get(name), warm.get(name)) for name in cold | warm]
    observed.compilations = len(others)
    return observed


def repeated(run: Callable[[], Any], fewest: int, most: int, seconds: float) -> list[Any]:
    """The results of as many runs as fit into the time."""
    found, end = [], perf_counter() + seconds
    while len(found) < fewest or len(found) < most and perf_counter() < end:
        found.append(run())
    return found


def compiled(
    f: Function, call: Callable[[Function], list[float]], options: Settings, dynamic: bool | None
) -> Compilation:
    from fourfold.compiler import backend
    from fourfold.compiler.pipeline.record import Record

    record, whole, inside = Record(), [], []  # seconds of the backend calls, and of our passes in them

    def timed(graph: GraphModule, inputs: Sequence[object]) -> Function:
        start = perf_counter()
        made = backend(graph, inputs, options=options, record=record)
        whole.append(perf_counter() - start)
        inside.extend(record.captured[-1].seconds.get(half, 0.0) for half in HALVES)
        return made

    timed.__name__ = "fourfold"  # in torch's messages
    timed.__wrapped__ = backend  # lets capture.is_for recognize our backend
    function = torch.compile(fresh(f), backend=timed, dynamic=dynamic, **apart())
    seconds = call(function)
    stages = {CAPTURE: seconds[0] - sum(whole)}  # includes the forward's run
    if whole:
        stages["differentiate (torch)"] = sum(whole) - sum(inside)
        for half in HALVES[: len(seconds)]:
            stages[f"programs of the {half}"] = sum(one.seconds.get(half, 0.0) for one in record.captured)
    return Compilation(function, record, stages | {"a first call, in all": sum(seconds)})


def called(call: Function, args: Sequence[Any], kwargs: Mapping[str, Any], differentiates: bool) -> list[float]:
    """The seconds of the forward and, if requested and there is one, of the backward."""
    since = torch.autograd._get_sequence_nr()
    start = perf_counter()
    results = call(*args, **kwargs)
    seconds = [perf_counter() - start]
    roots, edges = differentiable(results, since) if differentiates else ([], [])
    if edges:
        ones = [torch.ones_like(root) for root in roots]
        start = perf_counter()
        torch.autograd.grad(roots, edges, ones, allow_unused=True)
        seconds.append(perf_counter() - start)
    return seconds


def differentiable(results: object, since: int) -> tuple[list[torch.Tensor], list[GradientEdge]]:
    """The results computed since then that have a gradient, and the edges at which their graph ends: leaves, whose
    .grad stays unchanged, and autograd graphs that existed before, which can still be used."""
    tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    roots = [tensor for tensor in tensors if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= since]
    pending = [root.grad_fn for root in roots]
    seen, edges = set(pending), {}
    while pending:
        for node, number in pending.pop().next_functions:
            if node is None:
                continue
            if hasattr(node, "variable") or node._sequence_nr() < since:
                edges[node, number] = GradientEdge(node, number)
            elif node not in seen:
                seen.add(node)
                pending.append(node)
    return roots, list(edges.values())


def uncompiled(f: Function) -> Function:
    """The function that was passed to torch.compile."""
    from torch._dynamo.eval_frame import OptimizedModule, innermost_fn

    return f._orig_mod if isinstance(f, OptimizedModule) else innermost_fn(f)


def apart() -> dict[str, bool]:
    """An option since torch 2.13, with which compiling here doesn't count against the recompilation limit, even at
    graph breaks in functions that f calls, which torch compiles under their own code."""
    return {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}


def fresh(f: Function) -> Function:
    """A copy of f with its own code object: torch caches compiled code by code object, up to a limit."""
    function = f.__func__ if isinstance(f, types.MethodType) else f
    if not isinstance(function, types.FunctionType) or function.__code__.co_filename.startswith(TORCHS):
        self = f  # torch names f's parameters after this variable

        def call(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        f = function = call
    copied = types.FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    for name in (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__"):
        setattr(copied, name, getattr(function, name))
    copied.__dict__.update(function.__dict__)
    return types.MethodType(copied, f.__self__) if isinstance(f, types.MethodType) else copied


def parameter_names(f: Function) -> list[str]:
    try:
        return list(signature(getattr(f, "forward", f)).parameters)
    except (TypeError, ValueError):  # a builtin
        return []
