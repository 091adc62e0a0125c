"""A graph as steps that need no Python: programs and torch's operators, each with the places of what it reads.

The graph's inputs have the first places, then comes what the steps give, in their order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from fourfold.compiler.building import Built, memory_order
from fourfold.compiler.calling import Program

Called = tuple[Program, Callable[..., object]]
Step = tuple[str, object, object, list[int]]  # as cpp/bindings/graph.cpp takes them


class NeedsPython(Exception):
    """A step that is none of these."""


@dataclass
class Straight:
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # their places, -1 for None
    read_by_torch: set[int] = field(default_factory=set)  # the places that its operators read


def straight(
    inputs: Sequence[Node], units: Sequence[Built | Node], program_of: Callable[[Built], Called], results: object
) -> Straight | None:
    """None where Python has to run it. units: in their order, without the graph's inputs and output. program_of: a
    program, and what does its work where it fails."""
    try:
        return Writer(inputs).write(units, program_of, results)
    except NeedsPython:
        return None


def layouts(inputs: Sequence[Node], steps: Straight | None) -> list[tuple[int, list[int]]]:
    """The places of those gradients that are given to torch's operators, which rely on how they were traced to lie in
    memory; and their dimensions, from the outermost in. Programs take a gradient as it comes."""
    found = []
    for place, node in enumerate(inputs):
        fake = node.meta.get("val")
        is_read = steps is None or place in steps.read_by_torch
        if "tangents" in str(node.target) and isinstance(fake, torch.Tensor) and is_read:
            found.append((place, memory_order(fake)))
    return found


class Writer:
    def __init__(self, inputs: Sequence[Node]):
        self.places = {node: place for place, node in enumerate(inputs)}
        self.count = len(inputs)
        self.straight = Straight()
        self.last: dict[int, int] = {}  # of each place, the step that reads it last

    def write(self, units: Sequence[Built | Node], program_of: Callable[[Built], Called], results: object) -> Straight:
        for unit in units:
            if isinstance(unit, Built):
                self.add("program", program_of(unit), [self.read(node) for node in unit.inputs])
                for node in unit.outputs:
                    self.places[node] = self.made(1)
            elif unit.target is operator.getitem:
                self.item(unit)
            else:
                self.operator(unit)
        if not all(result is None or isinstance(result, Node) for result in results):
            raise NeedsPython
        outputs = self.straight.outputs = [-1 if result is None else self.place_of(result) for result in results]
        for place, step in self.last.items():
            if place not in outputs:
                self.straight.steps[step][3].append(place)
        return self.straight

    def add(self, what: str, first: object, second: object) -> None:
        self.straight.steps.append((what, first, second, []))

    def made(self, count: int) -> int:
        """The place of the first of what a step gives; what nobody reads goes after the step itself."""
        first = self.count
        self.count += count
        self.last.update(dict.fromkeys(range(first, self.count), len(self.straight.steps) - 1))
        return first

    def place_of(self, node: Node) -> int:
        if node not in self.places:
            raise NeedsPython
        return self.places[node]

    def read(self, node: Node) -> int:
        """For the step that is added next."""
        place = self.place_of(node)
        self.last[place] = len(self.straight.steps)
        return place

    def item(self, node: Node) -> None:
        source, item = node.args
        if not isinstance(source.target, torch._ops.OpOverload) or not isinstance(item, int) or item < 0:
            raise NeedsPython
        if len(source.target._schema.returns) > 1:  # each has a place of its own
            self.places[node] = self.place_of(source) + item
            return
        self.add("item", self.read(source), item)
        self.places[node] = self.made(1)

    def operator(self, node: Node) -> None:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NeedsPython
        schema = node.target._schema
        names = [argument.name for argument in schema.arguments]
        given = dict(zip(names[: len(node.args)], node.args, strict=True)) | node.kwargs
        arguments = [
            self.argument(given[argument.name], argument) if argument.name in given else ("default", None)
            for argument in schema.arguments
        ]
        self.add("operator", (schema.name, schema.overload_name), arguments)
        self.places[node] = self.made(len(schema.returns))

    def argument(self, given: object, expected: torch.Argument) -> tuple[str, object]:
        if isinstance(given, Node):
            is_number = not isinstance(given.meta.get("val"), torch.Tensor)
            if is_number and "Tensor" in str(expected.type) and "List" not in str(expected.type):
                raise NeedsPython  # a number that becomes a tensor on its way
            self.straight.read_by_torch.add(self.place_of(given))
            return "value", self.read(given)
        if not nodes_of(given):
            return "constant", given
        if not isinstance(given, (list, tuple)):
            raise NeedsPython
        return "list", [self.argument(part, expected) for part in given]


def nodes_of(argument: object) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(argument, found.append)
    return found
