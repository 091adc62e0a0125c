"""Which operations of a graph become one program: groups as large as they can be.

A group's values live in one space of elements, whose axes are numbered. Of each value it is known along which axes its
dimensions run, so that broadcasts, permutations and reshapes cost nothing. A reduction makes the axes that it goes over
the group's columns; a value that does not run along these is a row's."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence

import torch
from torch.fx import Graph, Node

from fourfold.compiler import failures
from fourfold.compiler.groups import (
    Group,
    agree,
    aligned,
    along,
    are_last,
    columns_of,
    correspondence,
    have_same_shape,
    in_order,
    is_consistent,
    joined,
    joined_along,
    new_axis,
    operands_within,
    read_dims,
    reduced_dims,
    renumbered,
    result_dims,
    rows_place,
)
from fourfold.compiler.lowering import POINTWISE, ROWS, refusal
from fourfold.compiler.program import KINDS, Dims
from fourfold.compiler.views import VIEWS, Size, has_hints, hint, is_one, shape_of, viewed

MOST_MEMBERS = 200  # of a group, whose values have to find room in a processor's first cache
FEWEST_COLUMNS = 16  # that sums over rows are worth the while for
TOTAL = torch.ops.aten.sum.dim_IntList
CONCATENATION = torch.ops.aten.cat.default
# What torch traces with another dtype than it gives: statistics of low precision.
MISTRACED = frozenset(
    {
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten._batch_norm_with_update_functional.default,
    }
)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def can_be_held(value: torch.Tensor) -> bool:
    is_strided = value.device.type == "cpu" and value.layout == torch.strided
    return is_strided and value.dtype in KINDS and has_hints(value)


def can_be_read(node: Node) -> bool:
    """Whether a program can take it: a tensor of a known kind in the CPU's memory, or a number."""
    value = node.meta.get("val")
    if node.target is operator.getitem and node.args[0].target in MISTRACED:
        return False
    if is_tensor(value):
        return can_be_held(value)
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


def results_of(node: Node) -> list[object]:
    """What torch traced it to give; None is a gradient that nobody asked for."""
    values = node.meta.get("val")
    return [v for v in values if v is not None] if isinstance(values, (tuple, list)) else [values]


def can_be_computed(node: Node) -> bool:
    results = results_of(node)
    if not results or not all(is_tensor(value) and can_be_held(value) for value in results):
        return False
    return all(can_be_read(operand) for operand in node.all_input_nodes) and refused(node) is None


def refused(node: Node) -> str | None:
    """Why an operator that is lowered is left to torch when it is called like this, or None."""
    return refusal(node.target, results_of(node)[0].dtype, node.args, node.kwargs)


def keeps_its_place(node: Node) -> bool:
    """Whether it draws random numbers, writes to a tensor or has another effect: the order of two such matters."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op != "call_function" or node.is_impure() or isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags or node.is_impure()


class Fusion:
    """The groups of a graph. Every node is of a unit, a group or itself; no unit waits for itself through others."""

    def __init__(self, reductions: bool = True):
        self.reductions = reductions
        self.fuses = True
        self.at: Node | None = None  # the node that is being placed
        self.unit: dict[Node, int] = {}
        self.within: dict[Node, int] = {}  # of a group's members, and of views of them, the group
        self.reach: list[int] = []  # of each unit, as bits, the units that it waits for
        self.groups: dict[int, Group] = {}
        self.last_in_order: Node | None = None

    @classmethod
    def of(cls, graph: Graph, reductions: bool = True) -> Fusion:
        """Should it fail, every node stays by itself, and that is reported."""
        fusion = cls(reductions)
        try:
            fusion.place_all(graph)
        except Exception as error:
            failures.report(fusion.at.target if fusion.at else "a graph", error)
            fusion = cls(reductions)
            fusion.fuses = False
            fusion.place_all(graph)
        return fusion

    def place_all(self, graph: Graph) -> None:
        for self.at in graph.nodes:
            self.place(self.at)
        if not self.fuses:
            return
        self.merge_neighbours(graph)
        for self.at in graph.nodes:
            self.place_join(self.at)
            if self.reductions:
                self.place_total(self.at)

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
        if self.fuses and node.op == "call_function" and self.place_within(node):
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
        return node.target in ROWS and self.reductions and can_be_computed(node) and self.place_rows(node)

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

    def place_join(self, node: Node) -> None:
        """A concatenation of a group's results: these are written where they belong in it."""
        if node.target is not CONCATENATION or not can_be_held(node.meta["val"]):
            return
        parts, dim = joined_along(node)
        made = [part for part in parts if part in self.within and self.within[part] == self.unit[part]]
        dtype = node.meta["val"].dtype
        if not made or not all(can_be_read(part) and part.meta["val"].dtype == dtype for part in parts):
            return
        unit = self.unit[made[0]]
        dims = self.groups[unit].dims[made[0]]
        others = [part for part in parts if self.within.get(part) != unit]
        is_whole = along(dims) == self.groups[unit].axes and dims[dim]
        alike = all(self.groups[unit].dims.get(part, dims) == dims for part in parts)
        alike = alike and all(have_same_shape(part, made[0]) for part in others)
        if not is_whole or not alike or not self.can_join(unit, others):
            return
        self.grow(unit, self.waits_for(others))
        self.unit[node] = unit
        self.groups[unit].joins.append(node)
        self.groups[unit].dims[node] = dims

    def place_total(self, node: Node) -> None:
        """A sum over the leading dimensions of what a group computes or reads, whose rows these are or become."""
        if node.target is not TOTAL or len(node.args) < 2 or not can_be_computed(node):
            return
        x, dims, *_ = node.args
        unit, own = self.where_whole(x)
        if not own or self.reach[unit] >> self.unit[node] & 1:
            return
        group = self.groups[unit]
        reduced = reduced_dims(dims, len(own))
        rows = frozenset(axis for d in reduced for axis in own[d])
        columns = group.axes - rows
        alike = x.meta["val"].dtype == node.meta["val"].dtype and x.meta["val"].dtype.is_floating_point
        is_last = bool(rows) and max(rows_place(own, rows)) < min(rows_place(own, columns), default=0)
        if not alike or along(own) != group.axes or group.columns not in (None, columns) or not is_last:
            return
        if math.prod(hint(group.sizes[axis]) for axis in columns) < FEWEST_COLUMNS:
            return
        kept = [() if d in reduced else dim for d, dim in enumerate(own)]
        is_short = len(shape_of(node)) < len(own)
        group.columns = columns
        group.totals[node] = own
        group.dims[node] = tuple(dim for d, dim in enumerate(kept) if not (is_short and d in reduced))
        self.unit[node] = unit

    def where_whole(self, node: Node) -> tuple[int, Dims | None]:
        """A group that computes a tensor, or reads it, and with which dimensions; None where there is none."""
        unit = self.within.get(node)
        if unit is not None:
            return unit, self.groups[unit].dims[node]
        for user in node.users:
            unit = self.within.get(user)
            if unit is not None and unit == self.unit[user]:
                dims = read_dims(self.groups[unit], user, node)
                if dims is not None and along(dims) == self.groups[unit].axes:
                    return unit, dims
        return -1, None

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
        for node in graph.nodes:
            if not is_tensor(node.meta.get("val")):
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
        mapping = correspondence(one, other, pairs)
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
