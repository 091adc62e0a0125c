"""A loop over steps within the loop over rows: all vectors of a row's states stay in registers, and a step may have
reductions of the row."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fourfold.compiler.ir.dtypes import BOOLEAN, INT64
from fourfold.compiler.ir.folding import REDUCTIONS
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import CHAINS, Builder, chain_of
from fourfold.compiler.nest.cpu.short_rows import ShortRows
from fourfold.compiler.nest.ir.layout import BROADCAST, LONGEST_REDUCED_ROW, UNIT, Layout
from fourfold.compiler.nest.ir.loops import Constant, Operand, Ref, Store
from fourfold.compiler.nest.ir.schedule import ELEMENT, NUMBER, NotCompiled, Schedule, Slot, identity, total_type
from fourfold.compiler.nest.ir.steps import IN_REGISTERS, LoopOverSteps, moving

COPIES = 4  # vectors at a time without reductions: each waits for its own state of the step before
MOST_OPERATIONS = 3000  # of all columns together, for rows side by side


def check_rows(schedule: Schedule, layout: Layout) -> None:
    """Raises NotCompiled."""
    if layout.axes - layout.rows != 1:
        raise NotCompiled("rows of several axes in a step with reductions or numbers")
    if layout.columns > LONGEST_REDUCED_ROW and has_reductions(schedule):
        raise NotCompiled(f"rows of more than {LONGEST_REDUCED_ROW} columns in a step with reductions")
    if layout.transposed is not None and not are_rows_adjacent(schedule, layout):
        raise NotCompiled("tensors with transposed layouts within a step")
    for slot, feed in zip(schedule.inputs, layout.steps.feeds, strict=True):
        if feed is None:
            continue
        if slot.level == NUMBER:
            raise NotCompiled("a state of one number beside larger ones needs their shape")
        new = schedule.outputs[feed]
        if not slot.kind == new.kind in IN_REGISTERS or slot.level != new.level:
            raise NotCompiled(f"a state of {slot.kind}, or one whose new value has another shape")
    if any(slot.level == NUMBER or slot.is_column_sum or slot.interleaved != (0, 1) for slot in schedule.outputs):
        raise NotCompiled("a result of a step that has no element for each row")


def has_reductions(schedule: Schedule) -> bool:
    return any(value.op in REDUCTIONS for value in schedule.values)


def are_rows_adjacent(schedule: Schedule, layout: Layout) -> bool:
    """Whether a vector can hold one column of many rows of each tensor."""
    if layout.transposed != layout.rows - 1 or len(schedule.values) * layout.columns > MOST_OPERATIONS:
        return False
    of_elements = (slot for slot in (*schedule.inputs, *schedule.outputs) if slot.level == ELEMENT)
    return all(layout.strides[slot.index][layout.transposed] in (UNIT, BROADCAST) for slot in of_elements)


def are_numbers(schedule: Schedule) -> bool:
    """Whether a step has no tensors of more than one element."""
    return all(slot.level == NUMBER and slot.interleaved == (0, 1) for slot in (*schedule.inputs, *schedule.outputs))


class StepsOfNumbers(LoopOverSteps):
    """Steps of numbers alone, such as one channel's filter."""

    def computed(self, value: Value, known: dict[Value, list[Operand]], pointers: dict[int, Ref]) -> list[Operand]:
        if value.is_constant:
            return [Constant(value.attribute, value.type)]
        if value.op == "input":
            return self.loaded(value, pointers)
        operands = [known[operand][0] for operand in value.operands]
        return [self.writer.let(value.op, value.type, *operands, name=self.schedule.name(value))]

    def loaded(self, value: Value, pointers: dict[int, Ref]) -> list[Operand]:
        slot, zero = self.schedule.inputs[value.attribute], Constant(0, INT64)
        place = pointers[slot.index], zero
        return [self.writer.let("load", value.type, *place, attribute=slot.kind, name=self.schedule.name(value))]

    def store(self, slot: Slot, values: list[Operand], pointers: dict[int, Ref]) -> None:
        self.writer.body.append(Store(values[0], pointers[slot.index], Constant(0, INT64), slot.kind))


def write_row(builder: Builder, pointers: dict[int, Ref]) -> None:
    """All steps of a row; without reductions, of a few vectors at a time."""
    columns, writer = builder.layout.columns, builder.writer
    most = columns if has_reductions(builder.schedule) else COPIES * builder.lanes
    whole = columns // most * most

    def write(start: Operand, count: int) -> None:
        StepsOfRow(builder, builder.advanced(pointers, builder.axes[-1], start), count).write()

    if whole > most:
        with writer.loop(0, Constant(whole, INT64), most, name="column") as start:
            write(start, most)
    elif whole:
        write(Constant(0, INT64), most)
    if columns > whole:
        write(Constant(whole, INT64), columns - whole)


class StepsOfRow(LoopOverSteps):
    """Steps of columns of one row: a value is one number, or the columns' vectors, of which the last may have lanes
    without a column."""

    def __init__(self, builder: Builder, pointers: dict[int, Ref], columns: int):
        super().__init__(builder, pointers)
        self.columns = columns
        self.starts = range(0, columns, self.lanes)
        rest = Constant(columns % self.lanes, INT64)
        self.mask = self.writer.let("mask", BOOLEAN, rest, lanes=self.lanes, name="mask") if rest.value else None

    def computed(self, value: Value, known: dict[Value, list[Operand]], pointers: dict[int, Ref]) -> list[Operand]:
        builder, level = self.builder, self.schedule.level[value]
        if level == NUMBER and value not in self.moving:
            return [builder.scalar(value)]
        if value.op == "input":
            return self.loaded(value, pointers)
        if value.op in REDUCTIONS:
            return [self.reduced(value, known[value.operands[0]])]
        if level < ELEMENT:
            return [self.let(value, [known[operand][0] for operand in value.operands], 0)]
        operands = [self.vectors(operand, known[operand]) for operand in value.operands]
        return [self.let(value, [each[k] for each in operands], self.lanes) for k in range(len(self.starts))]

    def let(self, value: Value, operands: list[Operand], lanes: int) -> Ref:
        return self.writer.let(value.op, value.type, *operands, lanes=lanes, name=self.schedule.name(value))

    def vectors(self, value: Value, own: list[Operand]) -> list[Operand]:
        return own if self.schedule.level[value] == ELEMENT else [self.builder.splat(own[0], value)] * len(self.starts)

    def loaded(self, value: Value, pointers: dict[int, Ref]) -> list[Operand]:
        slot, name = self.schedule.inputs[value.attribute], self.schedule.name(value)

        def load(op: str, *place: Operand, lanes: int) -> Ref:
            return self.writer.let(op, value.type, *place, lanes=lanes, attribute=slot.kind, name=name)

        pointer = pointers[slot.index]
        if slot.level < ELEMENT:
            return [load("load", pointer, Constant(0, INT64), lanes=0)]
        if self.stride(slot) == BROADCAST:
            return [self.builder.splat(load("load", pointer, Constant(0, INT64), lanes=0), value)] * len(self.starts)
        found: list[Operand] = []
        for start in self.starts:
            place: list[Operand] = [pointer, Constant(start, INT64), *self.masks(start)]
            if self.stride(slot) == UNIT:
                found.append(load("load", *place, lanes=self.lanes))
            else:
                found.append(load("load_strided", *place, self.step(slot), lanes=self.lanes))
        return found

    def stride(self, slot: Slot) -> str:
        return self.layout.stride(slot.index, self.builder.axes[-1])

    def step(self, slot: Slot) -> Operand:
        return self.builder.strides[slot.index, self.builder.axes[-1]]

    def masks(self, start: int) -> tuple[Ref, ...]:
        """The mask of the vector that has lanes without a column."""
        return (self.mask,) if self.mask is not None and start == self.starts[-1] else ()

    def reduced(self, value: Value, vectors: list[Operand]) -> Ref:
        """Adds up in the interpreter's order: see stages.py."""
        op, kind, type = value.op, value.operands[0].type, total_type(value.op, value.type)
        combined: Callable[..., Operand] = functools.partial(self.builder.combined, op)
        first = Constant(identity(op, kind), kind, self.lanes)
        if self.mask is not None:
            last = self.writer.let("where", kind, self.mask, vectors[-1], first, lanes=self.lanes)
            vectors = [*vectors[:-1], last]
        if op == "sum_float64":
            lanes = self.builder.wide_sum(vectors, self.columns // (CHAINS * self.lanes))
            return self.builder.of_quarters(self.writer.let("fold", type, lanes, attribute="sum"))
        chains: list[Operand] = [first] * CHAINS
        for start, vector in zip(self.starts, vectors, strict=True):
            chain = chain_of(start, self.columns, self.lanes)
            chains[chain] = combined(chains[chain], vector)
        lanes = combined(combined(*chains[:2]), combined(*chains[2:]))
        part = self.writer.let("fold", type, lanes, attribute=op)
        return self.builder.in_type(value, combined(Constant(identity(op, type), type), part))

    def store(self, slot: Slot, values: list[Operand], pointers: dict[int, Ref]) -> None:
        pointer, zero = pointers[slot.index], Constant(0, INT64)
        if slot.level < ELEMENT:
            self.writer.body.append(Store(values[0], pointer, zero, slot.kind))
            return
        for start, vector in zip(self.starts, self.vectors(slot.value, values), strict=True):
            mask = next(iter(self.masks(start)), None)
            stride = None if self.stride(slot) == UNIT else self.step(slot)
            self.writer.body.append(Store(vector, pointer, Constant(start, INT64), slot.kind, mask, stride))


class StepsSideBySide(ShortRows):
    """Steps of rows that are adjacent in memory: a vector holds one column of many rows, and a value is a list of one
    vector for each column."""

    def run_vector(self, k: Operand, mask: Ref | None) -> None:
        of_first_step = self.pointers
        VectorOfRows(self, of_first_step, k, mask).write()
        self.pointers = of_first_step

    def is_fixed(self, value: Value) -> bool:
        return value not in self.moving and super().is_fixed(value)

    def find_fixed(self) -> None:
        self.moving = moving(self.schedule, self.layout.steps)
        super().find_fixed()


class VectorOfRows(LoopOverSteps):
    """One vector of rows."""

    def __init__(self, builder: StepsSideBySide, pointers: dict[int, Ref], k: Operand, mask: Ref | None):
        super().__init__(builder, pointers)
        self.k, self.mask = k, mask
        self.made: dict[tuple, Ref] = {}

    def computed(self, value: Value, known: dict[Value, list[Operand]], pointers: dict[int, Ref]) -> list[Operand]:
        builder = self.builder
        if value in builder.fixed:
            return builder.fixed[value]
        if value.op == "input":
            return self.loaded(value, pointers)
        return builder.computed(value, known, self.made)

    def loaded(self, value: Value, pointers: dict[int, Ref]) -> list[Operand]:
        self.builder.pointers = pointers
        if self.builder.classes(value)[0] == BROADCAST:
            return self.builder.columns_of_input(value)
        return self.builder.loaded(value, self.k, self.mask)

    def store(self, slot: Slot, values: list[Operand], pointers: dict[int, Ref]) -> None:
        self.builder.pointers = pointers
        self.builder.store(slot, values, self.k, self.mask)
