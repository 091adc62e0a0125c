"""Operators in terms of others, only where a neighbour is fused with the pieces: torch's own kernel is faster alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from fourfold.compiler.fallback import visiting
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.lowering.decompositions import late
from fourfold.compiler.passes.sink_gather import RULES
from fourfold.compiler.recorder import NotRecorded, Recorder
from fourfold.compiler.support import REFUSAL, can_be_computed, refuse, results_of
from fourfold.compiler.views import VIEWS, hint

aten = torch.ops.aten
SEEN_THROUGH = VIEWS | {operator.getitem, aten.clone.default, aten.detach.default, aten.alias.default}
BACKWARD = "is_backward"


def decompose(module: GraphModule) -> GraphModule:
    """Replaces each operator whose pieces would be fused with a neighbour by its pieces."""
    table = late()
    left = [node for node in module.graph.nodes if node.target in table and REFUSAL not in node.meta]
    replaces = True
    while replaces:  # once more, since pieces may be another one's neighbours
        before = left
        left = [n for n in visiting(module, before) if not has_fused_neighbour(n) or not replaced(n, table)]
        replaces = len(left) < len(before)
    return module


def has_fused_neighbour(node: Node) -> bool:
    """Whether something of its own direction reads or computes its elements, and a program could do both."""
    most = max(map(elements_of, (node, *node.all_input_nodes)))
    # What indexes its result does so in what the pieces are computed from (sink_gather).
    return any(other.target in RULES or elements_of(other) == most and is_fused(other) for other in neighbours(node))


def neighbours(node: Node) -> Iterator[Node]:
    """What it reads and what reads it, through views; of an operator of the backward, those of the backward."""
    side = node.meta.get("partitioner_tag") == BACKWARD
    for step in (lambda n: n.all_input_nodes, lambda n: list(n.users)):
        pending, seen = step(node), set()
        while pending:
            other = pending.pop()
            if other in seen or (other.meta.get("partitioner_tag") == BACKWARD) != side:
                continue
            seen.add(other)
            if other.target in SEEN_THROUGH:
                pending += step(other)
            else:
                yield other


def is_fused(node: Node) -> bool:
    known = node.target in POINTWISE or node.target in ROWS
    return node.op == "call_function" and known and can_be_computed(node)


def elements_of(node: Node) -> int:
    """Of the largest of its results."""
    most = 0
    for value in results_of(node):
        count = 1
        for size in value.shape if isinstance(value, Tensor) else (0,):
            count *= hint(size)
        most = max(most, count)
    return most


def replaced(node: Node, table: dict[object, Callable[..., object]]) -> bool:
    """Whether its pieces have taken its place."""
    recorder = Recorder(node, table)
    try:
        with recorder as record:
            args, kwargs = record.values((node.args, node.kwargs))
            results = table[node.target](*args, **kwargs)
            if results is not NotImplemented and put_in(node, tree_map(record.node, results)):
                return True
    except NotRecorded as reason:
        refuse(node, f"its pieces read {reason}")
    recorder.erase()
    return False


def put_in(node: Node, results: object) -> bool:
    """Whether the results are as those that the graph was traced with, and its users read them now."""
    if not isinstance(results, (tuple, list)):
        if not is_alike(results, node.meta["val"]):
            return False
        node.replace_all_uses_with(results)
        node.graph.erase_node(node)
        return True
    users = list(node.users)
    if any(user.target is not operator.getitem for user in users):
        return False
    if not all(is_alike(results[user.args[1]], user.meta["val"]) for user in users):
        return False
    for user in users:
        user.replace_all_uses_with(results[user.args[1]])
        node.graph.erase_node(user)
    node.graph.erase_node(node)
    return True


def is_alike(result: object, expected: object) -> bool:
    value = result.meta.get("val") if isinstance(result, Node) else None
    if not isinstance(value, Tensor) or not isinstance(expected, Tensor):
        return False
    sizes = [*value.shape, *value.stride()], [*expected.shape, *expected.stride()]
    # Of a dimension of one element a stride means nothing.
    return (
        value.dtype == expected.dtype
        and value.dim() == expected.dim()
        and all(
            repr(a) == repr(b) or k >= value.dim() and repr(value.shape[k - value.dim()]) == "1"
            for k, (a, b) in enumerate(zip(*sizes, strict=True))
        )
    )
