"""Writes a fused group's program."""

from __future__ import annotations

import itertools
import operator

import torch
from torch.fx import Node

from fourfold.compiler.analysis.iteration_space import IterationSpace, renumbered
from fourfold.compiler.analysis.parts import SELECT, SLICE
from fourfold.compiler.analysis.support import constant_of, device_of, is_number_elsewhere, is_tensor
from fourfold.compiler.analysis.views import VIEWS, memory_order
from fourfold.compiler.ir.dtypes import FLOAT32, FLOAT64, INT64, KINDS, ROUNDED, TYPES
from fourfold.compiler.ir.values import Axis, Output, Program, Value
from fourfold.compiler.lowering import POINTWISE, ROWS, Call, NotFusable, Operand, is_stepwise
from fourfold.compiler.nodes.fused import STARTS, Fused
from fourfold.devices import programs

LETTERS = "abcdefghijklmnopqrstuvwx"


def write_program(fused: Fused, rounds_each: bool = False) -> str:
    """The program's text. rounds_each: whether each operator rounds its result to its dtype. Releases the group's
    iteration space. Raises NotFusable if the group has no program."""
    text = Codegen(fused, rounds_each).write().text()
    fused.space = IterationSpace()
    return text


class Codegen:
    def __init__(self, fused: Fused, rounds_each: bool = False):
        self.fused = fused
        self.rounds_each = rounds_each
        self.device = device_of(fused.members[0])
        type = self.device.type
        self.program = Program(has_float64=type not in programs.WITHOUT_FLOAT64, is_on_cpu=type in programs.INTERPRETED)
        self.values: dict[Node, Value | tuple[Value, ...]] = {}
        self.axis = {axis: k for k, axis in enumerate(self.axis_order())}
        self.read_from: dict[int, str] = {}  # by axis: the first input dimension that runs along this axis alone

    def write(self) -> Program:
        columns = self.fused.space.columns
        if columns is not None:
            self.program.outer = len(self.axis) - len(columns)
        for node in self.fused.graph.nodes:
            self.write_node(node)
        for node in self.fused.outputs:
            self.write_output(node)
        self.program.axes = [Axis(LETTERS[k], self.size_of(axis)) for axis, k in self.axis.items()]
        return self.program

    def axis_order(self) -> list[int]:
        """The memory order of the first whole output, or else the order of the first whole value's dimensions; rows
        before columns."""
        space = self.fused.space
        if len(space.sizes) > len(LETTERS):
            raise NotFusable(f"more than {len(LETTERS)} dimensions")
        orders = itertools.chain(
            ([space.dims[n][d] for d in memory_order(n.meta["val"])] for n in self.fused.outputs if self.is_whole(n)),
            (space.dims[n] for n in self.fused.members if self.is_whole(n)),
        )
        order = [axis for dim in next(orders, ()) for axis in dim] or list(range(len(space.sizes)))
        return sorted(order, key=(space.columns or frozenset()).__contains__)

    def is_whole(self, node: Node) -> bool:
        return self.fused.space.is_whole(self.fused.space.dims[node])

    def write_node(self, node: Node) -> None:
        fake = node.meta.get("val")
        if node.op == "placeholder":
            self.values[node] = self.input(node, fake)
        elif node.op == "output" or not is_tensor(fake) and not isinstance(fake, (tuple, list)):
            return  # a value that is not a tensor is a size, which only views read
        elif constant_of(node) is not None:
            self.values[node] = Call(self.program, fake.dtype)(constant_of(node))
        elif node.target in VIEWS or node.target in (SELECT, SLICE):  # of inputs: a part is an input of its own
            self.values[node] = self.values[node.args[0]]
        elif node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
        elif "epilogue" not in node.meta:
            self.values[node] = self.lowered(node)

    def input(self, node: Node, fake: object) -> Value:
        name = f"x{len(self.program.inputs)}"  # not the graph's: equal programs have equal texts
        floating = FLOAT64 if self.program.has_float64 else FLOAT32
        if not is_tensor(fake):
            return self.program.number(name, INT64 if isinstance(fake, (int, torch.SymInt)) else floating)
        if is_number_elsewhere(fake, self.device):
            return self.program.number(name, floating if fake.dtype == torch.float64 else TYPES[fake.dtype])
        dims, starts = self.fused.space.dims[node], node.meta[STARTS]
        for d, dim in enumerate(dims):
            if len(dim) == 1 and (not starts or starts[d] is None):
                self.read_from.setdefault(dim[0], f"{name}.{d}")
        return self.program.input(name, fake.dtype, renumbered(dims, self.axis), starts)

    def lowered(self, node: Node) -> Value | tuple[Value, ...]:
        lower = POINTWISE[node.target] if node.target in POINTWISE else ROWS[node.target].lower
        fakes = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else [node.meta["val"]]
        dtypes = [fake.dtype if is_tensor(fake) else None for fake in fakes]
        call = Call(self.program, next(filter(None, dtypes)), self.device.type)
        args = [self.argument(argument) for argument in node.args]
        kwargs = {name: self.argument(argument) for name, argument in node.kwargs.items()}
        if self.rounds_each and call.device == "cpu" and is_stepwise(node.target, call.dtype, node.args):
            self.program.rounding = ROUNDED.get(call.dtype)
        result = lower(call, *args, **kwargs)
        self.program.rounding = None
        results = result if isinstance(result, tuple) else (call.finished(call(result)),)
        if self.rounds_each:
            pairs = zip(results, dtypes, strict=True)
            results = tuple(value if value is None else call.rounded(value, dtype) for value, dtype in pairs)
        return results if isinstance(result, tuple) else results[0]

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
        own = renumbered(dims, self.axis)
        self.program.outputs.append(Output(values, KINDS[fake.dtype], own, memory_order(fake), join, is_sum))

    def size_of(self, axis: int) -> str:
        size = self.fused.space.sizes[axis]
        if isinstance(size, int):
            return str(size)
        if axis not in self.read_from:
            raise NotFusable(f"no input has a dimension of size {size}")
        return self.read_from[axis]
