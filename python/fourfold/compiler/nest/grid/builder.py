"""The common parts of a grid's kernels: a call's arguments, addresses, numbers, and reductions among threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fourfold import _C
from fourfold.compiler.ir.dtypes import BOOLEAN, INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.layout import BROADCAST, UNIT
from fourfold.compiler.nest.ir.loops import INDEX, POINTER, Barrier, Constant, Kernel, Operand, Ref, Store, When, Writer
from fourfold.compiler.nest.ir.schedule import COMBINED, ELEMENT, NUMBER, ROW, Schedule, Slot, identity

# The numbers that a call passes. After them come each axis' size, each axis' stride by tensor, for a loop over steps
# their count and each tensor's stride, and each input that is a number.
ARGUMENTS = {name: index for index, name in enumerate(_C.grid_arguments())}
LIMITS = _C.grid_limits()
LANES_OF_GROUP = LIMITS["neighbours"]  # threads that exchange values without shared memory
BYTES_OF_PART = LIMITS["bytes_of_part"]


@dataclass(frozen=True, slots=True)
class Total:
    """A thread's part of a reduction."""

    op: str
    operand: Operand


@dataclass(slots=True)
class ThreadVector:
    """A thread's vector of elements: each tensor's offset, and whether the vector exists; None if it always does."""

    offsets: dict[int, Operand]
    valid: Ref | None
    known: dict[Value, Operand] = field(default_factory=dict)


class GridBuilder:
    """Builds one kernel."""

    def __init__(self, name: str, schedule: Schedule, layout: GridLayout, threads: int):
        self.schedule, self.layout, self.lanes = schedule, layout, layout.lanes
        self.writer = Writer(layout.lanes, INDEX)
        self.kernel = Kernel(name, self.writer.body, threads)
        self.slots: list[Slot] = [*schedule.inputs, *schedule.outputs]
        self.numbers = [slot.index for slot in schedule.inputs if schedule.program.inputs[slot.index].kind == "number"]
        self.axes = range(layout.axes)
        self.row_axes, self.column_axes = self.axes[: layout.rows], self.axes[layout.rows :]
        self.known: dict[Value, Operand] = {}  # numbers, and the current row's values
        self.base = {slot.index: self.address(slot) for slot in self.slots if slot.index not in self.numbers}
        self.size = {axis: self.argument(len(ARGUMENTS) + axis, "size") for axis in self.axes}
        self.strides = {(slot.index, axis): self.stride(slot, axis) for slot in self.slots for axis in self.axes}
        self.row_count = self.call_argument("rows")
        self.column_count = self.call_argument("columns")
        self.thread = self.writer.let("thread", INDEX, name="thread")
        self.block = self.writer.let("block", INDEX, name="block")
        for value in schedule.scalars(NUMBER):
            self.compute(value, {})

    # The call's arguments.

    def argument(self, index: int, name: str = "n") -> Ref:
        return self.writer.let("argument", INDEX, attribute=(index, None), name=name)

    def call_argument(self, name: str) -> Ref:
        """An argument that isn't a tensor's or an axis' own."""
        return self.argument(ARGUMENTS[name], name)

    def address(self, slot: Slot) -> Ref:
        return self.writer.let("argument", POINTER, attribute=(slot.index, slot.kind), name=slot.name)

    def scratch(self) -> Ref:
        """Memory for results that the call's next kernel reads."""
        return self.writer.let("argument", POINTER, attribute=(len(self.slots), INT64), name="parts")

    def stride(self, slot: Slot, axis: int) -> Operand:
        known = self.layout.stride(slot.index, axis)
        if known in (BROADCAST, UNIT):
            return Constant(int(known), INDEX)
        return self.argument(first_stride(self.layout) + axis * len(self.slots) + slot.index, f"{slot.name}_stride")

    def step_count(self) -> Ref:
        return self.argument(first_step(self.layout), "steps")

    def at_step(self, pointers: dict[int, Ref], step: Operand) -> dict[int, Ref]:
        """The addresses of a step's tensors, from those of the first."""
        found = dict(pointers)
        for slot in self.slots:
            if self.layout.steps.series[slot.index]:
                stride = self.argument(first_step(self.layout) + 1 + slot.index, f"{slot.name}_step")
                offset = self.writer.index("*", step, stride)
                found[slot.index] = self.advance(found[slot.index], slot.kind, offset, slot.name)
        return found

    def advance(self, pointer: Ref, kind: str, offset: Operand, name: str = "p") -> Ref:
        if isinstance(offset, Constant) and offset.value == 0:
            return pointer
        return self.writer.let("advance", POINTER, pointer, offset, attribute=kind, name=name)

    def let(self, op: str, *operands: Operand | int, name: str = "t") -> Ref:
        """A comparison of indices."""
        return self.writer.let(
            op, BOOLEAN, *(Constant(x, INDEX) if isinstance(x, int) else x for x in operands), name=name
        )

    def both(self, *conditions: Ref | None) -> Ref | None:
        found = None
        for condition in filter(None, conditions):
            found = condition if found is None else self.writer.let("both", BOOLEAN, found, condition)
        return found

    # Numbers, and values of rows.

    def scalar(self, value: Value) -> Operand:
        return Constant(value.attribute, value.type) if value.is_constant else self.known[value]

    def compute(self, value: Value, offsets: dict[int, Operand]) -> None:
        writer, name = self.writer, self.schedule.name(value)
        if value.op == "number":
            index = first_number(self.layout) + self.numbers.index(value.attribute)
            self.known[value] = writer.let("number", value.type, attribute=index, name=name)
        elif value.op == "input":
            self.known[value] = self.load(value, offsets.get(value.attribute, Constant(0, INDEX)))
        elif value.op == "columns":
            self.known[value] = writer.let(f"to_{value.type}", value.type, self.column_count, name=name)
        else:
            operands = [self.scalar(operand) for operand in value.operands]
            self.known[value] = writer.let(value.op, value.type, *operands, name=name)

    def compute_rows(self, stage: int, offsets: dict[int, Operand]) -> None:
        for value in self.schedule.scalars(ROW, stage):
            if value not in self.known:
                self.compute(value, offsets)

    def load(self, value: Value, offset: Operand, valid: Ref | None = None) -> Ref:
        slot = self.schedule.inputs[value.attribute]
        place, name = (self.base[slot.index], offset, *filter(None, (valid,))), self.schedule.name(value)
        return self.writer.let("load", value.type, *place, attribute=slot.kind, name=name)

    def store_scalars(self, level: int, offsets: dict[int, Operand]) -> None:
        for slot in self.schedule.outputs:
            if slot.level == level and not slot.is_column_sum:
                offset = offsets.get(slot.index, Constant(0, INDEX))
                self.writer.body.append(Store(self.scalar(slot.value), self.base[slot.index], offset, slot.kind))

    def store_numbers(self) -> None:
        """Stores the outputs of one number, by the call's first thread."""
        if any(slot.level == NUMBER and not slot.is_column_sum for slot in self.schedule.outputs):
            is_first = self.both(self.let("equal", self.thread, 0), self.let("equal", self.block, 0))
            with self.writer.when(is_first):
                self.store_scalars(NUMBER, {})

    # Offsets of elements.

    def offsets_along(self, axes: Sequence[int], index: Operand) -> dict[int, Operand]:
        """The offsets of the element with this index along these axes."""
        writer = self.writer
        found: dict[int, Operand] = {}
        for axis in reversed(axes):
            is_first = axis == axes[0]
            digit = index if is_first else writer.index("%", index, self.size[axis], "digit")
            index = index if is_first else writer.index("/", index, self.size[axis])
            self.add_offsets(found, self.slots, axis, digit)
        return found

    def add_offsets(self, found: dict[int, Operand], slots: Iterable[Slot], axis: int, index: Operand) -> None:
        for slot in slots:
            stride = self.strides[slot.index, axis]
            if stride != Constant(0, INDEX):
                moved = self.writer.index("*", index, stride)
                before = found.get(slot.index, Constant(0, INDEX))
                found[slot.index] = self.writer.index("+", before, moved, f"{slot.name}_at")

    def column_offsets(self, column: Operand, row: dict[int, Operand]) -> dict[int, Operand]:
        """The offsets of the element at this column of a row. row: the offsets of the row's first element."""
        axes, found = self.column_axes, dict(row)
        dense = [slot for slot in self.slots if self.layout.has_dense_columns(slot.index)]
        self.add_offsets(found, dense, axes[-1], column)
        apart = [slot for slot in self.slots if slot not in dense and slot.level == ELEMENT]
        if apart:
            for axis in reversed(axes):
                is_first = axis == axes[0]
                digit = column if is_first else self.writer.index("%", column, self.size[axis], "digit")
                column = column if is_first else self.writer.index("/", column, self.size[axis])
                self.add_offsets(found, apart, axis, digit)
        return found

    # Vectors of elements.

    def splat(self, value: Value) -> Operand:
        scalar = self.scalar(value)
        if isinstance(scalar, Constant):
            return Constant(scalar.value, scalar.type, self.lanes)
        return self.writer.let("splat", scalar.type, scalar, lanes=self.lanes, name=self.schedule.name(value))

    def write(self, values: Sequence[Value], places: Sequence[ThreadVector]) -> None:
        """Computes the values that the places lack, operation by operation for all places, so that all loads come
        first."""
        for value in values:
            for place in places:
                if value not in place.known:
                    place.known[value] = self.vector(value, place)

    def vector(self, value: Value, place: ThreadVector) -> Operand:
        if value.op == "input":
            return self.load_vector(value, place)
        operands = [self.operand(operand, place) for operand in value.operands]
        return self.writer.let(value.op, value.type, *operands, lanes=self.lanes, name=self.schedule.name(value))

    def operand(self, value: Value, place: ThreadVector) -> Operand:
        if self.schedule.level[value] == ELEMENT:
            return place.known[value]
        if value not in place.known:
            place.known[value] = self.splat(value)
        return place.known[value]

    def step_of(self, slot: Slot) -> Operand | None:
        """The distance between a vector's elements; None for aligned, contiguous vectors."""
        if self.layout.is_aligned(slot.index):
            return None
        return self.strides[slot.index, self.axes[-1]]

    def load_vector(self, value: Value, place: ThreadVector) -> Operand:
        slot, writer = self.schedule.inputs[value.attribute], self.writer
        offset, name = place.offsets.get(slot.index, Constant(0, INDEX)), self.schedule.name(value)
        step = self.step_of(slot)
        if step == Constant(0, INDEX):
            one = self.load(value, offset, place.valid)
            return writer.let("splat", value.type, one, lanes=self.lanes, name=name)
        given = [self.base[slot.index], offset, *filter(None, (place.valid,))]
        op = "load" if step is None or self.lanes == 1 else "load_strided"
        given += [step] * (op != "load")
        return writer.let(op, value.type, *given, lanes=self.lanes, attribute=slot.kind, name=name)

    def store_vector(self, slot: Slot, place: ThreadVector) -> None:
        step = None if self.lanes == 1 else self.step_of(slot)
        vector = self.operand(slot.value, place)
        offset = place.offsets.get(slot.index, Constant(0, INDEX))
        self.writer.body.append(Store(vector, self.base[slot.index], offset, slot.kind, place.valid, step))

    # Reductions.

    def combined(self, op: str, a: Operand, b: Operand) -> Ref:
        return self.writer.let(COMBINED[op], b.type, a, b, lanes=b.lanes)

    def zero(self, slot: Slot) -> Constant:
        """A vector of a column sum's first values."""
        return Constant(identity("sum", slot.value.type), slot.value.type, self.lanes)

    def sum_of_chunk(self, slot: Slot, number: int, chunk: Operand, column: Operand) -> tuple[Ref, Operand]:
        """The address of an output's sums over chunks of rows, and the offset of one. cpp/program/grid.cpp computes how
        much memory they take."""
        writer = self.writer
        chunks, columns = self.call_argument("chunks"), self.call_argument("columns")
        each = writer.index("*", chunks, columns)
        memory = self.advance(self.scratch(), INT64, writer.index("*", each, number), f"{slot.name}_parts")
        return memory, writer.index("+", writer.index("*", chunk, columns), column)

    def masked(self, op: str, vector: Operand, valid: Ref | None) -> Operand:
        if valid is None:
            return vector
        first = Constant(identity(op, vector.type), vector.type, vector.lanes)
        return self.writer.let("select", vector.type, valid, vector, first, lanes=vector.lanes)

    def summand(self, value: Value, place: ThreadVector) -> Operand:
        """A place's part of a reduction."""
        vector = self.masked(value.op, self.operand(value.operands[0], place), place.valid)
        if value.op != "sum_float64":
            return vector
        return self.writer.let("to_float64", value.type, vector, lanes=vector.lanes)

    def fold(self, value: Value, vector: Operand) -> Operand:
        if not vector.lanes:
            return vector
        op = "sum" if value.op == "sum_float64" else value.op
        return self.writer.let("fold", value.type, vector, attribute=op, name=self.schedule.name(value))

    def exchanged(self, op: str, total: Operand, group: int) -> Operand:
        """Combines the totals of this many adjacent threads; each of them gets the result."""
        distance = 1
        while distance < group:
            other = self.writer.let("exchange", total.type, total, attribute=distance)
            total = self.combined(op, total, other)
            distance *= 2
        return total

    def shared_part(self, kind: str, place: int) -> Ref:
        """The address in shared memory after this many totals."""
        return self.writer.let("shared", POINTER, attribute=(kind, place * BYTES_OF_PART), name="shared")

    def barrier(self) -> None:
        self.writer.body.append(Barrier())

    def across_parts(
        self, totals: Sequence[Total], parts: int, per_part: int, part: Operand, within: Operand, writes: Ref | None
    ) -> list[Operand]:
        """Combines the totals of a block's parts through shared memory, in the order of the parts. per_part: how many
        of each total a part has; a thread reads the one at `within`. writes: whether a thread stores its part's; None
        if all do."""
        writer = self.writer
        lanes = [max(total.operand.lanes, 1) for total in totals]
        first = [sum(lanes[:k]) * parts * per_part for k in range(len(totals))]
        memory = [self.shared_part(total.operand.type, place) for total, place in zip(totals, first, strict=True)]
        self.kernel.shared = max(self.kernel.shared, sum(lanes) * parts * per_part * BYTES_OF_PART)
        own = writer.index("+", writer.index("*", part, per_part), within)
        body = writer.body if writes is None else []
        for total, at, count in zip(totals, memory, lanes, strict=True):
            body.append(Store(total.operand, at, writer.index("*", own, count), total.operand.type))
        if writes is not None:
            writer.body.append(When(writes, body))
        self.barrier()
        found = []
        for total, at, count in zip(totals, memory, lanes, strict=True):
            like, result = total.operand, None
            for k in range(parts):
                place = writer.index("*", writer.index("+", within, k * per_part), count)
                other = writer.let("load", like.type, at, place, lanes=like.lanes, attribute=like.type)
                result = other if result is None else self.combined(total.op, result, other)
            found.append(result)
        self.barrier()
        return found


def first_stride(layout: GridLayout) -> int:
    return len(ARGUMENTS) + layout.axes


def first_step(layout: GridLayout) -> int:
    return first_stride(layout) + layout.axes * len(layout.strides)


def first_number(layout: GridLayout) -> int:
    return first_step(layout) + (0 if layout.steps is None else 1 + len(layout.strides))
