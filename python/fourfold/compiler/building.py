"""A group of nodes as a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from fourfold.compiler.groups import Group, along, joined_along
from fourfold.compiler.lowering import CONSTANT, POINTWISE, ROWS, Call, NotFusable, Operand, fits
from fourfold.compiler.program import TYPES, Axis, Dims, Program, Value
from fourfold.compiler.views import VIEWS, hint, is_one, unviewed

LETTERS = "abcdefghijklmnopqrstuvwx"


@dataclass
class Built:
    """A program, and what of the graph it reads and gives."""

    program: Program
    inputs: list[Node]
    outputs: list[Node]
    members: list[Node]


def build(group: Group, members: list[Node], outputs: list[Node], ends: list[Node]) -> Built:
    """ends: concatenations of its results, and sums over its rows. Raises NotFusable where it can't be."""
    built = Builder(group, members, outputs + ends).build()
    built.members = members + ends
    return built


@dataclass
class Builder:
    group: Group
    members: list[Node]
    outputs: list[Node]
    program: Program = field(default_factory=Program)
    inputs: list[Node] = field(default_factory=list)
    values: dict[Node, Value | tuple[Value, ...]] = field(default_factory=dict)
    given: dict[tuple[Node, Dims], Value] = field(default_factory=dict)

    def build(self) -> Built:
        self.order = self.axis_order()
        self.place = {axis: place for place, axis in enumerate(self.order)}
        self.program.axes = [Axis(LETTERS[k], "") for k in range(len(self.order))]
        if self.group.columns is not None:
            self.program.outer = len(self.order) - len(self.group.columns)
        for node in self.members:
            self.values[node] = self.lower(node)
        for node in self.outputs:
            self.add_output(node)
        self.program.axes = [Axis(LETTERS[k], self.size_of(axis)) for k, axis in enumerate(self.order)]
        return Built(self.program, self.inputs, self.outputs, self.members)

    def axis_order(self) -> list[int]:
        """As the first result of elements lies in memory, or as the first value of elements has them; rows before
        columns."""
        columns = self.group.columns or frozenset()
        if len(self.group.sizes) > len(LETTERS):
            raise NotFusable(f"more than {len(LETTERS)} dimensions")
        for node in self.outputs:
            dims = self.group.dims[node]
            if along(dims) == self.group.axes:
                order = [axis for d in memory_order(node.meta["val"]) for axis in dims[d]]
                return rows_first(order, columns)
        whole = (dims for dims in self.group.dims.values() if along(dims) == self.group.axes)
        order = [axis for dim in next(whole, ()) for axis in dim]
        return rows_first(order or list(range(len(self.group.sizes))), columns)

    def placed(self, dims: Dims) -> Dims:
        return tuple(tuple(self.place[axis] for axis in dim) for dim in dims)

    def lower(self, node: Node) -> Value | tuple[Value, ...]:
        if node.target in POINTWISE:
            lowering, whole = POINTWISE[node.target], self.group.dims[node]
        elif node.target in ROWS:
            lowering, whole = ROWS[node.target].lower, self.group.reduced[node]
        else:  # one of several results
            return self.values[node.args[0]][node.args[1]]
        first = node.meta["val"][0] if isinstance(node.meta["val"], (tuple, list)) else node.meta["val"]
        call = Call(self.program, first.dtype)
        args = [self.argument(argument, whole) for argument in node.args]
        kwargs = {name: self.argument(argument, whole) for name, argument in node.kwargs.items()}
        result = lowering(call, *args, **kwargs)
        return result if isinstance(result, tuple) else call.finished(call(result))

    def argument(self, argument: object, whole: Dims) -> object:
        if not isinstance(argument, Node):
            return argument
        return Operand(self.operand(argument, whole), argument.meta["val"])

    def operand(self, node: Node, whole: Dims) -> Value:
        """A node's value where a user has these dimensions."""
        fake = node.meta["val"]
        if node in self.group.dims:
            while node not in self.values:  # a view
                node = node.args[0]
            return self.values[node]
        if not isinstance(fake, torch.Tensor):
            return self.number(node)
        number = constant_of(node)
        if number is not None:
            return self.program.constant(TYPES[fake.dtype], number)
        kept = whole[len(whole) - fake.dim() :]
        return self.read(node, tuple(() if is_one(s) else dim for s, dim in zip(fake.shape, kept, strict=True)))

    def read(self, node: Node, dims: Dims) -> Value:
        """What is computed elsewhere: of a view, where that is only index arithmetic, what it views."""
        while node.op == "call_function" and node.target in VIEWS:
            below = unviewed(node, dims, lambda axis: self.group.sizes[axis])
            if below is None or not isinstance(node.args[0], Node):
                break
            node, dims = node.args[0], below
        if (node, dims) not in self.given:
            self.inputs.append(node)
            name = self.name_of(node)
            self.given[node, dims] = self.program.input(name, node.meta["val"].dtype, self.placed(dims))
        return self.given[node, dims]

    def number(self, node: Node) -> Value:
        if (node, ()) not in self.given:
            self.inputs.append(node)
            is_integer = isinstance(node.meta["val"], (int, torch.SymInt))
            self.given[node, ()] = self.program.number(self.name_of(node), "int64" if is_integer else "float64")
        return self.given[node, ()]

    def name_of(self, node: Node) -> str:
        count = self.inputs.count(node)
        return node.name if count == 1 else f"{node.name}_again_{count}"

    def add_output(self, node: Node) -> None:
        fake = node.meta["val"]
        dims = self.group.dims[node]
        parts, join = [node], -1
        if node in self.group.joins:
            parts, join = joined_along(node)
        elif node in self.group.totals:
            parts = [node.args[0]]
        is_total = node in self.group.totals
        whole = self.group.totals.get(node, dims)
        values = [self.program.cast(self.operand(part, whole), TYPES[fake.dtype]) for part in parts]
        self.program.output(values, fake.dtype, self.placed(dims), memory_order(fake), join, is_total)

    def size_of(self, axis: int) -> str:
        size = self.group.sizes[axis]
        if isinstance(size, int):
            return str(size)
        for given in self.program.inputs:
            for d, dim in enumerate(given.dims):
                if dim == (self.place[axis],):
                    return f"{given.name}.{d}"
        raise NotFusable(f"no input has a dimension of size {size}")


def rows_first(order: list[int], columns: frozenset[int]) -> list[int]:
    return sorted(order, key=columns.__contains__)


def constant_of(node: Node) -> bool | int | float | None:
    """The one number that a tensor holds, where that is known, and one of its dtype's."""
    while node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    if node.op != "call_function" or node.target not in CONSTANT:
        return None
    number = CONSTANT[node.target](*node.args, **node.kwargs)
    is_known = isinstance(number, (bool, int, float))
    return number if is_known and fits(number, node.meta["val"].dtype) else None


def memory_order(fake: torch.Tensor) -> list[int]:
    """A tensor's dimensions, the one with the longest stride first; of equal strides one of size 1 is the inner."""
    strides = [hint(stride) for stride in fake.stride()]
    return sorted(range(fake.dim()), key=lambda d: (-strides[d], is_one(fake.shape[d])))


def uses_outside(group: Group, node: Node, inside: Iterable[Node]) -> bool:
    """Whether anyone but the group's members reads the node, or a view of it that is within the group."""
    members = set(inside)
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user in members or user in group.joins or user in group.totals:
                continue
            if user not in group.dims:
                return True
            pending.append(user)  # a view
    return False
