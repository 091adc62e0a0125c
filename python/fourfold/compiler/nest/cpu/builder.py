"""The common parts of a nest's functions: a call's arguments, addresses, and numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fourfold import _C
from fourfold.compiler.ir.dtypes import FLOAT32, FLOAT64, INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.ir.layout import SHORT_ROWS, SIDE_BY_SIDE, STRIDED, UNIT, Layout
from fourfold.compiler.nest.ir.loops import POINTER, SCRATCH, Constant, Function, Operand, Ref, Store, Writer
from fourfold.compiler.nest.ir.schedule import COMBINED, ELEMENT, NUMBER, ROW, SIZES, Schedule, Slot

ARGUMENTS = {name: index for index, name in enumerate(_C.nest_arguments())}  # of a call; the tensors follow
CHAINS = 4  # accumulators of a reduction, each a vector
REDUCTION_BLOCK, ROWS_TOGETHER, ROWS_OF_SUM, SLACK = (
    _C.nest_limits()[name] for name in ("reduction_block", "rows_together", "rows_of_sum", "slack")
)


def fixed_bytes(schedule: Schedule, layout: Layout, lanes: int) -> int:
    """Bytes of scratch memory besides that of columns and panels. If columns run along several axes, it gathers the
    operands of a block's reductions. For rows side by side it holds the chains, totals and values of each row."""
    most = max(len(schedule.sums(stage)) for stage in range(schedule.stages))
    if layout.split == SIDE_BY_SIDE:
        return SIZES[FLOAT64] * ROWS_TOGETHER * (most * (CHAINS * lanes + 1) + len(schedule.scalars(ROW)))
    is_gathered = layout.axes - layout.rows > 1
    return SIZES[FLOAT64] * (REDUCTION_BLOCK + SLACK) * most * is_gathered


def transposed_slots(schedule: Schedule, layout: Layout) -> list[Slot]:
    """The transposed tensors: contiguous along the layout's transposed axis instead of the innermost one."""
    if layout.transposed is None or layout.split in (SHORT_ROWS, SIDE_BY_SIDE):
        return []
    of_elements = (
        slot for slot in (*schedule.inputs, *schedule.outputs) if slot.level == ELEMENT and not slot.is_column_sum
    )
    strides = layout.strides
    found = [s for s in of_elements if strides[s.index][-1] == STRIDED and strides[s.index][layout.transposed] == UNIT]
    return sorted(found, key=lambda slot: -SIZES[slot.kind])  # the widest first, so that each panel is aligned


def chain_of(column: int, columns: int, lanes: int) -> int:
    """The chain to which a column of a row is added: see Stages.vectors()."""
    return CHAINS - 1 if column >= columns // lanes * lanes else column // lanes % CHAINS


class Builder:
    """Builds one function of a nest."""

    def __init__(self, name: str, schedule: Schedule, layout: Layout, lanes: int):
        self.schedule, self.layout, self.lanes = schedule, layout, lanes
        self.writer = Writer(lanes)
        self.function = Function(name, self.writer.body)
        self.slots: list[Slot] = [*schedule.inputs, *schedule.outputs]
        self.axes = range(layout.axes)
        self.column_axes = self.axes[layout.rows :]
        self.known: dict[Value, Operand] = {}  # numbers, and the current row's values
        self.base = {
            slot.index: self.argument(POINTER, len(ARGUMENTS) + slot.index, slot.kind, name=slot.name)
            for slot in self.slots
        }
        first = len(ARGUMENTS) + len(self.slots)
        self.size = {axis: self.argument(INT64, first + axis, name="size") for axis in self.axes}
        self.first_stride = first + layout.axes
        self.first_step = self.first_stride + layout.axes * len(self.slots)  # of a loop over steps: count, strides
        self.strides: dict[tuple[int, int], Operand] = {}
        self.column_count = self.call_argument("columns")
        self.kept_base: Ref | None = None
        self.transposed_slots = transposed_slots(schedule, layout)
        for slot in self.slots:
            for axis in self.axes:
                self.strides[slot.index, axis] = self.stride(slot, axis)
        for value in schedule.scalars(NUMBER):
            self.compute(value, self.base)

    def argument(self, type: str, index: int, kind: str | None = None, name: str = "n") -> Ref:
        return self.writer.let("argument", type, attribute=(index, kind), name=name)

    def call_argument(self, name: str, type: str = INT64, kind: str | None = None) -> Ref:
        """An argument that isn't a tensor's or an axis' own."""
        return self.argument(type, ARGUMENTS[name], kind, name)

    def stride(self, slot: Slot, axis: int) -> Operand:
        known = self.layout.stride(slot.index, axis)
        if known.isdigit():
            return Constant(int(known), INT64)
        index = self.first_stride + axis * len(self.slots) + slot.index
        return self.argument(INT64, index, name=f"{slot.name}_stride")

    def step_count(self) -> Ref:
        """The number of steps of a loop over steps."""
        return self.argument(INT64, self.first_step, name="steps")

    def at_step(self, pointers: dict[int, Ref], step: Operand) -> dict[int, Ref]:
        """The addresses of a step's tensors, from those of the first."""
        found = dict(pointers)
        for slot in self.slots:
            if self.layout.steps.series[slot.index]:
                stride = self.argument(INT64, self.first_step + 1 + slot.index, name=f"{slot.name}_step")
                offset = self.writer.index("*", step, stride)
                found[slot.index] = self.advance(found[slot.index], slot.kind, offset, slot.name)
        return found

    def advance(self, pointer: Ref, kind: str, offset: Operand, name: str = "p") -> Ref:
        if offset == Constant(0, INT64):
            return pointer
        return self.writer.let("advance", POINTER, pointer, offset, attribute=kind, name=name)

    def advanced(self, pointers: dict[int, Ref], axis: int, index: Operand) -> dict[int, Ref]:
        """The addresses moved along an axis."""
        offset = {slot.index: self.writer.index("*", index, self.strides[slot.index, axis]) for slot in self.slots}
        return {
            slot.index: self.advance(pointers[slot.index], slot.kind, offset[slot.index], slot.name)
            for slot in self.slots
        }

    # Numbers, and values of rows.

    def splat(self, scalar: Operand, value: Value) -> Operand:
        if isinstance(scalar, Constant):
            return Constant(scalar.value, scalar.type, self.lanes)
        return self.writer.let("splat", scalar.type, scalar, lanes=self.lanes, name=self.schedule.name(value))

    def scalar(self, value: Value) -> Operand:
        return Constant(value.attribute, value.type) if value.is_constant else self.known[value]

    def compute(self, value: Value, pointers: dict[int, Ref]) -> None:
        writer = self.writer
        if value.op in ("input", "number"):
            kind = self.schedule.inputs[value.attribute].kind
            zero = Constant(0, INT64)
            self.known[value] = writer.let(
                "load", value.type, pointers[value.attribute], zero, attribute=kind, name=self.schedule.name(value)
            )
        elif value.op == "columns":
            count = self.column_count
            self.known[value] = (
                count
                if value.type == INT64
                else writer.let(f"to_{value.type}", value.type, count, name=self.schedule.name(value))
            )
        else:
            operands = [self.scalar(operand) for operand in value.operands]
            self.known[value] = writer.let(value.op, value.type, *operands, name=self.schedule.name(value))

    def compute_rows(self, stage: int, pointers: dict[int, Ref]) -> None:
        for value in self.schedule.scalars(ROW, stage):
            if value not in self.known:
                self.compute(value, pointers)

    def store_scalar(self, slot: Slot, pointer: Ref) -> None:
        self.writer.body.append(Store(self.scalar(slot.value), pointer, Constant(0, INT64), slot.kind))

    def store_rows(self, pointers: dict[int, Ref]) -> None:
        for slot in self.schedule.outputs:
            if slot.level == ROW:
                self.store_scalar(slot, pointers[slot.index])

    def in_type(self, value: Value, total: Ref) -> Ref:
        if total.type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, name=self.schedule.name(value))

    def combined(self, op: str, a: Operand, b: Operand) -> Ref:
        return self.writer.let(COMBINED[op], b.type, a, b, lanes=b.lanes)

    def sums_of(self, slot: Slot) -> Ref:
        """The address of the column sums to which rows are added: those in float32 lie behind those in float64."""
        if slot.value.type == FLOAT64:
            return self.base[slot.index]
        return self.advance(self.base[slot.index], FLOAT64, self.column_count, f"{slot.name}_part")

    # sum_float64: sums in float64 of four vectors each, which are added in float32. The interpreter has the same order.

    def quarter(self, vector: Operand) -> Ref:
        return self.writer.let("mul", FLOAT32, vector, Constant(0.25, FLOAT32, self.lanes), lanes=self.lanes)

    def four(self, quarters: Sequence[Operand]) -> Ref:
        """Equal numbers add up exactly by pairs, and quarters don't overflow."""
        a, b, c, d = quarters
        return self.combined("sum", self.combined("sum", a, b), self.combined("sum", c, d))

    def wide(self, vector: Operand) -> Ref:
        return self.writer.let("to_float64", FLOAT64, vector, lanes=self.lanes)

    def wide_sum(self, vectors: Sequence[Operand], fours: int) -> Operand:
        """The lanes' sums of quarters. fours: how many whole groups of four begin the vectors."""
        quarters, first = [self.quarter(vector) for vector in vectors], fours * CHAINS
        parts = [self.four(quarters[k : k + CHAINS]) for k in range(0, first, CHAINS)] + quarters[first:]
        return functools.reduce(functools.partial(self.combined, "sum"), map(self.wide, parts))

    def of_quarters(self, total: Operand) -> Ref:
        return self.writer.let("mul", FLOAT64, total, Constant(4.0, FLOAT64, total.lanes), lanes=total.lanes)

    def kept_values(self) -> Ref:
        """The memory of kept values in the thread's scratch memory."""
        return self.advance(
            SCRATCH, "uint8", Constant(fixed_bytes(self.schedule, self.layout, self.lanes), INT64), "kept"
        )
