"""Operators in terms of others, only where a neighbour is fused with the pieces: torch's own kernel is faster alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.lowering.decompositions import late
from fourfold.compiler.support import can_be_computed, results_of
from fourfold.compiler.views import VIEWS, hint

aten = torch.ops.aten
SEEN_THROUGH = VIEWS | {operator.getitem, aten.clone.default, aten.detach.default, aten.alias.default}
BACKWARD = "is_backward"
OF_RESULT = ("val", "tensor_meta", "desc")  # what a replaced node's pieces don't share with it


class Unknown(Exception):
    """A size or a tensor that the graph has no node for."""


def decompose(module: GraphModule) -> GraphModule:
    """Replaces each operator whose pieces would be fused with a neighbour by its pieces."""
    table = late()
    pending = [node for node in module.graph.nodes if node.target in table]
    kept: list[Node] = []
    is_changed = False
    while pending:
        node = pending.pop()
        if not has_fused_neighbour(node) or not replaced(module.graph, node, table):
            kept.append(node)
            continue
        pending += kept  # of which this one's pieces may be neighbours
        kept.clear()
        is_changed = True
    if is_changed:
        module.graph.eliminate_dead_code()
    return module


def has_fused_neighbour(node: Node) -> bool:
    """Whether something of its own direction reads or computes its elements, and a program could do both."""
    most = max(map(elements_of, (node, *node.all_input_nodes)))
    return any(elements_of(other) == most and is_fused(other) for other in neighbours(node))


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


def replaced(graph: Graph, node: Node, table: dict[object, Callable[..., object]]) -> bool:
    """Whether its pieces have taken its place."""
    last = node.prev
    with graph.inserting_before(node):
        recorder = Recorder(node, table)
        results = None
        with suppress(Unknown):
            results = recorder.run()
        is_done = results is not None and put_in(node, results)
    if not is_done:
        while node.prev is not last:
            graph.erase_node(node.prev)
    return is_done


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


class Recorder(TorchDispatchMode):
    """Runs a node's decomposition on the values that the graph was traced with; each operator becomes a node."""

    def __init__(self, node: Node, table: dict[object, Callable[..., object]]):
        super().__init__()
        self.node = node
        self.table = table
        self.nodes: dict[int, Node] = {}
        self.held: list[Tensor] = []  # whose ids are keys
        self.meta = {key: value for key, value in node.meta.items() if key not in OF_RESULT}

    def run(self) -> object:
        """Nodes of the results, None for those that are none; None where the decomposition declines."""
        mode = fake_mode_of(self.node)
        if mode is None:
            return None
        with mode, torch.no_grad():
            args, kwargs = torch.fx.map_arg((self.node.args, self.node.kwargs), self.entered)
            with self:
                results = self.table[self.node.target](*args, **kwargs)
        if results is NotImplemented:
            return None
        return tree_map(lambda value: None if value is None else self.nodes.get(id(value)), results)

    def entered(self, node: Node) -> object:
        value = node.meta["val"]
        if isinstance(value, Tensor):
            if self.nodes.get(id(value), node) is not node:  # two nodes of one value
                value = aten.alias.default(value)
            self.known(value, node)
        return value

    def known(self, value: Tensor, node: Node) -> None:
        self.nodes[id(value)] = node
        self.held.append(value)

    def __torch_dispatch__(self, target: object, types: object, args: object = (), kwargs: object = None) -> object:
        kwargs = kwargs or {}
        if target in self.table:
            with self:
                result = self.table[target](*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = target(*args, **kwargs)
        if not isinstance(result, (Tensor, tuple, list)):  # a device or a size
            return result
        node = self.node.graph.call_function(target, *tree_map(self.spelled, (tuple(args), dict(kwargs))))
        node.meta = self.meta | {"val": result}
        if isinstance(result, (tuple, list)):
            for k, each in enumerate(result):
                if isinstance(each, Tensor):
                    part = self.node.graph.call_function(operator.getitem, (node, k))
                    part.meta = self.meta | {"val": each}
                    self.known(each, part)
        else:
            self.known(result, node)
        return result

    def spelled(self, value: object) -> object:
        if isinstance(value, Tensor):
            if id(value) not in self.nodes:
                raise Unknown("a tensor that was made outside")
            return self.nodes[id(value)]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.size(value)
        return value

    def size(self, value: torch.SymInt) -> Node | int:
        """A node that has this size: an input of the graph, or one that reads it of an operand."""
        if value.node.expr.is_number:
            return int(value.node.expr)
        for node in self.node.graph.find_nodes(op="placeholder"):
            own = node.meta.get("val")
            if isinstance(own, torch.SymInt) and own.node.expr == value.node.expr:
                return node
        for node in self.node.all_input_nodes:
            own = node.meta.get("val")
            for dim, size in enumerate(own.shape if isinstance(own, Tensor) else ()):
                if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr:
                    found = self.node.graph.call_function(aten.sym_size.int, (node, dim))
                    found.meta = self.meta | {"val": size}
                    return found
        raise Unknown(f"no node has the size {value}")


def fake_mode_of(node: Node) -> object:
    values, _ = tree_flatten([other.meta.get("val") for other in node.all_input_nodes])
    return next((value.fake_mode for value in values if hasattr(value, "fake_mode")), None)
