"""Groups operators that one program computes, as large as groups can be: each becomes one node."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.fallback import FAILED, visiting
from fourfold.compiler.fused import Extraction, NotExtracted, call
from fourfold.compiler.ir import Dims
from fourfold.compiler.iteration_space import IterationSpace, Pairs, are_last, reduced_dims
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.order import Order
from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.support import REFUSAL, can_be_computed, has_effect, is_tensor, refuse
from fourfold.compiler.views import VIEWS, shape_of

MOST_MEMBERS = 200  # of a group, whose values have to find room in a processor's first cache
COPIES = (torch.ops.aten.clone.default,)


def fuse(module: GraphModule) -> GraphModule:
    groups = Fusion(module).groups
    index = {node: k for k, node in enumerate(module.graph.nodes)}
    for group in sorted(groups.values(), key=lambda group: group.unit):
        group.members.sort(key=index.__getitem__)
        extract(module, group)
    return clean_up(module)


@dataclass(eq=False)
class Group:
    unit: int
    space: IterationSpace = field(default_factory=IterationSpace)
    members: list[Node] = field(default_factory=list)


class Fusion:
    """The groups of a graph. Every node belongs to a unit of the order: a group, or the node alone."""

    def __init__(self, module: GraphModule):
        self.order = Order()
        self.unit: dict[Node, int] = {}
        self.within: dict[Node, Group] = {}  # of groups' members, and of views of them
        self.groups: dict[int, Group] = {}
        self.last_effect: Node | None = None
        for node in visiting(module):
            if node.op != "call_function" or REFUSAL in node.meta or not self.place_within(node):
                self.place_alone(node)
        for node in visiting(module):
            if not node.meta.get(REFUSAL, "").startswith(FAILED):
                self.merge_readers(node)

    def place_alone(self, node: Node) -> None:
        operands = list(node.all_input_nodes)
        if has_effect(node):  # one after the other
            operands += [self.last_effect] if self.last_effect else []
            self.last_effect = node
        self.unit[node] = self.order.add(self.units_of(operands))

    def place_within(self, node: Node) -> bool:
        """Whether it becomes part of a group, or a view."""
        if node.target is operator.getitem:
            return self.place_result(node)
        if node.target in VIEWS and can_be_computed(node):
            return self.place_view(node)
        if node.target in POINTWISE and can_be_computed(node):
            return self.place_pointwise(node)
        return node.target in ROWS and can_be_computed(node) and self.place_rows(node)

    def units_of(self, nodes: Iterable[Node]) -> set[int]:
        return {self.unit[node] for node in nodes}

    def place_result(self, node: Node) -> bool:
        source, index = node.args
        group = self.within.get(source)
        if group is None or source not in group.space.results:
            return False
        self.enter(group, node, group.space.results[source][index])
        return True

    def place_view(self, node: Node) -> bool:
        """A view is a unit of its own, for users outside; within its base's group it costs nothing."""
        group = self.within.get(node.args[0])
        if group is not None:
            dims = group.space.viewed(node, group.space.dims[node.args[0]])
            if dims is not None:
                group.space.dims[node] = dims
                self.within[node] = group
        self.unit[node] = self.order.add(self.units_of(node.all_input_nodes))
        return True

    def place_pointwise(self, node: Node) -> bool:
        for group in self.merged_of_operands(node, len(shape_of(node))):
            if self.can_join(group, node):
                dims = group.space.join(node)
                if dims is not None:
                    self.enter(group, node, dims)
                    return True
        group, dims = self.start(node, shape_of(node))
        self.enter(group, node, dims)
        return True

    def place_rows(self, node: Node) -> bool:
        rule, x = ROWS[node.target], node.args[0]
        over = reduced_dims(rule.dims(*node.args, **node.kwargs), len(shape_of(x)))
        if not are_last(over, shape_of(x)):
            return refuse(node, "a reduction that isn't over the last dimensions")
        kinds = rule.results(*node.args, **node.kwargs) if callable(rule.results) else rule.results
        for group in self.merged_of_operands(node, len(shape_of(x))):
            if self.within.get(x) is group and self.can_join(group, node):
                dims = group.space.reduce(node, group.space.dims[x], over, kinds)
                if dims is not None:
                    self.enter(group, node, dims)
                    return True
        group, own = self.start(node, shape_of(x))
        dims = group.space.reduce(node, own, over, kinds)
        if dims is None:
            del self.groups[group.unit]
            return refuse(node, "a reduction of no elements, or of one")
        self.enter(group, node, dims)
        return True

    def start(self, node: Node, shape: Sequence[object]) -> tuple[Group, Dims]:
        """A new group for the node, with an axis for each of these dimensions."""
        group = Group(self.order.add(self.units_of(node.all_input_nodes)))
        self.groups[group.unit] = group
        return group, tuple(group.space.new_axis(size) for size in shape)

    def enter(self, group: Group, node: Node, dims: Dims) -> None:
        self.order.wait(group.unit, self.outside(group, node))
        self.unit[node] = group.unit
        self.within[node] = group
        group.members.append(node)
        group.space.dims[node] = dims

    def can_join(self, group: Group, node: Node) -> bool:
        has_room = len(group.members) < MOST_MEMBERS
        return has_room and self.order.can_wait(group.unit, self.outside(group, node))

    def outside(self, group: Group, node: Node) -> set[int]:
        """The units of the node's operands that are computed elsewhere."""
        return self.units_of(operand for operand in node.all_input_nodes if self.within.get(operand) is not group)

    # Two groups as one.

    def merged_of_operands(self, node: Node, dims: int) -> list[Group]:
        """The groups in which an operand, or what it is a view of, is computed, the latest first; after those have
        become one that can. dims: how many the operands broadcast to."""
        found = {self.within[operand].unit for operand in node.all_input_nodes if operand in self.within}
        units = sorted(found, reverse=True)
        for unit in units:
            for other in units:
                if other != unit and other in self.groups and unit in self.groups:
                    self.merge_operands(self.groups[unit], self.groups[other], node, dims)
        return [self.groups[unit] for unit in units if unit in self.groups]

    def merge_operands(self, one: Group, other: Group, node: Node, dims: int) -> None:
        """The groups of two operands, where the node shows how their axes correspond."""
        pairs = [(one.space.aligned(node, d), other.space.aligned(node, d)) for d in range(dims)]
        if all(len(mine) <= 1 and len(own) <= 1 for mine, own in pairs):
            known = [(mine.pop(), own.pop()) for mine, own in pairs if mine and own]
            self.merge(one, other, known or one.space.in_order(other.space))

    def merge_readers(self, node: Node) -> None:
        """Groups that read the same tensor whole, which is then read once."""
        if not is_tensor(node.meta.get("val")):
            return
        readers: dict[int, Dims] = {}
        for user in node.users:
            group = self.within.get(user)
            if group is not None and group.unit == self.unit[user] and self.within.get(node) is not group:
                dims = group.space.read_dims(user, node)
                if group.space.is_whole(dims):
                    readers.setdefault(group.unit, dims)
        first, *others = sorted(readers) or [None]
        for other in others:
            pairs = list(zip(readers[first], readers[other], strict=True))
            self.merge(self.groups[first], self.groups[other], pairs)

    def merge(self, one: Group, other: Group, pairs: Pairs) -> None:
        members = [*one.members, *other.members]
        if len(members) > MOST_MEMBERS or not self.order.can_merge(one.unit, other.unit):
            return
        space = one.space.merged(other.space, pairs, members)
        if space is None:
            return
        self.order.merge(one.unit, other.unit)
        one.space, one.members = space, members
        for node in other.space.dims:
            self.within[node] = one
        for node in other.members:
            self.unit[node] = one.unit
        del self.groups[other.unit]


def extract(module: GraphModule, group: Group) -> None:
    """A group as one node, in the place of its last member."""
    inside = set(group.members)
    outputs = [n for n in group.members if n not in group.space.results and any(u not in inside for u in n.users)]
    if not outputs:  # dead code
        return
    try:
        if all(node.target in COPIES for node in group.members):
            raise NotExtracted("nothing but a copy")
        fused, inputs = Extraction(group.space).extract(group.members, outputs)
    except NotExtracted as reason:
        for node in group.members:
            refuse(node, str(reason))
        return
    with module.graph.inserting_after(group.members[-1]):
        results = call(module.graph, fused, inputs)
    for output, result in zip(outputs, results, strict=True):
        output.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
    for member in reversed(group.members):
        if not member.users:
            module.graph.erase_node(member)
