"""The fallback: if a program can't be compiled or run, torch's operators run instead, with one warning an operator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.analysis.support import REFUSAL

SWITCH = "FOURFOLD_STRICT"
FAILED = "failed: "
BATCHED = torch._C._parse_dispatch_key("Batched")  # a name would be parsed in each call
MOST_FAILURES = 3  # of the passes of one graph
_reported: set[str] = set()


def is_strict() -> bool:
    switch = os.environ.get(SWITCH, "")
    if switch not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {switch}; set it to 1 for errors instead of warnings, or unset it")
    return switch == "1"


def report(target: object, error: Exception) -> None:
    """Warns once for each operator; raises the error if FOURFOLD_STRICT is 1."""
    if is_strict():
        raise error
    if str(target) not in _reported:
        _reported.add(str(target))
        why = f"{type(error).__name__}: {error}"
        what = f"fourfold could not compute {target} in a program, so torch's operators run instead: {why}"
        warnings.warn(what, RuntimeWarning, stacklevel=2)


def is_traced(given: object) -> bool:
    """Whether torch's operators have to be called for it: a tensor of a subclass, as tracers use, a batched one, or one
    with a tangent."""
    if not isinstance(given, torch.Tensor):
        return False
    is_of_a_subclass = type(given) not in (torch.Tensor, torch.nn.Parameter)
    return is_of_a_subclass or is_batch(given) or has_tangent(given)


def is_batch(given: torch.Tensor) -> bool:
    """Whether it is batched, by torch.func.vmap or by torch.autograd.grad(…, is_grads_batched=True)."""
    return torch._C._functorch.is_functorch_wrapped_tensor(given) or torch._C._dispatch_keys(given).has(BATCHED)


def has_tangent(given: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(given).tangent is not None


def visiting(module: GraphModule, nodes: Iterable[Node] | None = None) -> Iterator[Node]:
    """Yields these nodes, or those that the graph has now. A failure is attributed to the node yielded last."""
    for node in list(module.graph.nodes if nodes is None else nodes):
        module.meta["at"] = node
        yield node
    module.meta["at"] = None


def copied(graph: Graph) -> Graph:
    copy = Graph()
    copy.output(copy.graph_copy(graph, {}))
    copy.output_node().meta = dict(graph.output_node().meta)
    return copy


def recovering(run: Callable[[GraphModule], GraphModule], module: GraphModule) -> GraphModule:
    """Runs passes. After a failure, which is reported, the passes run again on the original graph with the node that
    failed left to torch; after a second failure all nodes of that operator, after a third all nodes. If the passes
    fail even then, the graph runs without them."""
    before = copied(module.graph)
    failed: dict[str, str] = {}
    for attempt in range(MOST_FAILURES + 1):
        module.meta["at"] = None
        try:
            return run(module)
        except Exception as error:
            at = module.meta["at"]
            report("a graph" if at is None else getattr(at.target, "operator", at.target), error)
            target = at.target if at is not None and attempt < 2 else None
            module.graph = copied(before)
            for node in module.graph.nodes:
                is_at = at is not None and node.name == at.name
                if is_at or attempt and target is None or attempt == 1 and node.target == target:
                    failed.setdefault(node.name, f"{FAILED}{type(error).__name__}: {error}")
                if node.name in failed and node.op == "call_function":
                    node.meta[REFUSAL] = failed[node.name]
    return module
