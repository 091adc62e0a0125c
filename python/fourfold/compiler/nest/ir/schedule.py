"""The stages of a program. A stage passes once over a row's columns; a reduction's result is available after its stage.
Values that a later stage reads are kept for the row, or recomputed if that is cheap."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fourfold import _C
from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64
from fourfold.compiler.ir.folding import REDUCTIONS
from fourfold.compiler.ir.values import Output, Program, Value
from fourfold.compiler.nest.ir.online import OnlineSum, find_online_sum

COMBINED = {  # the operation that combines two parts of a reduction
    "sum": "add",
    "prod": "mul",
    "amax": "maximum",
    "amin": "minimum",
    "all": "bitwise_and",
    "any": "bitwise_or",
    "sum_float64": "add",
}
COSTS = {name: cost for name, _, _, cost in _C.operations()}
CHEAP = 6  # values of at most this cost, in additions, are recomputed instead of kept
LOAD = 1


class NotCompiled(Exception):
    """No nest is built for a program and layout; the interpreter runs it. The message gives the reason."""


NUMBER, ROW, ELEMENT = range(3)  # a value's level: one for the call, one for each row, one for each element


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor, or a part of one, as a nest accesses it. index: its place among the inputs and then the outputs."""

    index: int
    kind: str
    level: int
    value: Value | None = None  # of outputs
    is_column_sum: bool = False
    name: str = "x"
    interleaved: tuple[int, int] = (0, 1)  # (k, n): it is the k-th of n outputs that are interleaved in memory


class Schedule:
    def __init__(self, program: Program, keeps: bool = True, has_online_sums: bool = False):
        """keeps: whether there is memory for the row's values, which are recomputed otherwise. has_online_sums:
        whether a stage computes the sums of online.py too, instead of one stage for each."""
        self.program = program
        self.values = program.values()
        self.level: dict[Value, int] = {}
        self.stage: dict[Value, int] = {}
        self.online: dict[Value, OnlineSum] = {}
        for value in self.values:
            operands = value.operands
            is_reduction = value.op in REDUCTIONS
            self.level[value] = ROW if is_reduction else max((self.level[v] for v in operands), default=self.of(value))
            self.stage[value] = max((self.stage[v] for v in operands), default=0) + is_reduction
            online = find_online_sum(value) if has_online_sums else None
            if online is not None and online.first not in self.online:
                self.online[value], self.stage[value] = online, self.stage[online.first]
        self.inputs = [
            Slot(k, value.type if given.kind == "number" else given.kind, self.level[value], name=f"{given.name}_data")
            for k, given in enumerate(program.inputs)
            for value in self.values
            if value.op in ("input", "number") and value.attribute == k
        ]
        self.outputs: list[Slot] = []
        for output in program.outputs:
            parts = len(output.values) if is_interleaved(output) else 1
            for part, value in enumerate(output.values):
                index = len(self.inputs) + len(self.outputs)
                level, name = self.of_output(output), f"{self.name(value)}_out"
                turn = (part % parts, parts)
                self.outputs.append(Slot(index, output.kind, level, value, output.column_sum, name, turn))
        self.stages = 1 + max(self.stage[output.value] for output in self.outputs)
        self.kept = self.find_kept() if keeps else {}

    def of(self, value: Value) -> int:
        """The level of a value without operands."""
        return self.along(self.program.inputs[value.attribute].dims) if value.op == "input" else NUMBER

    def name(self, value: Value) -> str:
        return self.program.names.get(value, "v")

    def along(self, dims: Sequence[Sequence[int]]) -> int:
        outer = self.program.outer or 0
        return max((ELEMENT if axis >= outer else ROW for dim in dims for axis in dim), default=NUMBER)

    def of_output(self, output: Output) -> int:
        level = self.along(output.dims)
        return ROW if level == NUMBER and self.program.outer == 0 else level

    def find_kept(self) -> dict[Value, int]:
        """The kept values, each with its offset in the row's memory, in bytes per column."""
        kept: dict[Value, int] = {}
        for value in self.values:
            stage = self.stage[value] - (value.op in REDUCTIONS)
            for v in value.operands:
                if v not in kept and self.is_before(v, stage) and self.cost_again(v, stage, kept) > CHEAP:
                    kept[v] = 0
        # The widest first, so that each is aligned.
        offset = 0
        for v in sorted(kept, key=lambda v: -SIZES[v.type]):
            kept[v] = offset
            offset += SIZES[v.type]
        return kept

    def is_before(self, value: Value, stage: int) -> bool:
        return self.level[value] == ELEMENT and self.stage[value] < stage and value.op != "input"

    def cost_again(self, value: Value, stage: int, kept: dict[Value, int]) -> int:
        """The cost of recomputing in a stage a value of an earlier stage."""
        if self.level[value] < ELEMENT or self.stage[value] == stage or value in kept:
            return 0
        if value.op == "input":
            return LOAD
        cost = COSTS[value.op]
        for operand in value.operands:
            if cost > CHEAP:
                break
            cost += self.cost_again(operand, stage, kept)
        return cost

    @functools.cached_property
    def bytes_of_column(self) -> int:
        """A multiple of eight, so that what follows is aligned."""
        return -(-sum(SIZES[value.type] for value in self.kept) // 8) * 8

    def sums(self, stage: int) -> list[Value]:
        """The reductions of values that a stage computes, without online sums."""
        return [value for value in self.reductions(stage) if value not in self.online]

    def online_sums(self, stage: int) -> list[OnlineSum]:
        return [self.online[value] for value in self.reductions(stage) if value in self.online]

    def reductions(self, stage: int) -> list[Value]:
        return [value for value in self.values if value.op in REDUCTIONS and self.stage[value] == stage + 1]

    def stores(self, stage: int) -> list[Slot]:
        """The outputs that a stage writes for each element, or adds to."""
        return [
            slot
            for slot in self.outputs
            if self.stage[slot.value] == stage and (slot.level == ELEMENT or slot.is_column_sum)
        ]

    def keeps(self, stage: int) -> list[Value]:
        return [value for value in self.kept if self.stage[value] == stage]

    def elements(self, stage: int) -> list[Value]:
        """The values of elements that a stage loads or computes, each after its operands."""
        roots = [slot.value for slot in self.stores(stage)] + self.keeps(stage)
        roots += [value.operands[0] for value in self.sums(stage)]
        found: set[Value] = set()
        stack = [value for value in roots if self.level[value] == ELEMENT]
        while stack:
            value = stack.pop()
            if value in found:
                continue
            found.add(value)
            if not self.is_loaded(value, stage):
                stack += [operand for operand in value.operands if self.level[operand] == ELEMENT]
        return [value for value in self.values if value in found]

    def is_loaded(self, value: Value, stage: int) -> bool:
        return value.op == "input" or (value in self.kept and self.stage[value] < stage)

    def scalars(self, level: int, stage: int | None = None) -> list[Value]:
        """The values of a level, and of a stage, that are not constants."""
        return [
            v
            for v in self.values
            if self.level[v] == level and v.op != "constant" and (stage is None or self.stage[v] == stage)
        ]


SIZES = {kind: size for _, kind, _, _, size in _C.dtypes()}


def is_interleaved(output: Output) -> bool:
    """Whether its parts are interleaved: one element each along the innermost dimension in memory."""
    return output.join >= 0 and output.dims[output.join] == () and output.order[-1] == output.join


def total_type(op: str, type: str) -> str:
    """The type that a reduction's totals have: sums and products of float32 are added up in float64."""
    return FLOAT64 if type == FLOAT32 and op in ("sum", "prod") else type


def identity(op: str, type: str) -> bool | int | float:
    if op in ("sum", "prod", "all", "any", "sum_float64"):
        one = op in ("prod", "all")
        return one if type == BOOLEAN else int(one) if type not in (FLOAT32, FLOAT64) else float(one)
    if type in (FLOAT32, FLOAT64):
        return float("-inf") if op == "amax" else float("inf")
    most = (1 << (31 if type == "int32" else 63)) - 1
    return -most - 1 if op == "amax" else most


def cost(values: Iterable[Value]) -> int:
    return max((COSTS.get(value.op, 0) for value in values), default=0)
