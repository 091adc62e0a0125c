"""Forms fusion groups, as large as possible: one program computes each, and each becomes one node."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.iteration_space import IterationSpace, Pairs, along, covers_innermost, reduced_dims
from fourfold.compiler.analysis.order import Units
from fourfold.compiler.analysis.parts import CONCATENATION, STACK, parts_of
from fourfold.compiler.analysis.support import REFUSAL, can_be_computed, device_of, is_computed, is_tensor, refuse
from fourfold.compiler.analysis.views import VIEWS, has_hints, have_same_shape, hint, memory_order, shape_of
from fourfold.compiler.ir.values import Dims
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.nodes.fused import Extraction, NotExtracted, call
from fourfold.compiler.passes.by_parts import leads_on
from fourfold.compiler.passes.cleanup import clean_up, eliminate_dead_code
from fourfold.compiler.pipeline.fallback import FAILED, visiting

MOST_MEMBERS = 200  # of a group, whose values have to fit into the L1 cache
COPIES = (torch.ops.aten.clone.default,)
SUM = torch.ops.aten.sum.dim_IntList  # attached by the pass epilogues


def fuse(module: GraphModule) -> GraphModule:
    eliminate_dead_code(module.graph)
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

    @property
    def device(self) -> torch.device:
        return device_of(self.members[0])


class Fusion:
    """The groups of a graph. Every node belongs to a unit of the order: a group, or the node alone."""

    def __init__(self, module: GraphModule):
        self.units = Units()
        self.within: dict[Node, Group] = {}  # the group of each member and of each view of one
        self.groups: dict[int, Group] = {}
        for node in visiting(module):
            if node.op != "call_function" or REFUSAL in node.meta or not self.place_within(node):
                self.units.add_singleton(node)
        for node in visiting(module):
            if not node.meta.get(REFUSAL, "").startswith(FAILED):
                self.merge_readers(node)
                self.merge_parts(node)

    def place_within(self, node: Node) -> bool:
        """Puts a node into a group, if possible."""
        if node.target is operator.getitem:
            return self.place_result(node)
        if is_computed(node, VIEWS):
            return self.place_view(node)
        if is_computed(node, POINTWISE):
            return self.place(node, len(shape_of(node)), lambda space: space.join(node))
        return is_computed(node, ROWS) and self.place_rows(node)

    def place_result(self, node: Node) -> bool:
        source, index = node.args
        group = self.within.get(source)
        results = group.space.results.get(source) if group else None
        return results is not None and self.enter(group, node, results[index])

    def place_view(self, node: Node) -> bool:
        """A view stays a unit of its own, for users outside; within its base's group it costs nothing."""
        group = self.within.get(node.args[0])
        dims = group.space.viewed(node, group.space.dims[node.args[0]]) if group else None
        if group and dims is None and leads_on(node):
            dims = group.space.split(node)
        if dims is not None:
            group.space.dims[node] = dims
            self.within[node] = group
        return False

    def place_rows(self, node: Node) -> bool:
        rule, x = ROWS[node.target], node.args[0]
        if not shape_of(x):
            return refuse(node, "a reduction of one number")
        over = reduced_dims(rule.dims(*node.args, **node.kwargs), len(shape_of(x)))
        if not over:
            return refuse(node, "a dimension out of range, for which torch raises an error")
        reason = None if covers_innermost(over, x.meta["val"]) else self.why_not_over_others(node, over)
        if reason is not None:
            return refuse(node, reason)
        kinds = rule.results(*node.args, **node.kwargs) if callable(rule.results) else rule.results

        def dims_in(space: IterationSpace) -> Dims | None:
            own = space.dims.get(x) if space.dims else tuple(map(space.new_axis, shape_of(x)))
            return None if own is None else space.reduce(node, own, over, kinds)

        is_placed = self.place(node, len(shape_of(x)), dims_in)
        return is_placed or refuse(node, "a reduction of no elements, or of one")

    def why_not_over_others(self, node: Node, over: list[int]) -> str | None:
        """Why a reduction over dimensions other than the innermost one in memory is in no program, or None: a sum
        can be another program's epilogue."""
        outermost = memory_order(node.args[0].meta["val"])[: len(over)]
        is_epilogue = node.target is SUM and sorted(outermost) == sorted(over) and not is_read_again(node)
        if is_epilogue and not self.are_columns(node.args[0], over):
            return "torch's kernel is as fast for a sum over the outermost dimensions"
        return None

    def are_columns(self, value: Node, dims: list[int]) -> bool:
        """Whether these dimensions of a value are the columns of its group, which other reductions cover already."""
        group = self.within.get(value)
        return group is not None and group.space.columns == along([group.space.dims[value][d] for d in dims])

    def place(self, node: Node, count: int, dims_in: Callable[[IterationSpace], Dims | None]) -> bool:
        """Adds the node to the group of an operand or to a new one, if possible. count: how many dimensions the
        operands broadcast to. dims_in: returns the node's dimensions in a space, or None; a new space is empty."""
        for group in self.merged_of_operands(node, count):
            has_room = len(group.members) < MOST_MEMBERS and group.device == device_of(node)
            elsewhere = (operand for operand in node.all_input_nodes if operand not in group.space.dims)
            change = self.units.wait(group.unit, self.units.of(elsewhere)) if has_room else None
            dims = None if change is None else dims_in(group.space)
            if dims is not None:
                change()
                return self.enter(group, node, dims)
        group = Group(self.units.add(self.units.of(node.all_input_nodes)))
        dims = dims_in(group.space)
        return dims is not None and self.enter(group, node, dims)

    def enter(self, group: Group, node: Node, dims: Dims) -> bool:
        self.groups[group.unit] = self.within[node] = group
        self.units.unit[node] = group.unit
        group.members.append(node)
        group.space.dims[node] = dims
        return True

    # Merging two groups.

    def merged_of_operands(self, node: Node, dims: int) -> list[Group]:
        """Merges the groups that compute the operands, or the bases of views, where possible; returns the rest, the
        latest first. dims: the number of dimensions to which the operands broadcast."""
        found = {self.within[operand].unit for operand in node.all_input_nodes if operand in self.within}
        units = sorted(found, reverse=True)
        for unit in units:
            for other in units:
                if other != unit and other in self.groups and unit in self.groups:
                    self.merge_operands(self.groups[unit], self.groups[other], node, dims)
        return [self.groups[unit] for unit in units if unit in self.groups]

    def merge_operands(self, one: Group, other: Group, node: Node, dims: int) -> None:
        """Merges the groups of two operands. The node shows how their axes correspond."""
        pairs = [(one.space.aligned(node, d), other.space.aligned(node, d)) for d in range(dims)]
        if all(len(mine) <= 1 and len(own) <= 1 for mine, own in pairs):
            known = [(mine.pop(), own.pop()) for mine, own in pairs if mine and own]
            if known and layouts_of_reductions(one.space) == layouts_of_reductions(other.space):
                known += one.space.columns_in_order(other.space, known)
            self.merge(one, other, known or one.space.in_order(other.space))

    def merge_readers(self, node: Node) -> None:
        """Merges groups that read all of the same tensor, so that it is read once."""
        if not is_tensor(node.meta.get("val")):
            return
        readers: dict[int, Dims] = {}
        for user in node.users:
            group = self.within.get(user)
            if group is not None and group.unit == self.units.unit[user] and self.within.get(node) is not group:
                dims = group.space.read_dims(user, node)
                if group.space.is_whole(dims):
                    readers.setdefault(group.unit, dims)
        first, *others = sorted(readers) or [None]
        for other in others:
            pairs = list(zip(readers[first], readers[other], strict=True))
            self.merge(self.groups[first], self.groups[other], pairs)

    def merge_parts(self, node: Node) -> None:
        """Merges groups that compute parts of a concatenation or a stack, which one program writes."""
        if node.target not in (CONCATENATION, STACK) or not can_be_computed(node):
            return
        parts, dtype = parts_of(node)[0], node.meta["val"].dtype
        if not all(have_same_shape(part, parts[0]) and part.meta["val"].dtype == dtype for part in parts):
            return
        first, *others = [part for part in parts if part in self.within] or [node]
        for other in others:
            one, two = self.within[first], self.within[other]
            if one is not two:
                self.merge(one, two, list(zip(one.space.dims[first], two.space.dims[other], strict=True)))

    def merge(self, one: Group, other: Group, pairs: Pairs) -> None:
        members = [*one.members, *other.members]
        can_merge = len(members) <= MOST_MEMBERS and one.device == other.device
        change = self.units.merge(one.unit, other.unit) if can_merge else None
        space = None if change is None else one.space.merged(other.space, pairs, members)
        if space is None:
            return
        change()
        one.space, one.members = space, members
        for node in other.space.dims:
            self.within[node] = one
        for node in other.members:
            self.units.unit[node] = one.unit
        del self.groups[other.unit]


def layouts_of_reductions(space: IterationSpace) -> set[bool]:
    """Whether the operands of the space's reductions are contiguous along the columns."""
    columns = space.columns or frozenset()
    return {
        covers_innermost([d for d, dim in enumerate(dims) if columns.intersection(dim)], node.args[0].meta["val"])
        for node, dims in space.reduced.items()
    }


def is_read_again(node: Node) -> bool:
    """Whether elementwise operators combine a reduction's result with as many elements as it has reduced."""
    if not has_hints(node.args[0].meta["val"]):
        return False
    most, pending, seen = math.prod(map(hint, shape_of(node.args[0]))), list(node.users), set()
    while pending:
        user = pending.pop()
        if user in seen or not (user.target in VIEWS or is_computed(user, POINTWISE)):
            continue
        if is_computed(user, POINTWISE) and math.prod(map(hint, shape_of(user))) == most:
            return True
        seen.add(user)
        pending += user.users
    return False


def extract(module: GraphModule, group: Group) -> None:
    """Replaces a group by one node, in the place of its last member."""
    inside = set(group.members)
    outputs = [n for n in group.members if n not in group.space.results and any(u not in inside for u in n.users)]
    if not outputs:  # dead code
        return
    try:
        if all(node.target in COPIES for node in group.members):
            raise NotExtracted("only a copy")
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
