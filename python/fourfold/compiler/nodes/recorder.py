"""Writes nodes into a graph by running ordinary torch code on the graph's fake values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._sympy.functions import Max

from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import refuse
from fourfold.compiler.analysis.views import RESHAPES, keys

OF_RESULT = ("val", "tensor_meta", "desc")  # meta that replacements don't inherit


class NotRecorded(Exception):
    """The graph has no node for a size or a tensor, or none of its values is a tensor."""


class Recorder(TorchDispatchMode):
    """In ``with Recorder(before, inputs) as record:`` each call of a torch operator becomes a node before ``before``.
    ``record.value(node)`` is a node's tensor or number, ``record.node(tensor)`` the node of a result."""

    def __init__(
        self, before: Node, inputs: Sizes, decompositions: Mapping[object, Callable[..., object]] | None = None
    ):
        super().__init__()
        self.before = before
        self.graph = before.graph
        self.decompositions = decompositions or {}
        self.nodes: dict[int, Node] = {}
        self.inputs = inputs
        self.numbers = Sizes()
        self.held: list[Tensor] = []  # keeps alive the tensors whose ids are keys
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
        """Erases the nodes that were written."""
        for node in reversed(self.written):
            self.graph.erase_node(node)
        self.written.clear()

    def value(self, node: Node) -> object:
        value = node.meta["val"]
        if isinstance(value, Tensor):
            if self.nodes.get(id(value), node) is not node:  # two nodes have the same value
                value = torch.ops.aten.alias.default(value)
            self.know(value, node)
        else:
            self.numbers.add(node)
        return value

    def node(self, result: object) -> Node | None:
        """The node of a result; None for None."""
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
        if target in RESHAPES and len(args) > 1 and isinstance(args[1], (tuple, list)):
            args = args[0], self.inferred(args[1])
        node = self.write(result, target, *tree_map(self.spelled, (tuple(args), dict(kwargs))))
        for k, each in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(each, Tensor):
                self.write(each, operator.getitem, (node, k))
        return result

    def inferred(self, sizes: Sequence[object]) -> list[object]:
        """A reshape's sizes, with -1, which torch infers, for one that no node has, such as a product of symbols."""
        unknown = [k for k, size in enumerate(sizes) if isinstance(size, torch.SymInt) and not self.has(size)]
        return [-1 if unknown == [k] else size for k, size in enumerate(sizes)]

    def has(self, wanted: torch.SymInt) -> bool:
        try:
            return self.size(wanted) is not None
        except NotRecorded:
            return False

    def spelled(self, value: object) -> object:
        """A value as the argument of a node."""
        if isinstance(value, Tensor):
            return self.node(value)
        return self.size(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value

    def size(self, wanted: torch.SymInt) -> Node | int:
        """A node with this size: an input of the graph, or a node that reads it from an operand."""
        if wanted.node.expr.is_number:
            return int(wanted.node.expr)
        for sizes in (self.numbers, self.inputs, Sizes(self.before.all_input_nodes)):
            found = sizes.find(wanted)
            if found is not None:
                node, dim = found
                return node if dim is None else self.write(wanted, torch.ops.aten.sym_size.int, (node, dim))
        raise NotRecorded(f"no node has the size {wanted}")


def numbers_of(graph: Graph) -> Sizes:
    """The symbolic sizes among a graph's inputs."""
    inputs = graph.find_nodes(op="placeholder")
    return Sizes(node for node in inputs if isinstance(node.meta.get("val"), torch.SymInt))


def rewritten(
    node: Node,
    rewrite: Callable[[Recorder], object],
    inputs: Sizes,
    decompositions: Mapping[object, Callable[..., object]] | None = None,
    reader: str = "it reads",
) -> list[Node] | None:
    """Replaces a node by what ``rewrite`` computes and returns the new nodes. None if ``rewrite`` returns
    NotImplemented or results whose dtype or layout differs from the traced ones. reader: how the reason of a refusal
    begins."""
    recorder = Recorder(node, inputs, decompositions)
    try:
        with recorder:
            results = rewrite(recorder)
        if results is not NotImplemented and put_in(node, tree_map(recorder.node, results)):
            return recorder.written
    except NotRecorded as reason:
        refuse(node, f"{reader} {reason}")
    recorder.erase()
    return None


def put_in(node: Node, results: object) -> bool:
    """Replaces a node by results of the same dtypes and layouts; False if they differ."""
    pairs = [(node, results)]
    if isinstance(results, (tuple, list)):
        if any(user.target is not operator.getitem for user in node.users):
            return False
        pairs = [(user, results[user.args[1]]) for user in node.users]
    if not all(is_alike(result, outside.meta["val"]) for outside, result in pairs):
        return False
    for outside, result in pairs:
        outside.replace_all_uses_with(result)
        if outside is not node:
            node.graph.erase_node(outside)
    node.graph.erase_node(node)
    return True


def is_alike(result: Node | None, expected: object) -> bool:
    values = result and result.meta.get("val"), expected
    return all(isinstance(value, Tensor) for value in values) and layout(values[0]) == layout(values[1])


def layout(value: Tensor) -> tuple[object, ...]:
    """Dtype, sizes and strides, without the strides of dimensions of size 1 and of tensors without elements, which mean
    nothing."""
    sizes = keys(value.shape)
    strides = zip(sizes, keys(value.stride()), strict=True)
    return value.dtype, sizes, tuple(of_elements(stride) for size, stride in strides if size != 1)


def of_elements(stride: object) -> object:
    """A stride with n for torch's Max(1, n), which differs for n = 0 alone."""
    if isinstance(stride, int) or not stride.has(Max):
        return stride

    def larger(*sizes: object) -> object:
        others = [size for size in sizes if size != 1]
        return others[0] if len(others) == 1 else Max(*sizes)

    return stride.replace(Max, larger).expand()
