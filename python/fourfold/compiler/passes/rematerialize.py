"""Rematerialization: the backward recomputes cheap values that the forward would otherwise save."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection

import torch
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.analysis.parts import SELECT, SLICE, SPLITS, UNBIND, joined
from fourfold.compiler.analysis.profitability import computes_nothing
from fourfold.compiler.analysis.support import is_computed
from fourfold.compiler.analysis.views import VIEWS, has_hints, hint
from fourfold.compiler.ir.dtypes import ROUNDED
from fourfold.compiler.lowering import CONSTANT, POINTWISE, ROWS
from fourfold.compiler.passes.by_parts import parting_of_slices
from fourfold.compiler.passes.canonicalize import ALIASES

aten = torch.ops.aten
EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
NORM = aten.linalg_vector_norm.default
MOST_STEPS = 64  # recomputed for one value
FEW = 8  # an operand so many times smaller than the value, such as a row's deviation, is saved, not recomputed


def rematerialize(module: GraphModule) -> GraphModule:
    """Copies into the backward the nodes that it can recompute from inputs, results and values that are saved anyway.
    ``module.meta["forward outputs"]``: how many of the results are the forward's. ``module.meta["free"]``: a function
    that returns a graph's inputs and results which stay in memory without being saved; without it, all of them."""
    graph = module.graph
    forward = forward_nodes(graph)
    if not forward:
        return module
    changed, stays = changed_inputs(graph), set(forward)  # stays: the users that keep reading the forward's value
    if "free" in module.meta:
        free = module.meta["free"](graph) - changed
        stays.add(graph.output_node())
    else:
        results = graph.output_node().args[0][: module.meta["forward outputs"]]
        free = {node for node in forward if node.op == "placeholder"} - changed
        free |= {node for node in results if isinstance(node, Node)}
    free |= {node for node in forward if node.op == "get_attr"}
    others = forward.keys() - free - changed
    crossing = [n for n in forward if n in others and any(user not in stays for user in n.users)]
    known = free.union(crossing)  # available to the backward without computation
    chosen: list[Node] = []
    few = max((bytes_of(n) for n in forward if n.op == "call_function"), default=0) / FEW
    # Small values last: the sources of larger values serve them too.
    for node in sorted(reversed(crossing), key=lambda node: bytes_of(node) < few):
        if not all(is_computed(user, POINTWISE, ROWS, VIEWS, CONSTANT) for user in node.users if user not in stays):
            continue
        known.remove(node)
        steps = steps_of(node, known) or []
        sources = {o for step in steps for o in step.all_input_nodes}.difference(steps, known)
        saved = bytes_of(node) - sum(map(bytes_of, sources))
        # Equal bytes pay off unless they are few: other values may be recomputed from the same sources.
        pays_off = saved > 0 or saved == 0 and (bytes_of(node) >= few or all(map(computes_nothing, steps)))
        if steps and not sources & changed and pays_off:
            known |= sources
            chosen.append(node)
        else:
            known.add(node)
    copies: dict[Node, Node] = {}
    insert_after = next(reversed(forward))
    for node in sorted(chosen):
        steps = steps_of(node, known)
        if steps is None:  # its sources are not saved either, so this value is, and later ones start from it
            known.add(node)
            continue
        for step in steps:
            if step not in copies:
                insert_after = copy_of(graph, step, copies, insert_after)
    stays |= set(copies.values())
    for node in chosen:
        if node not in known:
            node.replace_all_uses_with(copies[node], delete_user_cb=lambda user: user not in stays)
    reduce_again(graph, forward, copies)
    return module


def reduce_again(graph: Graph, forward: Collection[Node], copies: dict[Node, Node]) -> None:
    """The gradient of a maximum divides by the number of elements that are equal to it. If these are recomputed from
    values that were rounded to low precision, none may equal the forward's maximum, so it is recomputed too."""
    for node in graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        if node in forward:
            continue
        for given, other in (node.args, reversed(node.args)):
            views, extreme = [], given
            while isinstance(extreme, Node) and (extreme.target in VIEWS or extreme.target in ALIASES):
                views.append(extreme)
                extreme = extreme.args[0]
            if not is_extreme(extreme) or extreme not in forward or extreme.meta["val"].dtype not in ROUNDED:
                continue
            reduced = other.args[0] if extreme.target is NORM and other.target is aten.abs.default else other
            if reduced in forward or not are_same(reduced, extreme.args[0], copies):
                continue
            known, after = {extreme.args[0]: reduced}, node.prev
            for each in (extreme, *reversed(views)):
                after = copy_of(graph, each, known, after)
            node.replace_input_with(given, known[given])


def is_extreme(node: object) -> bool:
    """Whether it is a maximum or minimum, or that of absolute values."""
    if not isinstance(node, Node):
        return False
    return node.target in EXTREMES or node.target is NORM and abs(node.args[1]) == math.inf


def are_same(node: Node, other: Node, copies: dict[Node, Node], depth: int = 4) -> bool:
    """Whether both have the same value, but for roundings."""
    if not isinstance(node, Node) or not isinstance(other, Node):
        return node == other
    if node is other or copies.get(other) is node:
        return True
    if depth == 0 or node.target != other.target or node.op != "call_function" or node.kwargs != other.kwargs:
        return False
    pairs = zip(node.args, other.args, strict=False)
    return len(node.args) == len(other.args) and all(are_same(a, b, copies, depth - 1) for a, b in pairs)


def copy_of(graph: Graph, step: Node, copies: dict[Node, Node], after: Node) -> Node:
    with graph.inserting_after(after):
        copy = graph.node_copy(step, lambda operand: copies.get(operand, operand))
    copy.meta = {key: value for key, value in step.meta.items() if key != "partitioner_tag"}
    copy.meta["partitioner_tag"] = "is_backward"
    copies[step] = copy
    return copy


def forward_nodes(graph: Graph) -> dict[Node, None]:
    """The forward's nodes in order: all up to the last one traced in the forward."""
    found: dict[Node, None] = {}
    pending: list[Node] = []
    for node in graph.nodes:
        if node.op == "output" or "tangents" in str(node.target) and node.op == "placeholder":
            continue
        pending.append(node)
        if node.op == "placeholder" or node.meta.get("partitioner_tag") == "is_forward":
            found.update(dict.fromkeys(pending))
            pending.clear()
    return found


def changed_inputs(graph: Graph) -> set[Node]:
    """The inputs that the function mutates: the backward would read their new values."""
    results = graph.output_node().meta.get("desc") or ()  # AOTAutograd's descriptions
    changed = {result.mutated_input for result in results if hasattr(result, "mutated_input")}
    copied = {node.args[0] for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    return {node for node in graph.find_nodes(op="placeholder") if node.meta.get("desc") in changed} | copied


def is_cheap(node: Node) -> bool:
    return is_computed(node, POINTWISE, VIEWS, CONSTANT) or is_cheap_slice(node) or is_read_by_parts(node)


def is_cheap_slice(node: Node) -> bool:
    """Whether it slices or selects from a tensor in memory, or one that will be computed by parts (by_parts)."""
    node = node.args[0] if node.target is operator.getitem else node
    if node.target not in (SLICE, SELECT, UNBIND, *SPLITS):
        return False
    return not is_computed(node.args[0], POINTWISE, ROWS) or parting_of_slices(node.args[0])[0] is not None


def is_read_by_parts(node: Node) -> bool:
    """Whether it is a concatenation whose users are all computed by parts, so that none reads it as a whole."""
    return joined(node) is not None and all(is_computed(user, POINTWISE) for user in node.users)


def steps_of(node: Node, known: set[Node]) -> list[Node] | None:
    """The nodes to recompute for this node from known values, in topological order; None if they are too many."""
    if not is_cheap(node):
        return None
    steps: set[Node] = set()
    pending = [node]
    while pending:
        step = pending.pop()
        if step in known or step in steps or not is_cheap(step):  # the last: a source, which is saved instead
            continue
        if bytes_of(step) * FEW < bytes_of(node) and not is_free(step, known):
            continue
        steps.add(step)
        if len(steps) > MOST_STEPS:
            return None
        pending.extend(step.all_input_nodes)
    return sorted(steps)


def is_free(step: Node, known: set[Node]) -> bool:
    """Whether it can be recomputed without saving anything for it."""
    steps = set(steps_of(step, known) or [])
    return bool(steps) and all(o in known or o in steps for each in steps for o in each.all_input_nodes)


def bytes_of(node: Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 8 if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) else 1 << 62
    if not has_hints(value):
        return 1 << 62
    return math.prod(hint(size) for size in value.shape) * value.element_size()
