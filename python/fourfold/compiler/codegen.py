"""Writes a fused group's program."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from fourfold.compiler.dtypes import TYPES
from fourfold.compiler.fused import Fused
from fourfold.compiler.ir import Axis, Dims, Program, Value
from fourfold.compiler.lowering import POINTWISE, ROWS, Call, NotFusable, Operand
from fourfold.compiler.support import constant_of, is_tensor
from fourfold.compiler.views import VIEWS, memory_order

LETTERS = "abcdefghijklmnopqrstuvwx"


def write_program(fused: Fused) -> Program:
    """Raises NotFusable where there is none."""
    return Codegen(fused).write()


@dataclass
class Codegen:
    fused: Fused
    program: Program = field(default_factory=Program)
    values: dict[Node, Value | tuple[Value, ...]] = field(default_factory=dict)

    def write(self) -> Program:
        space = self.fused.space
        order = self.axis_order()
        self.axis = {axis: k for k, axis in enumerate(order)}
        self.program.axes = [Axis(LETTERS[k], "") for k in range(len(order))]
        if space.columns is not None:
            self.program.outer = len(order) - len(space.columns)
        for node in self.fused.graph.nodes:
            self.write_node(node)
        for node in self.fused.outputs:
            self.write_output(node)
        self.program.axes = [Axis(LETTERS[k], self.size_of(axis)) for k, axis in enumerate(order)]
        return self.program

    def axis_order(self) -> list[int]:
        """As the first whole result is laid out in memory, or as the first whole value has its dimensions; rows before
        columns."""
        space = self.fused.space
        if len(space.sizes) > len(LETTERS):
            raise NotFusable(f"more than {len(LETTERS)} dimensions")
        order = None
        for node in self.fused.outputs:
            dims = space.dims[node]
            if order is None and space.is_whole(dims):
                order = [axis for d in memory_order(node.meta["val"]) for axis in dims[d]]
        if order is None:
            members = (space.dims[node] for node in self.fused.members)
            whole = (dims for dims in members if space.is_whole(dims))
            order = [axis for dim in next(whole, ()) for axis in dim] or list(range(len(space.sizes)))
        return sorted(order, key=(space.columns or frozenset()).__contains__)

    def numbered(self, dims: Dims) -> Dims:
        return tuple(tuple(self.axis[axis] for axis in dim) for dim in dims)

    def write_node(self, node: Node) -> None:
        fake = node.meta.get("val")
        if node.op == "placeholder" and is_tensor(fake):
            self.values[node] = self.program.input(node.name, fake.dtype, self.numbered(self.fused.space.dims[node]))
        elif node.op == "placeholder":
            type = "int64" if isinstance(fake, (int, torch.SymInt)) else "float64"
            self.values[node] = self.program.number(node.name, type)
        elif node.op == "output" or not is_tensor(fake) and not isinstance(fake, (tuple, list)):
            return  # or a size, which only views read
        elif constant_of(node) is not None:
            self.values[node] = self.program.constant(TYPES[fake.dtype], constant_of(node))
        elif node.target in VIEWS:
            self.values[node] = self.values[node.args[0]]
        elif node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
        elif "epilogue" not in node.meta:
            self.values[node] = self.lowered(node)

    def lowered(self, node: Node) -> Value | tuple[Value, ...]:
        lower = POINTWISE[node.target] if node.target in POINTWISE else ROWS[node.target].lower
        first = node.meta["val"][0] if isinstance(node.meta["val"], (tuple, list)) else node.meta["val"]
        call = Call(self.program, first.dtype)
        args = [self.argument(argument) for argument in node.args]
        kwargs = {name: self.argument(argument) for name, argument in node.kwargs.items()}
        result = lower(call, *args, **kwargs)
        return result if isinstance(result, tuple) else call.finished(call(result))

    def argument(self, argument: object) -> object:
        return Operand(self.values[argument], argument.meta["val"]) if isinstance(argument, Node) else argument

    def write_output(self, node: Node) -> None:
        fake, dims = node.meta["val"], self.fused.space.dims[node]
        parts, join, is_sum = [node], -1, False
        if "epilogue" in node.meta:
            is_sum = isinstance(node.args[0], Node)
            parts = [node.args[0]] if is_sum else node.args[0]
            join = -1 if is_sum else (node.args[1] if len(node.args) > 1 else 0) % fake.dim()
        values = [self.program.cast(self.values[part], TYPES[fake.dtype]) for part in parts]
        self.program.output(values, fake.dtype, self.numbered(dims), memory_order(fake), join, is_sum)

    def size_of(self, axis: int) -> str:
        size = self.fused.space.sizes[axis]
        if isinstance(size, int):
            return str(size)
        for given in self.program.inputs:
            for d, dim in enumerate(given.dims):
                if dim == (self.axis[axis],):
                    return f"{given.name}.{d}"
        raise NotFusable(f"no input has a dimension of size {size}")
