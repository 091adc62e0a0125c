"""The steps of a plan in JSON, for a file; cpp/model/reader.cpp reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import GraphModule

from fourfold.compiler.nodes.fused import Fused
from fourfold.compiler.passes.plan import NeedsPython, Plan, Step, Writer
from fourfold.saving.tensors import Stored


class Unsaved(Exception):
    """A step that a file can't hold; the message gives the reason."""


def constant(value: object) -> object:
    """A constant in the form that cpp/model/operators.cpp reads. Raises Unsaved."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise Unsaved(f"the integer {value}, which has more than 64 bits")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (list, tuple)):
        return [constant(each) for each in value]
    if isinstance(value, torch.device):
        return {"device": value.type}
    for kind, name in (
        (torch.dtype, "dtype"),
        (torch.layout, "layout"),
        (torch.memory_format, "memory_format"),
    ):
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, complex):
        raise Unsaved(f"the complex number {value}; build the result from real tensors with torch.complex")
    raise Unsaved(f"the argument {value!r} of type {type(value).__name__}")


def counted(step: dict[str, object], results: int) -> dict[str, object]:
    """Adds the number of a step's results, unless it is one."""
    return step if results == 1 else step | {"results": results}


class Encoder:
    """Encodes the plans of one file. programs: those of all its graphs; steps that compute the same share one."""

    def __init__(self, stored: Stored):
        self.stored = stored
        self.programs: list[dict[str, object]] = []
        self.namespaces: set[str] = set()  # of the operators that are called

    def graph(self, plan: Plan) -> dict[str, object]:
        steps = [self.step(plan, k, step) for k, step in enumerate(plan.steps)]
        return {"steps": steps, "outputs": [None if index < 0 else index for index in plan.outputs]}

    def step(self, plan: Plan, k: int, step: Step) -> dict[str, object]:
        what, first, second, _ = step
        if what == "operator":
            return self.operator(first, second)
        if what == "program":
            made = counted({"program": self.program(plan.fused[k]), "inputs": second}, len(plan.fused[k].outputs))
            updates = [[output, value] for output, value, _ in first[2]]
            return made | {"updates": updates} if updates else made
        if what == "item":
            return {"item": [first, second]}
        if what == "constant":
            return {"constant": self.stored.add("constant", first)}
        if what == "number":
            operands = [{"value": each} if kind == "value" else constant(each) for kind, each in second]
            return {"number": first, "operands": operands}
        if what == "concatenation":
            return self.concatenation(first, second)
        if what == "loop":
            return self.loop(first, second)
        return {"graph": self.compiled(first[0].compiled), "inputs": second}

    def operator(self, target: tuple[str, str], given: Sequence[tuple[str, object]]) -> dict[str, object]:
        name, overload = target
        self.namespaces.add(name.partition("::")[0])
        schema = torch._C._get_schema(name, overload)
        arguments = {
            argument.name: self.argument(*each)
            for argument, each in zip(schema.arguments, given, strict=True)
            if each[0] != "default"
        }
        step = {"operator": f"{name}.{overload}" if overload else name, "arguments": arguments}
        return counted(step, len(schema.returns))

    def argument(self, what: str, value: object) -> object:
        if what in ("value", "wrapped"):
            return {"value": value}
        if what == "list":
            return [self.argument(*part) for part in value]
        return constant(value)

    def program(self, fused: Fused) -> int:
        made = {"name": fused.profiled_name, "text": fused.text, "operators": self.operators_of(fused)}
        if made not in self.programs:
            self.programs.append(made)
        return self.programs.index(made)

    def operators_of(self, fused: Fused) -> dict[str, object]:
        """The fallback where the program can't run: on devices without programs, for other layouts."""
        try:
            return self.graph(Writer(fused.inputs, in_file=True).write(GraphModule({}, fused.graph)))
        except NeedsPython as reason:
            raise Unsaved(str(reason)) from None

    def concatenation(
        self, memory: tuple[list[int], list[int], torch.dtype, torch.device], parts: tuple[int, list[int]]
    ) -> dict[str, object]:
        sizes, strides, dtype, _ = memory  # on the device that the file is loaded to
        dimension, lengths = parts
        names = {"sizes": sizes, "strides": strides, "dtype": str(dtype).removeprefix("torch.")}
        return {"concatenation": names | {"dimension": dimension, "lengths": lengths}}

    def loop(self, parts: tuple[object, ...], inputs: list[int]) -> dict[str, object]:
        loop, _, feeds, trails, series, reverse = parts
        described = {"body": self.compiled(loop.body), "feeds": feeds, "trails": trails}
        return {"loop": described | {"series": series, "reverse": reverse}, "inputs": inputs}

    def compiled(self, compiled: object) -> dict[str, object]:
        if compiled.plan is None:
            raise Unsaved(compiled.module.meta["needs Python"])
        return self.module(compiled.module)

    def module(self, module: GraphModule) -> dict[str, object]:
        inputs = module.graph.find_nodes(op="placeholder")
        return self.graph(Writer(inputs, in_file=True).write(module))
