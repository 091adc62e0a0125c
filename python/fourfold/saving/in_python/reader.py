"""Reads and checks the graphs of a file, as cpp/model/reader.h does. Each becomes a graph of torch.fx, which runs like
one of torch.compile."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fourfold import _C
from fourfold.compiler.nodes.fused import Fused
from fourfold.compiler.nodes.loop import Loop
from fourfold.compiler.nodes.subgraph import Subgraph
from fourfold.compiler.pipeline.calling import Program
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.saving.in_python import operators
from fourfold.saving.in_python.guards import Guarded, guard_of
from fourfold.saving.in_python.operators import BOOLEAN, FLOAT, INTEGER, NUMBER, NUMBERS, OTHER, TENSOR, TENSORS
from fourfold.saving.in_python.steps import ARITHMETIC, Concatenation, Constant, Item, Number
from fourfold.saving.in_python.values import Refused, constant_of, dtype_of, expect, index_of, member, shown

DEEPEST = 16  # graphs within graphs
MOST = 2**31 - 1
STEPS = ("operator", "program", "item", "constant", "number", "concatenation", "loop", "graph")


@dataclass(eq=False, repr=False)
class FileProgram(Fused):
    label: str = ""

    @property
    def operator(self) -> str:
        """Identifies it in failure reports."""
        return self.label


@dataclass
class Read:
    """A graph that was read, and the kinds of its results."""

    compiled: Compiled
    results: list[str]


@dataclass
class ReadProgram:
    """A program of the file; several steps may call it. target: a FileProgram or, without programs for the device, its
    operators as a Subgraph."""

    label: str
    inputs: list[str]  # kinds
    outputs: int
    target: FileProgram | Subgraph


@dataclass
class Scope:
    """The graph that is being read."""

    graph: Graph = field(default_factory=Graph)
    values: list[Node | None] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    unwritten: set[int] = field(default_factory=set)  # parts of concatenations that nothing has written yet
    parts: dict[int, range] = field(default_factory=dict)  # by concatenation

    def add(self, node: Node | None, kind: str) -> None:
        self.values.append(node)
        self.kinds.append(kind)

    def call(self, target: object, args: tuple = (), kwargs: Mapping[str, Any] | None = None) -> Node:
        return self.graph.call_function(target, args, dict(kwargs or {}))

    def call_for(self, results: Sequence[str], target: object, args: tuple = ()) -> None:
        """A call whose results, of these kinds, are in a tuple."""
        node = self.call(target, args)
        for k, kind in enumerate(results):
            self.add(self.call(Item(k), (node,)), kind)

    def read(self, index: int) -> Node:
        if index in self.unwritten or not self.unwritten.isdisjoint(self.parts.get(index, ())):
            raise Refused("expected the parts of a concatenation to be written before they are read")
        return self.values[index]

    def value(self, given: Any) -> int:
        index = index_of(given, "a value", len(self.values))
        self.read(index)
        return index

    def inputs(self, step: Any) -> list[int]:
        return [self.value(each) for each in expect(member(step, "inputs", "a step"), list, "inputs")]

    def nodes(self, indices: Sequence[int]) -> tuple[Node | None, ...]:
        return tuple(self.values[index] for index in indices)


class Reader:
    """tensors: those of the file, on the device. generator: of programs; negative if the device has none."""

    def __init__(self, tensors: Mapping[str, Tensor], surroundings: operators.Surroundings, generator: int):
        self.tensors, self.surroundings, self.generator = tensors, surroundings, generator
        self.programs: list[ReadProgram] = []
        self.depth = 0

    def read_programs(self, given: Any) -> None:
        for described in expect(given, list, "programs"):
            label = expect(member(described, "name", "a program"), str, "a name")
            text = expect(member(described, "text", "a program"), str, "a program's text")
            try:
                numbers = _C.program_numbers(text, 0, 0)  # checks the program for any device
            except ValueError as error:
                raise Refused(str(error)) from None
            kinds = [TENSOR if number < 0 else kind_of_number(number) for number in numbers]
            read = self.graph_of(member(described, "operators", "a program"), kinds)
            for kind in read.results:
                expect_kind(kind, TENSOR, "a program's result")
            target: FileProgram | Subgraph = Subgraph(read.compiled, None)
            if self.generator >= 0:
                program = Program(text, label, self.generator, self.surroundings.device)
                target = FileProgram(None, read.compiled.module.graph, text, program, label=label)
            self.programs.append(ReadProgram(label, kinds, len(read.results), target))

    def graph_of(self, given: Any, inputs: Sequence[str]) -> Read:
        """inputs: the kinds of the graph's inputs. Raises Refused."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise Refused("expected no deeper graphs within graphs")
        scope = Scope()
        for k, kind in enumerate(inputs):
            scope.add(scope.graph.placeholder(f"input_{k}"), kind)
        for step in expect(member(given, "steps", "a graph"), list, "steps"):
            self.step(step, scope)
        outputs = expect(member(given, "outputs", "a graph"), list, "outputs")
        indices = [None if output is None else scope.value(output) for output in outputs]
        scope.graph.output(tuple(None if index is None else scope.values[index] for index in indices))
        self.depth -= 1
        kinds = [OTHER if index is None else scope.kinds[index] for index in indices]
        return Read(Compiled(GraphModule({}, scope.graph)), kinds)

    def step(self, given: Any, scope: Scope) -> None:
        found = next((name for name in STEPS if name in expect(given, dict, "a step")), None)
        if found is None:
            raise Refused(
                "expected a step to be an operator, a program, an item, a constant, a number, a concatenation, a loop "
                "or a graph"
            )
        getattr(self, f"read_{found}")(given, scope)

    def read_operator(self, given: Any, scope: Scope) -> None:
        operator = operators.operator_of(expect(given["operator"], str, "an operator"), self.surroundings)
        arguments = operators.Arguments(operator, scope.values, scope.kinds, self.surroundings)
        named = arguments.of(member(given, "arguments", "an operator"))
        copies = operator._schema.name == "aten::copy_"
        for index in arguments.read[1 if copies else 0 :]:
            scope.read(index)
        if copies:
            scope.unwritten.discard(arguments.read[0])
        results = operators.results_of(operator)
        expect_results(given, len(results))
        guard = guard_of(operator)
        if guard is None:
            first = itertools.takewhile(lambda each: each.name in named, operator._schema.arguments)
            args = tuple(named.pop(each.name) for each in list(first) if not each.kwarg_only)  # faster without names
            node = scope.call(operator, args, named)
        else:
            node = scope.call(Guarded(operator, guard), (), named)
        if len(results) == 1:
            scope.add(node, results[0])
            return
        for k, kind in enumerate(results):
            scope.add(scope.call(Item(k), (node,)), kind)

    def read_program(self, given: Any, scope: Scope) -> None:
        program = self.programs[index_of(given["program"], "a program", len(self.programs))]
        inputs = scope.inputs(given)
        if len(inputs) != len(program.inputs):
            raise Refused(
                f"expected {shown(program.label)} to be given {len(program.inputs)} inputs, but got {len(inputs)}"
            )
        for index, kind in zip(inputs, program.inputs, strict=True):
            expect_kind(scope.kinds[index], kind, "a program's input")
        expect_results(given, program.outputs)
        first = len(scope.values)
        updates = self.updates_of(given.get("updates", []), program.outputs, scope)
        if isinstance(program.target, FileProgram) and program.outputs == 1:
            scope.add(scope.call(program.target, scope.nodes(inputs)), TENSOR)
        else:
            scope.call_for([TENSOR] * program.outputs, program.target, scope.nodes(inputs))
        for output, value in updates:
            scope.call(torch.ops.aten.copy_.default, (scope.values[value], scope.values[first + output]))

    def updates_of(self, given: Any, outputs: int, scope: Scope) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for update in expect(given, list, "updates"):
            if len(expect(update, list, "an update")) != 2:
                raise Refused("expected an update to be an output and a value")
            output = index_of(update[0], "an update's output", outputs)
            value = index_of(update[1], "a value", len(scope.values))
            expect_kind(scope.kinds[value], TENSOR, "an updated value")
            if output in found:
                raise Refused("expected a program's output to update one value")
            found[output] = value
            scope.unwritten.discard(value)
        return list(found.items())

    def read_item(self, given: Any, scope: Scope) -> None:
        parts = expect(given["item"], list, "an item")
        if len(parts) != 2:
            raise Refused("expected an item to be a list and an index")
        index = scope.value(parts[0])
        expect_kind(scope.kinds[index], TENSORS, "a list")
        item = Item(index_of(parts[1], "an item's index", MOST))
        scope.add(scope.call(item, scope.nodes([index])), TENSOR)

    def read_constant(self, given: Any, scope: Scope) -> None:
        name = expect(given["constant"], str, "a constant")
        if name not in self.tensors:
            raise Refused(f"expected a tensor of the file, but got {shown(name)}")
        scope.add(scope.call(Constant(self.tensors[name])), TENSOR)

    def read_number(self, given: Any, scope: Scope) -> None:
        operation = expect(given["number"], str, "an operation")
        operands, kinds = [], []
        for operand in expect(member(given, "operands", "a number"), list, "operands"):
            if isinstance(operand, dict) and "value" in operand:
                index = scope.value(operand["value"])
                operands.append(scope.values[index])
                kinds.append(scope.kinds[index])
            else:
                operands.append(constant_of(operand))
                kinds.append({int: INTEGER, float: FLOAT, bool: BOOLEAN}.get(type(operands[-1]), OTHER))
            expect_kind(kinds[-1], NUMBER, "an operand")
        if operation not in ARITHMETIC:
            raise Refused(
                f"expected arithmetic that fourfold knows, but got {shown(operation)}; a newer fourfold may know it"
            )
        _, count, kind = ARITHMETIC[operation]
        if len(operands) != count:
            raise Refused(f"expected {shown(operation)} to have {count} operands, but got {len(operands)}")
        if kind is None:  # that of the operands
            kind = INTEGER if set(kinds) == {INTEGER} else FLOAT if FLOAT in kinds else NUMBER
        scope.add(scope.call(Number(operation), tuple(operands)), kind)

    def read_concatenation(self, given: Any, scope: Scope) -> None:
        own, what = given["concatenation"], "a concatenation"
        sizes, strides, lengths = (
            [index_of(each, f"a {name[:-1]}", 2**63 - 1) for each in expect(member(own, name, what), list, name)]
            for name in ("sizes", "strides", "lengths")
        )
        dtype = dtype_of(member(own, "dtype", what))
        if len(sizes) != len(strides):
            raise Refused("expected a concatenation to have a stride for each size")
        if not is_dense(sizes, strides):
            raise Refused("expected a concatenation without gaps and overlaps")
        dim = index_of(member(own, "dimension", what), "a dimension", len(sizes))
        if sum(lengths) != sizes[dim]:
            raise Refused(
                f"expected the parts of a concatenation to have {sizes[dim]} elements together, but got {sum(lengths)}"
            )
        target = Concatenation(sizes, strides, dtype, self.surroundings.device, dim, lengths)
        first = len(scope.values)
        scope.call_for([TENSOR] * (1 + len(lengths)), target)
        scope.parts[first] = range(first + 1, len(scope.values))
        scope.unwritten.update(scope.parts[first])

    def read_loop(self, given: Any, scope: Scope) -> None:
        own, inputs = given["loop"], scope.inputs(given)
        reverse = expect(member(own, "reverse", "a loop"), bool, "reverse")
        trails = [expect(each, bool, "a trail") for each in expect(member(own, "trails", "a loop"), list, "trails")]
        feeds = expect(member(own, "feeds", "a loop"), list, "feeds")
        feeds = [index_of(each, "a feed", len(trails)) for each in feeds]
        series = index_of(member(own, "series", "a loop"), "series", MOST)
        if len(inputs) < 1 + len(feeds) + series:
            raise Refused("expected a loop to be given its states and series")
        kinds = [scope.kinds[index] for index in inputs]
        expect_kind(kinds[0], INTEGER, "the number of steps")
        for kind in kinds[1 : 1 + len(feeds) + series]:
            expect_kind(kind, TENSOR, "a state or series")
        if any(is_trail and k not in feeds for k, is_trail in enumerate(trails)):
            raise Refused("expected a state whose values are all kept to be read")
        body = self.graph_of(member(own, "body", "a loop"), kinds[1:])
        if len(body.results) < len(trails):
            raise Refused("expected a loop's body to return its states")
        for kind in body.results:
            expect_kind(kind, TENSOR, "a result of a loop's body")
        scope.call_for(body.results, Loop(body.compiled, None, feeds, trails, series, reverse), scope.nodes(inputs))

    def read_graph(self, given: Any, scope: Scope) -> None:
        inputs = scope.inputs(given)
        read = self.graph_of(given["graph"], [scope.kinds[index] for index in inputs])
        scope.call_for(read.results, Subgraph(read.compiled, None), scope.nodes(inputs))


def kind_of_number(number: int) -> str:
    (name,) = (name for name, _, _, own, _ in _C.dtypes() if own == number)
    dtype = getattr(torch, name)
    return FLOAT if dtype.is_floating_point else BOOLEAN if dtype == torch.bool else INTEGER


def expect_kind(given: str, expected: str, what: str) -> None:
    if given not in NUMBERS if expected in NUMBERS else given != expected:
        raise Refused(f"expected {what} to be {expected}, but got {given}")


def expect_results(step: Mapping[str, Any], results: int) -> None:
    expected = expect(step.get("results", 1), int, "results")
    if expected != results:
        raise Refused(
            f"expected a step to have {expected} results, but it has {results} here; use the torch that the file was "
            "saved with"
        )


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides are without overlaps and gaps."""
    order = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1)
    if 0 in sizes:
        return True
    wholes = itertools.accumulate((size for _, size in order), lambda a, b: a * b, initial=1)
    return all(stride == whole for (stride, _), whole in zip(order, wholes, strict=False))
