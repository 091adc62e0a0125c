"""Which operations of a graph become one program: groups as large as they can be.

A group's values live in one space of elements, whose axes are numbered. Of each value it is known along which axes its
dimensions run, so that broadcasts, permutations and reshapes cost nothing. A reduction makes the axes that it goes over
the group's columns; a value that does not run along these is a row's."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from torch.fx import Graph, Node

from fourfold.compiler import failures
from fourfold.compiler.ends import place_concatenation, place_total
from fourfold.compiler.groups import (
    Group,
    agree,
    aligned,
    along,
    are_last,
    columns_of,
    correspondence,
    in_order,
    is_consistent,
    joined,
    new_axis,
    operands_within,
    read_dims,
    reduced_dims,
    refine_alike,
    renumbered,
    result_dims,
)
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.nodes import can_be_computed, is_tensor, keeps_its_place
from fourfold.compiler.program import Dims
from fourfold.compiler.views import VIEWS, Size, is_one, shape_of, viewed

MOST_MEMBERS = 200  # of a group, whose values have to find room in a processor's first cache


class Fusion:
    """The groups of a graph. Every node is of a unit, a group or itself; no unit waits for itself through others."""

    def __init__(self) -> None:
        self.fuses = True
        self.failed: dict[Node, str] = {}  # nodes that could not be placed and stay by themselves, with the reason
        self.at: Node | None = None  # the node that is being placed
        self.unit: dict[Node, int] = {}
        self.within: dict[Node, int] = {}  # of a group's members, and of views of them, the group
        self.reach: list[int] = []  # of each unit, as bits, the units that it waits for
        self.groups: dict[int, Group] = {}
        self.last_in_order: Node | None = None

    @classmethod
    def of(cls, graph: Graph) -> Fusion:
        """A failure is reported and costs one node its group: placement starts again with that node by itself, and at
        its operator's second failure with all nodes of that operator."""
        failed: dict[Node, str] = {}
        while True:
            fusion = cls()
            fusion.failed = failed
            try:
                fusion.place_all(graph)
                return fusion
            except Exception as error:
                at = fusion.at
                if at is None or at in failed:
                    return cls.without(graph, at, error)
                failures.report(at.target, error)
                again = any(node.target == at.target for node in failed)
                alike = [node for node in graph.nodes if node is at or again and node.target == at.target]
                failed |= dict.fromkeys(alike, f"failed: {type(error).__name__}: {error}")

    @classmethod
    def without(cls, graph: Graph, at: Node | None, error: Exception) -> Fusion:
        """No groups, where even leaving a node by itself failed."""
        failures.report(at.target if at else "a graph", error)
        fusion = cls()
        fusion.fuses = False
        fusion.failed = dict.fromkeys(graph.nodes, f"fusing the graph failed: {type(error).__name__}: {error}")
        fusion.place_all(graph)
        return fusion

    def place_all(self, graph: Graph) -> None:
        for self.at in graph.nodes:
            self.place(self.at)
        if not self.fuses:
            return
        self.merge_neighbours(graph)
        for self.at in graph.nodes:
            if self.at in self.failed:
                continue
            place_concatenation(self, self.at)
            place_total(self, self.at)

    # Units.

    def new_unit(self, operands: Iterable[Node]) -> int:
        self.reach.append(self.waits_for(operands))
        return len(self.reach) - 1

    def waits_for(self, operands: Iterable[Node]) -> int:
        bits = 0
        for operand in operands:
            unit = self.unit[operand]
            bits |= self.reach[unit] | 1 << unit
        return bits

    def can_join(self, unit: int, operands: Iterable[Node]) -> bool:
        return not self.waits_for(operands) >> unit & 1

    def grow(self, unit: int, bits: int) -> None:
        """The unit waits for these as well, and so does all that waits for it."""
        bits &= ~(1 << unit)
        if bits & ~self.reach[unit]:
            self.reach[unit] |= bits
            for other in range(len(self.reach)):
                if self.reach[other] >> unit & 1:
                    self.reach[other] |= bits

    def can_merge(self, a: int, b: int) -> bool:
        """Whether no third unit lies between them."""
        for other in range(len(self.reach)):
            if other not in (a, b):
                waits = self.reach[other]
                if waits >> a & 1 and self.reach[b] >> other & 1 or waits >> b & 1 and self.reach[a] >> other & 1:
                    return False
        return True

    # Nodes.

    def place(self, node: Node) -> None:
        is_alone = not self.fuses or node in self.failed or node.op != "call_function"
        if not is_alone and self.place_within(node):
            return
        operands = list(node.all_input_nodes)
        if keeps_its_place(node):  # one after the other
            operands += [self.last_in_order] if self.last_in_order else []
            self.last_in_order = node
        self.unit[node] = self.new_unit(operands)

    def place_within(self, node: Node) -> bool:
        """Whether it has become part of a group, or a view."""
        if node.target is operator.getitem:
            return self.place_result(node)
        if node.target in VIEWS and can_be_computed(node):
            return self.place_view(node)
        if node.target in POINTWISE and can_be_computed(node):
            return self.place_pointwise(node)
        return node.target in ROWS and can_be_computed(node) and self.place_rows(node)

    def place_result(self, node: Node) -> bool:
        source, index = node.args
        unit = self.within.get(source)
        if unit is None or source not in self.groups[unit].results:
            return False
        self.enter(unit, node, self.groups[unit].results[source][index])
        return True

    def place_view(self, node: Node) -> bool:
        """A view is always a unit of its own, for users outside; within its base's group it costs nothing."""
        base = node.args[0]
        if base in self.within:
            group = self.groups[self.within[base]]
            dims = viewed(node, group.dims[base], lambda axis: group.sizes[axis])
            if dims is not None:
                group.dims[node] = dims
                self.within[node] = self.within[base]
        self.unit[node] = self.new_unit(node.all_input_nodes)
        return True

    def enter(self, unit: int, node: Node, dims: Dims) -> None:
        group = self.groups[unit]
        self.grow(unit, self.waits_for(self.outside(unit, node)))
        self.unit[node] = self.within[node] = unit
        group.members.append(node)
        group.dims[node] = dims

    def units_of_operands(self, node: Node) -> list[int]:
        """The groups in which an operand, or what it is a view of, is computed; the latest first."""
        return sorted({self.within[o] for o in node.all_input_nodes if o in self.within}, reverse=True)

    def merged_of_operands(self, node: Node, dims: int) -> list[int]:
        """The same, after these groups have become one where that can be. dims: how many the operands broadcast to."""
        units = self.units_of_operands(node)
        for unit in units:
            for other in units:
                if other != unit and other in self.groups and unit in self.groups:
                    self.try_merge(unit, other, node, dims)
        return [unit for unit in units if unit in self.groups]

    def outside(self, unit: int, node: Node) -> list[Node]:
        return [o for o in node.all_input_nodes if self.within.get(o) != unit]

    def place_pointwise(self, node: Node) -> bool:
        for unit in self.merged_of_operands(node, len(shape_of(node))):
            if len(self.groups[unit].members) >= MOST_MEMBERS:
                continue
            if not self.can_join(unit, self.outside(unit, node)):
                continue
            dims = joined(self.groups[unit], node)
            if dims is not None:
                self.enter(unit, node, dims)
                return True
        self.enter(*self.start(node, shape_of(node)))
        return True

    def start(self, node: Node, shape: Sequence[Size]) -> tuple[int, Node, Dims]:
        """A new group for the node, with an axis for each of these dimensions."""
        unit = self.new_unit(node.all_input_nodes)
        group = self.groups[unit] = Group()
        return unit, node, tuple(new_axis(group, size) for size in shape)

    def place_rows(self, node: Node) -> bool:
        rule = ROWS[node.target]
        x = node.args[0]
        count = len(shape_of(x))
        dims = reduced_dims(rule.dims(*node.args, **node.kwargs), count)
        if not are_last(dims, shape_of(x)):
            return False
        results = rule.results(*node.args, **node.kwargs) if callable(rule.results) else rule.results
        for unit in self.merged_of_operands(node, count):
            group = self.groups[unit]
            has_room = self.within.get(x) == unit and len(group.members) < MOST_MEMBERS
            if not has_room or not self.can_join(unit, self.outside(unit, node)):
                continue
            if self.reduce(unit, node, group.dims[x], dims, results):
                return True
        unit, _, own = self.start(node, shape_of(x))
        if self.reduce(unit, node, own, dims, results):
            return True
        del self.groups[unit]
        return False

    def reduce(self, unit: int, node: Node, own: Dims, dims: list[int], results: tuple[str, ...]) -> bool:
        """Into the group, where what is reduced has the dimensions `own`; false where the group's space is another."""
        group = self.groups[unit]
        shape = shape_of(node.args[0])
        columns = frozenset(axis for d in dims for axis in own[d])
        lacking = any(not dim and not is_one(size) for size, dim in zip(shape, own, strict=True))
        if not columns or along(own) != group.axes or lacking or group.columns not in (None, columns):
            return False
        levels = (frozenset(), group.axes - columns, group.axes)
        if not all(along(known) in levels for known in group.dims.values()):
            return False
        if not all(agree(group.dims[o], own) for o in operands_within(group, node)):
            return False
        group.columns = columns
        group.reduced[node] = own
        made = tuple(result_dims(kind, own, dims) for kind in results)
        if isinstance(node.meta["val"], (tuple, list)):
            group.results[node] = made
        self.enter(unit, node, made[0])
        return True

    def try_merge(self, a: int, b: int, node: Node, dims: int) -> None:
        """The groups of two operands into one, where the node shows how their axes correspond."""
        pairs = [
            (set(aligned(self.groups[a], node, place)), set(aligned(self.groups[b], node, place)))
            for place in range(dims)
        ]
        if all(len(one) <= 1 and len(other) <= 1 for one, other in pairs):
            known = [(one.pop(), other.pop()) for one, other in pairs if one and other]
            self.merge(a, b, known or in_order(self.groups[a], self.groups[b]))

    def merge_neighbours(self, graph: Graph) -> None:
        """Groups that read the same tensor whole, which is then read once."""
        for self.at in graph.nodes:
            node = self.at
            if node in self.failed or not is_tensor(node.meta.get("val")):
                continue
            readers: dict[int, Dims] = {}
            for user in node.users:
                unit = self.within.get(user)
                if unit is not None and unit == self.unit[user] and self.within.get(node) != unit:
                    dims = read_dims(self.groups[unit], user, node)
                    if dims is not None and along(dims) == self.groups[unit].axes:
                        readers.setdefault(unit, dims)
            first, *others = sorted(readers) or [None]
            for other in others:
                self.merge(first, other, list(zip(readers[first], readers[other], strict=True)))

    def merge(self, a: int, b: int, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        """Two groups into one, where that can be. pairs: dimensions of a tensor as the one has them, and the other."""
        one, other = self.groups[a], self.groups[b]
        if len(one.members) + len(other.members) > MOST_MEMBERS or not self.can_merge(a, b):
            return
        mapping = correspondence(one, other, refine_alike(one, other, pairs))
        if mapping is None:
            return
        renamed = {n: renumbered(dims, mapping) for n, dims in other.dims.items()}
        columns = None if other.columns is None else frozenset(mapping[axis] for axis in other.columns)
        if one.columns is not None and columns is not None and one.columns != columns:
            return
        merged = Group(
            list(one.sizes),
            one.columns if columns is None else columns,
            [*one.members, *other.members],
            one.dims | renamed,
            one.results | {n: tuple(renumbered(d, mapping) for d in r) for n, r in other.results.items()},
            one.reduced | {n: renumbered(dims, mapping) for n, dims in other.reduced.items()},
        )
        if merged.columns is None:
            merged.columns = columns_of(merged)
        if not all(merged.fits(dims) for dims in merged.dims.values()):
            return
        if not all(is_consistent(merged, member) for member in merged.members):
            return
        self.groups[a] = merged
        for member in other.members:
            self.unit[member] = a
        for known in renamed:
            self.within[known] = a
        del self.groups[b]
        both = (self.reach[a] | self.reach[b]) & ~(1 << a | 1 << b)
        self.reach[a] = both
        for unit, waits in enumerate(self.reach):
            if unit != a and waits & (1 << a | 1 << b):
                self.reach[unit] |= both | 1 << a | 1 << b
