"""A function compiled and run, with the record of what was made and how long each stage took."""

from __future__ import annotations

import re
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from fourfold.compiler.record import Captured, Record

MOST_COMPILATIONS = 3  # after the first
COMPILATIONS_SECONDS = 3.0
MOST_CALLS, FEWEST_CALLS = 100, 5
CALLS_SECONDS = 0.2
TORCHS = str(Path(torch.__file__).parent)
LOAD, CAPTURE, DIFFERENTIATE = "load torch's compiler", "capture (torch)", "differentiate (torch)"

Function = Callable[..., Any]


@dataclass
class Seen:
    """One graph that the backend was given."""

    captured: Captured
    names: list[str]  # of its inputs, as the function has them
    seconds: float  # of the backend's call
    within: dict[str, float]  # those of the stages that were part of it


@dataclass
class Compilation:
    """A function that was compiled for one call, and that call."""

    call: Function
    record: Record
    seen: list[Seen] = field(default_factory=list)
    seconds: tuple[float, float | None] = (0.0, None)  # of the first call: forward, backward

    def stages(self, warm_forward: float) -> dict[str, float]:
        backend = sum(seen.seconds for seen in self.seen)
        halves = ("forward", "backward") if self.seconds[1] is not None else ("forward",)
        inside = sum(seen.within.get(half, 0.0) for seen in self.seen for half in halves)
        found = {CAPTURE: max(0.0, self.seconds[0] - backend - warm_forward)}
        if self.seen:
            found[DIFFERENTIATE] = backend - inside
            for half in halves:
                found[f"programs of the {half}"] = sum(seen.captured.seconds.get(half, 0.0) for seen in self.seen)
        return found | {"a first call, in all": self.seconds[0] + (self.seconds[1] or 0.0)}


@dataclass
class Observed:
    seen: list[Seen]  # without the graphs that torch gave up, to capture them again
    breaks: list[str]  # why a graph ended before the function did
    cold: dict[str, float] = field(default_factory=dict)
    warm: dict[str, float] = field(default_factory=dict)
    compilations: int = 0  # that the warm times are the medians of


@dataclass
class Observer:
    """What is compiled, and how it is called."""

    f: Function
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, object] | None
    dynamic: bool | None
    timing: bool

    def compiled(self) -> Compilation:
        from fourfold.compiler import backend
        from fourfold.compiler.record import Record

        record = Record()
        names = parameter_names(self.f)

        def timed(graph: GraphModule, inputs: Sequence[object]) -> Function:
            known = [input_name(node, names) for node in graph.graph.find_nodes(op="placeholder")]
            before, start = len(record.captured), time.perf_counter()
            made = backend(graph, inputs, options=self.options, record=record)
            seconds = time.perf_counter() - start
            result.seen += [Seen(one, known, seconds, dict(one.seconds)) for one in record.captured[before:]]
            return made

        timed.__name__ = "fourfold"  # in torch's messages
        timed.__wrapped__ = backend  # by which Dynamo captures recurrent layers
        result = Compilation(torch.compile(fresh(self.f), backend=timed, dynamic=self.dynamic, **apart()), record)
        if self.timing:
            result.seconds = self.timed_call(result.call)
        else:
            result.call(*self.args, **self.kwargs)
        return result

    def timed_call(self, call: Function) -> tuple[float, float | None]:
        since = torch.autograd._get_sequence_nr()
        start = time.perf_counter()
        results = call(*self.args, **self.kwargs)
        forward = time.perf_counter() - start
        roots, edges = differentiable(results, since)
        if not edges:
            return forward, None
        ones = [torch.ones_like(root) for root in roots]
        start = time.perf_counter()
        torch.autograd.grad(roots, edges, ones, allow_unused=True)
        return forward, time.perf_counter() - start

    def later_calls(self, call: Function) -> dict[str, float]:
        """The medians of forward and backward."""
        found: list[tuple[float, float | None]] = []
        end = time.perf_counter() + CALLS_SECONDS
        while len(found) < FEWEST_CALLS or len(found) < MOST_CALLS and time.perf_counter() < end:
            found.append(self.timed_call(call))
        halves = zip(("forward", "backward"), zip(*found, strict=True), strict=True)
        return {f"a later call, {half}": median(times) for half, times in halves if None not in times}


def observe(
    f: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, object] | None = None,
    dynamic: bool | None = None,
    timing: bool = False,
) -> Observed:
    """timing: whether it is compiled and called several times, and differentiated; otherwise f is called once."""
    is_loaded = "torch._dynamo" in sys.modules
    start = time.perf_counter()
    import torch._dynamo
    from torch._dynamo.utils import counters

    from fourfold.compiler.options import Options

    load = {} if is_loaded else {LOAD: time.perf_counter() - start}
    Options.of(options)
    observer = Observer(uncompiled(f), args, kwargs, options, dynamic, timing)
    breaks = dict(counters["graph_break"])
    # What was captured with other sizes before doesn't make these symbols.
    static = {} if dynamic is not None else {"automatic_dynamic_shapes": False}
    with torch._dynamo.config.patch(static), torch.random.fork_rng(devices=[]):
        first = observer.compiled()
        reasons = [reason for reason, count in counters["graph_break"].items() if count > breaks.get(reason, 0)]
        for complete in first.record.complete:
            complete()
        seen = [one for one in first.seen if one.captured.forward is not None]
        if not timing:
            return Observed(seen, reasons)
        later = observer.later_calls(first.call)
        others: list[Compilation] = []
        end = time.perf_counter() + COMPILATIONS_SECONDS
        while len(others) < MOST_COMPILATIONS and (not others or time.perf_counter() < end):
            others.append(observer.compiled())
    stages = [other.stages(later["a later call, forward"]) for other in others]
    warm = {stage: median(one[stage] for one in stages) for stage in stages[0]} | later
    return Observed(seen, reasons, load | first.stages(later["a later call, forward"]), warm, len(others))


def differentiable(results: object, since: int) -> tuple[list[torch.Tensor], list[GradientEdge]]:
    """What was computed since then and has a gradient; and where its graph ends, at what was there before: tensors that
    require a gradient, which nothing is accumulated in, and graphs of others, which stay whole."""
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
    """The function that torch.compile was given."""
    from torch._dynamo.eval_frame import OptimizedModule, innermost_fn

    return f._orig_mod if isinstance(f, OptimizedModule) else innermost_fn(f)


def apart() -> dict[str, bool]:
    """From torch 2.13 on compiling here doesn't count against the limit of recompilations, even at graph breaks in
    functions that f calls: torch compiles those under their own code."""
    return {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}


def fresh(f: Function) -> Function:
    """The same with code of its own: torch keeps what it compiles with the code, and bounds how much."""
    function = f.__func__ if isinstance(f, types.MethodType) else f
    if not isinstance(function, types.FunctionType) or function.__code__.co_filename.startswith(TORCHS):
        self = f  # as which torch names its parameters

        def call(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return with_own_code(call)
    copied = with_own_code(function)
    return types.MethodType(copied, f.__self__) if isinstance(f, types.MethodType) else copied


def with_own_code(f: types.FunctionType) -> types.FunctionType:
    copied = types.FunctionType(f.__code__.replace(), f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    copied.__kwdefaults__, copied.__module__, copied.__qualname__ = f.__kwdefaults__, f.__module__, f.__qualname__
    copied.__dict__.update(f.__dict__)
    return copied


def parameter_names(f: Function) -> list[str]:
    try:
        return list(signature(getattr(f, "forward", f)).parameters)
    except (TypeError, ValueError):  # a builtin
        return []


def input_name(node: Node, parameters: Sequence[str]) -> str:
    """As people write it: x, self.linear.weight; from where torch took it."""
    given = node.meta.get("grapharg")
    source = getattr(given, "source", None) or getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", None)
    name = name() if callable(name) else name
    if not isinstance(name, str):
        return node.name
    name = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", name)
    name = re.sub(r"^[LG]\['(\w+)'\]", r"\1", name)
    place = re.match(r"args\[(\d+)\]", name)
    if place and int(place[1]) < len(parameters):
        name = parameters[int(place[1])] + name[place.end() :]
    return re.sub(r"^kwargs\['(\w+)'\]", r"\1", name)
