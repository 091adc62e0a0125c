"""Plans a graph that runs without Python: its steps are programs and torch's operators, which C++ calls one by one.

Each value has an index: first the graph's inputs, then the steps' results in order."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis import in_place
from fourfold.compiler.analysis.concatenations import concatenations, filled, lengths_of, source_of
from fourfold.compiler.analysis.overwritten import overwritten
from fourfold.compiler.analysis.parts import parts_of
from fourfold.compiler.analysis.support import constant_of, is_tensor
from fourfold.compiler.analysis.views import has_hints, memory_order
from fourfold.compiler.analysis.writes import SCATTERS, Write, writes
from fourfold.compiler.lowering import CONSTANT, POINTWISE
from fourfold.compiler.nodes.control_flow import ControlFlow
from fourfold.compiler.nodes.fused import Fused, flat, results_of
from fourfold.compiler.nodes.loop import Loop
from fourfold.compiler.nodes.subgraph import Subgraph

Step = tuple[str, object, object, list[int]]  # as cpp/bindings/steps.cpp takes them


# Operations on sizes that cpp/graph/number_step.h computes.
ARITHMETIC = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.truediv: "truediv",
    operator.mod: "mod",
    operator.neg: "neg",
    operator.eq: "eq",
    operator.ne: "ne",
    operator.lt: "lt",
    operator.le: "le",
    operator.gt: "gt",
    operator.ge: "ge",
    torch.sym_float: "float",
    torch.sym_int: "int",
    torch.sym_max: "max",
    torch.sym_min: "min",
    torch.sym_not: "not",
}


# Operators with contiguous results whatever the layout of their operands.
TAKES_GAPS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in ("bmm", "cumsum", "flip", "mm", "sum")
    for overload in getattr(torch.ops.aten, name).overloads()
)


class NeedsPython(Exception):
    """A step that C++ can't run."""


@dataclass
class Plan:
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # the values' indices, -1 for None
    read_by_torch: set[int] = field(default_factory=set)  # the values that torch's operators read
    updates: dict[Node, Node] = field(default_factory=dict)  # the copies that programs make unnecessary: in_place.py
    overwritten: set[Node] = field(default_factory=set)  # those that operators in place make so: overwritten.py
    concatenations: dict[Node, list[Node]] = field(default_factory=dict)  # each with the parts that programs write
    fused: dict[int, Fused] = field(default_factory=dict)  # by step
    index: dict[Node, int] = field(default_factory=dict)  # of values; of an operator with several results the first
    firsts: list[int] = field(default_factory=list)  # for each step, the index of its first result
    count: int = 0  # of values


def plan(module: GraphModule) -> GraphModule:
    """Stores the plan in ``module.meta``, or None if Python has to run the graph."""
    try:
        module.meta["plan"] = Writer(module.graph.find_nodes(op="placeholder")).write(module)
    except NeedsPython as reason:
        module.meta["plan"] = None
        module.meta["needs Python"] = str(reason)
    return module


def layouts(inputs: list[Node], steps: Plan | None) -> list[tuple[int, list[int], bool]]:
    """The gradients that torch's operators read, which rely on the traced layout: each one's index, its memory order,
    outermost first, and whether it must be dense. Programs take any layout."""
    found = []
    for index, node in enumerate(inputs):
        is_read = steps is None or index in steps.read_by_torch
        fake = node.meta.get("val")
        if "tangents" in str(node.target) and is_tensor(fake) and has_hints(fake) and is_read:
            is_dense = steps is None or not all(takes_gaps(user, node) for user in node.users)
            found.append((index, memory_order(fake), is_dense))
    return found


def takes_gaps(user: Node, gradient: Node) -> bool:
    """Whether it gives its result the same layout if the gradient is broadcast, or has gaps, instead of contiguous."""
    if isinstance(user.target, Fused) or user.op == "output":
        return True
    if user.target in SCATTERS:
        return user.args[0] is not gradient
    fakes = [node.meta.get("val") for node in (user, *user.all_input_nodes)]
    tensors = filter(is_tensor, fakes)
    return user.target in TAKES_GAPS or user.target in POINTWISE and all(each.is_contiguous() for each in tensors)


class Writer:
    """in_file: whether the steps are for a file, where operators change only inputs, and only operators that its reader
    permits do."""

    def __init__(self, inputs: list[Node], in_file: bool = False):
        self.in_file = in_file
        self.index = {node: k for k, node in enumerate(inputs)}
        self.count = len(inputs)
        self.plan = Plan()
        self.last: dict[int, int] = {}  # for each value, the step that reads it last
        self.targets: dict[Node, tuple[int, bool]] = {}  # by result: the tensor to write it to, and whether that is new
        self.joined_by: dict[Node, Node] = {}  # the concatenation of a part that programs write
        self.places: dict[Node, Sequence[int]] = {}  # of each concatenation's parts
        self.filled: set[Node] = set()  # constants that are only parts of concatenations

    def write(self, module: GraphModule) -> Plan:
        self.plan.updates = in_place.updates(module)
        self.plan.concatenations = concatenations(module)
        self.targets = {result: (self.index_of(copy.args[0]), False) for copy, result in self.plan.updates.items()}
        self.joined_by = {part: node for node, parts in self.plan.concatenations.items() for part in parts}
        self.filled = filled(module, self.plan.concatenations)
        inputs = overwritten(module)
        self.plan.overwritten = inputs.copies
        others = {} if self.in_file else writes(module)
        written = {node: each for node, each in others.items() if each.into not in inputs.writes} | inputs.writes
        within = {node for write in written.values() for node in write.within}
        for node in module.graph.nodes:
            if node in within:
                continue
            if node in written:
                self.write_view(node, written[node])
            elif isinstance(node.target, Fused):
                self.program(node)
            elif isinstance(node.target, Loop):
                self.loop(node)
            elif isinstance(node.target, (ControlFlow, Subgraph)):
                self.subgraph(node)
            elif node in self.plan.updates or node in self.plan.overwritten:
                self.index[node] = self.index_of(node.args[0])
            elif node in self.plan.concatenations:
                self.complete(node)
            elif node in self.filled:
                continue
            elif node.target is operator.getitem:
                self.item(node)
            elif node.op == "get_attr":
                self.constant(module, node)
            elif node.target in ARITHMETIC and not is_tensor(node.meta.get("val")):
                self.number(node)
            elif node.op not in ("placeholder", "output"):
                self.operator(node)
        results = module.graph.output_node().args[0]
        if not all(result is None or isinstance(result, Node) for result in results):
            raise NeedsPython("a result that is a number")
        returned = module.meta.get(in_place.RETURNED, {})
        self.plan.outputs = [
            -1 if result is None else self.index_of(result) if returned.get(k) is None else returned[k]
            for k, result in enumerate(results)
        ]
        for index, step in self.last.items():
            if index not in self.plan.outputs:
                self.plan.steps[step][3].append(index)
        self.plan.index, self.plan.count = self.index, self.count
        return self.plan

    def add(self, what: str, first: object, second: object) -> None:
        self.plan.steps.append((what, first, second, []))
        self.plan.firsts.append(self.count)

    def made(self, count: int) -> int:
        """The index of a step's first result; unused results are freed after the step itself."""
        first = self.count
        self.count += count
        self.last.update(dict.fromkeys(range(first, self.count), len(self.plan.steps) - 1))
        return first

    def index_of(self, node: Node) -> int:
        if node not in self.index:
            raise NeedsPython(f"{node.name} is not a tensor of the graph")
        return self.index[node]

    def read(self, node: Node) -> int:
        """The index of a value that the next step reads."""
        index = self.index_of(node)
        self.last[index] = len(self.plan.steps)
        return index

    def program(self, node: Node) -> None:
        fused = node.target
        results = results_of(node)
        for result in results:
            if result in self.joined_by and result not in self.targets:
                self.begin(self.joined_by[result])
        updates = [(k, *self.targets[result]) for k, result in enumerate(results) if result in self.targets]
        self.last.update((index, len(self.plan.steps)) for _, index, _ in updates)
        self.plan.fused[len(self.plan.steps)] = fused
        self.add("program", (fused.call, fused.run_operators, updates), [self.read(given) for given in node.args])
        first = self.made(len(results))
        self.index.update((result, first + k) for k, result in enumerate(results) if result is not None)

    def loop(self, node: Node) -> None:
        loop = node.target
        parts = loop, loop.native, list(loop.feeds), list(loop.trails), loop.series, loop.reverse
        self.add("loop", parts, self.inputs(node))
        self.index[node] = self.made(len(node.meta["val"]))

    def subgraph(self, node: Node) -> None:
        self.add("graph", (node.target, node.target.native), self.inputs(node))
        self.index[node] = self.made(len(node.meta["val"]))

    def inputs(self, node: Node) -> list[int]:
        """The values that the next step reads, tensors and numbers."""
        found = [
            self.index_of(given) if isinstance(given, Node) else self.constant_number(given) for given in node.args
        ]
        self.last.update(dict.fromkeys(found, len(self.plan.steps)))
        return found

    def begin(self, node: Node) -> None:
        """Allocates a concatenation, or takes its place in the one that it is a part of."""
        fake, (parts, dim) = node.meta["val"], parts_of(node)
        if node in self.joined_by:
            if node not in self.targets:
                self.begin(self.joined_by[node])
            whole, ends = self.targets[node][0], [0, *itertools.accumulate(lengths_of(node))]
            self.index[node], own = whole, []
            for start, stop in itertools.pairwise(ends):
                self.last[whole] = len(self.plan.steps)
                place = [("constant", each) for each in (dim, start, stop, 1)]
                self.add("operator", ("aten::slice", "Tensor"), [("value", whole), *place])
                own.append(self.made(1))
        else:
            described = list(fake.shape), list(fake.stride()), fake.dtype, fake.device
            self.add("concatenation", described, (dim, lengths_of(node)))
            self.index[node] = self.made(1 + len(parts))
            own = range(self.index[node] + 1, self.index[node] + 1 + len(parts))
        self.places[node] = own
        if node not in self.joined_by and self.number_of_borders(node) is not None:
            self.fill(self.index[node], self.number_of_borders(node))
        for part, index in zip(parts, own, strict=True):
            source = source_of(part, dim)
            if self.joined_by.get(source) is node:
                self.targets[source] = (index if source is part else self.row_of(index, dim)), True

    def number_of_borders(self, node: Node) -> bool | int | float | None:
        """The number of all constants of a concatenation, if they are not contiguous in memory: then the whole is
        filled with it first."""
        numbers, pending, is_apart = {}, [node], False
        while pending:
            each = pending.pop()
            parts, dim = parts_of(each)
            is_apart = is_apart or each is not node or dim != memory_order(node.meta["val"])[0]
            numbers |= {repr(constant_of(part)): constant_of(part) for part in parts if part in self.filled}
            pending += [part for part in parts if self.joined_by.get(part) is each and part in self.plan.concatenations]
        return next(iter(numbers.values())) if is_apart and len(numbers) == 1 else None

    def fill(self, index: int, number: bool | int | float) -> None:
        self.last[index] = len(self.plan.steps)
        self.add("operator", ("aten::fill_", "Scalar"), [("value", index), ("constant", number)])
        self.made(1)

    def row_of(self, index: int, dim: int) -> int:
        self.last[index] = len(self.plan.steps)
        self.add("operator", ("aten::select", "int"), [("value", index), ("constant", dim), ("constant", 0)])
        return self.made(1)

    def write_view(self, node: Node, write: Write) -> None:
        view = self.index[node] = self.index_of(write.into)
        for target, place in write.places:
            self.last[view] = len(self.plan.steps)
            given = [("value", self.read(each)) if isinstance(each, Node) else ("constant", each) for each in place]
            self.add("operator", (target._schema.name, target._schema.overload_name), [("value", view), *given])
            view = self.made(1)
        if write.operator is not None:
            self.call(write.operator, view)
            return
        value = self.read(write.value)
        if write.is_of_itself:
            self.add("operator", ("aten::clone", ""), [("value", value), ("default", None)])
            value = self.made(1)
        self.copy(view, value)

    def copy(self, index: int, value: int) -> None:
        self.last |= dict.fromkeys((index, value), len(self.plan.steps))
        self.add("operator", ("aten::copy_", ""), [("value", index), ("value", value), ("default", None)])
        self.made(1)

    def complete(self, node: Node) -> None:
        """Fills the parts of a concatenation that are constants, and copies those that no program has written."""
        parts, dim = parts_of(node)
        outermost = node
        while outermost in self.joined_by:
            outermost = self.joined_by[outermost]
        for index, part in zip(self.places[node], parts, strict=True):
            if self.joined_by.get(source_of(part, dim)) is node:
                continue
            if part not in self.filled:
                self.copy(index, self.read(part))
            elif self.number_of_borders(outermost) is None:
                self.fill(index, constant_of(part))

    def constant(self, module: GraphModule, node: Node) -> None:
        value = getattr(module, node.target, None)
        if not is_tensor(value):
            raise NeedsPython(f"{node.name} is an attribute of another type than Tensor")
        self.add("constant", value, None)
        self.index[node] = self.made(1)

    def number(self, node: Node) -> None:
        operands = [("value", self.read(each)) if isinstance(each, Node) else ("number", each) for each in node.args]
        self.add("number", ARITHMETIC[node.target], operands)
        self.index[node] = self.made(1)

    def constant_number(self, value: int | float) -> int:
        self.add("number", "add", [("number", value), ("number", 0)])
        return self.made(1)

    def item(self, node: Node) -> None:
        source, item = node.args
        if isinstance(source.target, Fused):
            return
        if isinstance(source.target, (ControlFlow, Loop, Subgraph)):
            self.index[node] = self.index_of(source) + item
            return
        if not isinstance(source.target, torch._ops.OpOverload) or not isinstance(item, int) or item < 0:
            raise NeedsPython(f"{node.name} is an item of something other than an operator's results")
        if len(source.target._schema.returns) > 1:  # each has an index of its own
            self.index[node] = self.index_of(source) + item
            return
        self.add("item", self.read(source), item)
        self.index[node] = self.made(1)

    def operator(self, node: Node) -> None:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NeedsPython(f"{node.name} is not an operator of torch's dispatcher")
        self.index[node] = self.call(node)

    def call(self, node: Node, into: int | None = None) -> int:
        """The index of the first result. into: the value that the operator changes in place, instead of a copy of its
        first operand."""
        schema = node.target._schema
        names = [argument.name for argument in schema.arguments]
        given = dict(zip(names[: len(node.args)], node.args, strict=True)) | node.kwargs
        own = 0 if into is None else 1
        arguments = [
            self.argument(given[argument.name], argument) if argument.name in given else ("default", None)
            for argument in schema.arguments[own:]
        ]
        if into is not None:
            self.last[into] = len(self.plan.steps)
            arguments.insert(0, ("value", into))
        is_in_place = into is not None or node.target in SCATTERS and writes_in_place(node)
        self.add("operator", (f"{schema.name}_" if is_in_place else schema.name, schema.overload_name), arguments)
        return self.made(len(schema.returns))

    def argument(self, given: object, expected: torch.Argument) -> tuple[str, object]:
        if isinstance(given, Node):
            is_number = not is_tensor(given.meta.get("val"))
            if is_number and "Tensor" in str(expected.type) and "List" not in str(expected.type):
                return "wrapped", self.read(given)
            self.plan.read_by_torch.add(self.index_of(given))
            return "value", self.read(given)
        nodes: list[Node] = []
        torch.fx.map_arg(given, nodes.append)
        if not nodes:
            return "constant", given
        if not isinstance(given, (list, tuple)):
            raise NeedsPython(f"an argument {given}")
        return "list", [self.argument(part, expected) for part in given]


def writes_in_place(node: Node) -> bool:
    """Whether it may write into its first operand: a new tensor with the result's layout, whose other users have copied
    it before."""
    if node.target not in SCATTERS or not isinstance(node.args[0], Node):
        return False
    into = node.args[0]
    is_new = into.target in CONSTANT or into.target in SCATTERS
    reads = [operand for user in into.users for operand in flat((user.args, user.kwargs)) if operand is into]
    are_copies = all(user.target in SCATTERS and user.args[0] is into for user in into.users)
    lies_alike = memory_order(into.meta["val"]) == memory_order(node.meta["val"])
    return is_new and lies_alike and are_copies and len(reads) == len(into.users) and node is max(into.users)
