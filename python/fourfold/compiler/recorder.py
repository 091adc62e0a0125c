"""Writes nodes into a graph by running ordinary torch code on the values that the graph was traced with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fourfold.compiler.views import same

OF_RESULT = ("val", "tensor_meta", "desc")  # what a replaced node doesn't share with the nodes in its place


class NotRecorded(Exception):
    """The graph has no node for a size or a tensor, or none of its values is a tensor."""


class Recorder(TorchDispatchMode):
    """Within ``with Recorder(before) as record:``, each operator of torch's that is called becomes a node in front of
    ``before``. ``record.value(node)`` is a node's tensor or number, ``record.node(tensor)`` the node of a result."""

    def __init__(self, before: Node, decompositions: Mapping[object, Callable[..., object]] | None = None):
        super().__init__()
        self.before = before
        self.graph = before.graph
        self.decompositions = decompositions or {}
        self.nodes: dict[int, Node] = {}
        self.numbers: list[Node] = []
        self.held: list[Tensor] = []  # whose ids are keys
        self.written: list[Node] = []
        self.meta = {key: value for key, value in before.meta.items() if key not in OF_RESULT}

    def __enter__(self) -> Recorder:
        values = tree_leaves([node.meta.get("val") for node in (*self.before.all_input_nodes, self.before)])
        fakes = [value.fake_mode for value in values if hasattr(value, "fake_mode")]
        if not fakes:
            raise NotRecorded("no tensor of its own")
        self.around = fakes[0], torch.no_grad()
        for each in self.around:
            each.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        for each in reversed(self.around):
            each.__exit__(*raised)

    def erase(self) -> None:
        """Takes back what was written."""
        for node in reversed(self.written):
            self.graph.erase_node(node)
        self.written.clear()

    def value(self, node: Node) -> object:
        value = node.meta["val"]
        if isinstance(value, Tensor):
            if self.nodes.get(id(value), node) is not node:  # two nodes of one value
                value = torch.ops.aten.alias.default(value)
            self.know(value, node)
        else:
            self.numbers.append(node)
        return value

    def values(self, arguments: object) -> object:
        return torch.fx.map_arg(arguments, self.value)

    def node(self, result: object) -> Node | None:
        """None for a result that is none."""
        if result is not None and id(result) not in self.nodes:
            raise NotRecorded("a tensor that was made outside")
        return None if result is None else self.nodes[id(result)]

    def know(self, value: Tensor, node: Node) -> None:
        self.nodes[id(value)] = node
        self.held.append(value)

    def write(self, value: object, target: object, args: tuple = (), kwargs: dict[str, object] | None = None) -> Node:
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = self.meta | {"val": value}
        self.written.append(node)
        if isinstance(value, Tensor):
            self.know(value, node)
        return node

    def __torch_dispatch__(self, target: object, types: object, args: tuple = (), kwargs: object = None) -> object:
        kwargs = kwargs or {}
        if target in self.decompositions:
            super().__enter__()
            try:
                result = self.decompositions[target](*args, **kwargs)
            finally:
                super().__exit__(None, None, None)
            if result is not NotImplemented:
                return result
        result = target(*args, **kwargs)
        if not isinstance(result, (Tensor, tuple, list)):  # a device or a size
            return result
        node = self.write(result, target, *tree_map(self.spelled, (tuple(args), dict(kwargs))))
        for k, each in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(each, Tensor):
                self.write(each, operator.getitem, (node, k))
        return result

    def spelled(self, value: object) -> object:
        """As a node's argument."""
        if isinstance(value, Tensor):
            return self.node(value)
        return self.size(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value

    def size(self, wanted: torch.SymInt) -> Node | int:
        """A node that has this size: an input of the graph, or one that reads it from an operand."""
        if wanted.node.expr.is_number:
            return int(wanted.node.expr)
        for node in (*self.numbers, *self.graph.find_nodes(op="placeholder")):
            if isinstance(node.meta.get("val"), torch.SymInt) and same(node.meta["val"], wanted):
                return node
        for node in self.before.all_input_nodes:
            value = node.meta.get("val")
            for dim, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
                if same(size, wanted):
                    return self.write(size, torch.ops.aten.sym_size.int, (node, dim))
        raise NotRecorded(f"no node has the size {wanted}")
