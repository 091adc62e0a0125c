"""Builds the loop nest of a program for a layout. Threads split the elements, whole rows, the columns of each row, or
rows of few columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fourfold.compiler.ir.dtypes import BOOLEAN, INT32, INT64
from fourfold.compiler.ir.values import Program, Value
from fourfold.compiler.nest.cpu import groups
from fourfold.compiler.nest.cpu.builder import REDUCTION_BLOCK, ROWS_OF_SUM, SLACK, fixed_bytes, transposed_slots
from fourfold.compiler.nest.cpu.groups import Groups
from fourfold.compiler.nest.cpu.odometer import Odometer
from fourfold.compiler.nest.cpu.short_rows import ShortRows
from fourfold.compiler.nest.cpu.side_by_side import SideBySide
from fourfold.compiler.nest.cpu.stages import Stages
from fourfold.compiler.nest.cpu.steps import check_steps
from fourfold.compiler.nest.cpu.steps_of_rows import StepsOfNumbers, StepsSideBySide, are_numbers, write_row
from fourfold.compiler.nest.cpu.vectors import EXPENSIVE, Position
from fourfold.compiler.nest.ir.layout import BROADCAST, COLUMNS, ELEMENTS, ROWS, SHORT_ROWS, SIDE_BY_SIDE, UNIT, Layout
from fourfold.compiler.nest.ir.loops import (
    BEGIN,
    END,
    POINTER,
    Constant,
    Function,
    Nest,
    Operand,
    Ref,
    Store,
    Transpose,
)
from fourfold.compiler.nest.ir.schedule import (
    CHEAP,
    ELEMENT,
    NUMBER,
    ROW,
    SIZES,
    NotCompiled,
    Schedule,
    cost,
    identity,
    total_type,
)

MOST_ACROSS = 400  # operations of all columns together

InPanels = Callable[["dict[int, Ref]", Operand], "dict[int, Ref]"]


def build(program: Program, layout: Layout, lanes: int) -> Nest:
    """lanes: how many a float32 vector of the target has. Raises NotCompiled."""
    schedule = Schedule(program)
    lanes = lanes_of(schedule, layout, lanes)
    check(layout)
    functions = [once(schedule, layout, lanes)]
    if layout.steps is not None:
        check_steps(schedule, layout)
    if layout.steps is not None and are_numbers(schedule):
        functions = [None, Shared("elements", schedule, layout, lanes).numbers()]
    elif layout.split == ELEMENTS:
        functions.append(Shared("elements", schedule, layout, lanes).elements())
    elif layout.split == SHORT_ROWS and lie_across(schedule, layout, lanes):
        functions.append(ShortRows("short_rows", schedule, layout, lanes).short_rows())
    elif layout.split == SIDE_BY_SIDE:
        functions.append(SideBySide("side_by_side", schedule, layout, lanes).side_by_side())
    elif groups.suits(schedule, layout, lanes):
        functions.append(Groups("groups", schedule, layout, lanes).grouped())
        rows = groups.rows_of_group(schedule, layout, lanes)
        return Nest(functions, lanes, groups.bytes_of_group(schedule, layout, lanes), rows * schedule.bytes_of_column)
    elif layout.steps is not None and layout.transposed is not None:
        functions.append(StepsSideBySide("rows", schedule, layout, lanes).short_rows())
    elif layout.split in (ROWS, SHORT_ROWS):
        functions.append(Shared("rows", schedule, layout, lanes).rows())
    else:
        for stage in range(schedule.stages):
            functions.append(Shared(f"columns_{stage}", schedule, layout, lanes).columns(stage))
            functions.append(Shared(f"combine_{stage}", schedule, layout, lanes).combine(stage))
    sums = sum(len(schedule.sums(stage)) for stage in range(schedule.stages))
    panel = sum(SIZES[slot.kind] for slot in transposed_slots(schedule, layout))
    return Nest(functions, lanes, fixed_bytes(schedule, layout, lanes), schedule.bytes_of_column, panel, sums)


def lanes_of(schedule: Schedule, layout: Layout, lanes: int) -> int:
    """Twice as many if all tensors are of bytes: LLVM narrows their operations from 32 bits where it can. Not along
    several axes, whose ends are masked: masked bytes take an instruction for each lane."""
    is_flat = layout.split == ELEMENTS and layout.axes == 1 and layout.steps is None
    are_bytes = all(SIZES[slot.kind] == 1 for slot in (*schedule.inputs, *schedule.outputs))
    are_integers = all(value.type in (INT32, BOOLEAN) for value in schedule.values)
    return 2 * lanes if is_flat and are_bytes and are_integers else lanes


def lie_across(schedule: Schedule, layout: Layout, lanes: int) -> bool:
    """Whether short rows lie across the lanes. Contiguous rows with reductions are as fast in groups, and compiled
    sooner, if their columns fill vectors, or if the operations take less time than the shuffles."""
    if len(schedule.values) * layout.columns > MOST_ACROSS:
        return False
    of_elements = [slot.index for slot in (*schedule.inputs, *schedule.outputs) if slot.level == ELEMENT]
    lie_apart = any(layout.strides[index][-1] not in (UNIT, BROADCAST) for index in of_elements)
    if lie_apart or layout.columns < lanes or not groups.suits(schedule, layout, lanes):
        return True
    is_full = layout.columns > lanes and layout.columns % lanes == 0
    return cost(schedule.values) >= EXPENSIVE and not is_full


def check(layout: Layout) -> None:
    if layout.transposed is None or layout.split in (ELEMENTS, SHORT_ROWS, SIDE_BY_SIDE) or layout.steps is not None:
        return
    if layout.split == COLUMNS or layout.transposed != layout.rows - 1 or layout.axes - layout.rows > 1:
        raise NotCompiled("rows that are not contiguous in a tensor and that threads or axes share")


def once(schedule: Schedule, layout: Layout, lanes: int) -> Function | None:
    """The function that stores the outputs of one number, once a call."""
    outputs = [slot for slot in schedule.outputs if slot.level == NUMBER and not slot.is_column_sum]
    if not outputs:
        return None
    builder = Shared("once", schedule, layout, lanes)
    for slot in outputs:
        builder.store_scalar(slot, builder.base[slot.index])
    return builder.function


class Shared(Stages):
    """Loops whose iterations threads split."""

    def elements(self) -> Function:
        """begin and end: elements if there is one axis, otherwise chunks of the innermost axis across all others."""
        if len(self.column_axes) == 1:
            count = self.writer.index("-", END, BEGIN, "count")
            pointers = self.advanced(self.base, self.axes[-1], BEGIN)
            self.run(0, Position(pointers, BEGIN, count), {})
            return self.function
        writer, inner = self.writer, self.axes[-1]
        shared = [axis for axis in self.column_axes[:-1] if axis != self.layout.transposed]
        chunk, chunks = self.call_argument("chunk"), self.call_argument("chunks")
        outer = Odometer(self, shared, writer.index("/", BEGIN, chunks), self.base)
        present = writer.variable(INT64, writer.index("%", BEGIN, chunks), name="chunk")
        with writer.loop(BEGIN, END, 1):
            at = writer.get(present)
            start = writer.index("*", at, chunk)
            count = writer.index("min", chunk, writer.index("-", self.size[inner], start), "count")
            self.run_panels(Position(self.advanced(outer.pointers(), inner, start), start, count))
            following = writer.index("+", at, 1)
            writer.assign(present, following)
            with writer.when(writer.let("equal", BOOLEAN, following, chunks)):
                writer.assign(present, Constant(0, INT64))
                outer.step()
        return self.function

    def numbers(self) -> Function:
        """All steps of numbers: there is only one element, which threads can't split."""
        StepsOfNumbers(self, self.base).write()
        return self.function

    def run_panels(self, place: Position) -> None:
        """A piece of the innermost axis, in all rows of the axis along which transposed tensors are contiguous."""
        writer, axis = self.writer, self.layout.transposed
        if axis is None:
            return self.run(0, place, {})
        most = self.call_argument("panel_rows")
        body = writer.loop(0, self.size[axis], most, name="row")
        with body as first:
            count = writer.index("min", most, writer.index("-", self.size[axis], first), "rows")
            pointers = self.advanced(place.pointers, axis, first)
            with self.panels(pointers, count, place.count) as in_panels, writer.loop(0, count, 1, name="row") as row:
                own = in_panels(self.advanced(pointers, axis, row), row)
                self.run(0, Position(own, place.column, place.count), {})
        return None

    def rows(self) -> Function:
        self.kept_base = self.kept_values()
        if self.sums_in_registers():
            self.rows_of_column_sums()
            return self.function
        writer, outer = self.writer, Odometer(self, range(self.layout.rows), BEGIN, self.base)
        summed = self.count_summed()
        if not self.transposed_slots:
            with writer.loop(BEGIN, END, 1, name="row") as row:
                self.run_row(outer.pointers())
                outer.step()
                if summed is not None:
                    self.settle_after(summed, 1, writer.index("+", row, 1))
            return self.function
        most = self.call_argument("panel_rows")
        body = writer.loop(BEGIN, END, most, name="row")
        with body as first:
            left = writer.index("min", writer.index("-", END, first), outer.left())
            count = writer.index("min", most, left, "rows")
            with (
                self.panels(outer.pointers(), count, self.column_count) as in_panels,
                writer.loop(0, count, 1, name="row") as row,
            ):
                self.run_row(in_panels(outer.pointers(), row))
                outer.step()
                if summed is not None:
                    self.settle_after(summed, 1, writer.index("+", writer.index("+", first, row), 1))
            body.step(count)
        return self.function

    def sums_in_registers(self) -> bool:
        """Whether the program is one stage whose columns can be summed over many rows at once."""
        schedule, layout = self.schedule, self.layout
        is_simple = schedule.stages == 1 and layout.rows == 1 and layout.steps is None and not self.transposed_slots
        has_row_outputs = any(slot.level == ROW and not slot.is_column_sum for slot in schedule.outputs)
        of_rows = cost(schedule.scalars(ROW))  # computed again for each few columns
        return is_simple and not has_row_outputs and of_rows <= CHEAP and self.has_column_sums(0)

    def rows_of_column_sums(self) -> None:
        writer = self.writer
        with writer.loop(BEGIN, END, ROWS_OF_SUM, name="first") as first:
            rows = writer.index("min", ROWS_OF_SUM, writer.index("-", END, first), "rows")
            pointers, numbers = self.advanced(self.base, 0, first), self.known

            def enter(row: Operand) -> dict[int, Ref]:
                own = self.advanced(pointers, 0, row)
                self.known = dict(numbers)
                self.compute_rows(0, own)
                return own

            self.run_column_sums(0, rows, enter, settles=True)

    def run_row(self, pointers: dict[int, Ref]) -> None:
        if self.layout.steps is not None:
            return write_row(self, pointers)
        numbers = dict(self.known)
        for stage in range(self.schedule.stages):
            self.compute_rows(stage, pointers)
            totals = self.run_stage(stage, pointers)
            for value, total in totals.items():
                self.known[value] = self.in_type(value, self.writer.get(total))
        self.store_rows(pointers)
        self.known = numbers
        return None

    def columns(self, stage: int) -> Function | None:
        """begin and end: blocks of the columns of one row."""
        schedule, writer = self.schedule, self.writer
        if not (schedule.sums(stage) or schedule.stores(stage) or schedule.keeps(stage)):
            return None
        self.kept_base = self.call_argument("kept", POINTER, "uint8")
        pointers = self.enter_row(stage)
        with writer.loop(BEGIN, END, 1, name="block") as block:
            start = writer.index("*", block, REDUCTION_BLOCK)
            count = writer.index("min", REDUCTION_BLOCK, writer.index("-", self.column_count, start), "count")
            folded = self.run_block(stage, pointers, start, count)
            for value, part in folded.items():
                first = Constant(identity(value.op, part.type), part.type)
                whole = self.combined(value.op, first, part)
                writer.body.append(Store(whole, self.partials(value, part.type), block, part.type))
        return self.function

    def combine(self, stage: int) -> Function | None:
        """Combines the blocks' partial results; after the last stage, also stores the row's outputs."""
        schedule, writer = self.schedule, self.writer
        is_last = stage == schedule.stages - 1
        if not schedule.sums(stage) and not (is_last and any(slot.level == ROW for slot in schedule.outputs)):
            return None
        pointers = self.enter_row(stage)
        blocks = self.call_argument("blocks")
        for value in schedule.sums(stage):
            type = total_type(value.op, value.type)
            partials = self.partials(value, type)
            first = writer.let("load", type, partials, Constant(0, INT64), attribute=type)
            total = writer.variable(type, first)
            with writer.loop(1, blocks, 1, name="block") as block:
                part = writer.let("load", type, partials, block, attribute=type)
                writer.assign(total, self.combined(value.op, writer.get(total), part))
            writer.body.append(Store(writer.get(total), partials, blocks, type))
        if is_last:
            self.store_rows(pointers)
        return self.function

    def enter_row(self, stage: int) -> dict[int, Ref]:
        """The current row's addresses; computes the row's values of all stages up to this one."""
        pointers = Odometer(self, range(self.layout.rows), self.call_argument("row"), self.base).pointers()
        blocks = self.call_argument("blocks")
        for s in range(stage + 1):
            for value in self.schedule.sums(s - 1) if s else ():
                type = total_type(value.op, value.type)
                whole = self.writer.let("load", type, self.partials(value, type), blocks, attribute=type)
                self.known[value] = self.in_type(value, whole)
            self.compute_rows(s, pointers)
        return pointers

    def partials(self, value: Value, type: str) -> Ref:
        """The address of a reduction's partial results by block, which the total follows."""
        every = [v for s in range(self.schedule.stages) for v in self.schedule.sums(s)]
        each = self.writer.index("+", self.call_argument("blocks"), 1)
        offset = self.writer.index("*", each, every.index(value))
        base = self.call_argument("partials", POINTER, INT64)
        return self.advance(base, INT64, offset, f"{self.schedule.name(value)}_parts")

    @contextmanager
    def panels(self, pointers: dict[int, Ref], rows: Operand, columns: Operand) -> Iterator[InPanels]:
        """Transposes this many rows of transposed inputs into the thread's scratch memory, and outputs back after the
        with block. Yields a function that replaces these tensors' addresses, given all addresses and a row."""
        writer, inner = self.writer, self.axes[-1]
        memory, start = {}, self.behind_kept()
        most = writer.index(
            "*",
            self.call_argument("panel_rows"),
            self.call_argument("panel_columns"),
        )
        size = 0
        for slot in self.transposed_slots:
            offset = writer.index("*", most, size)
            memory[slot.index] = self.advance(start, "uint8", offset, f"{slot.name}_panel")
            size += SIZES[slot.kind]
            step = self.strides[slot.index, inner]
            if slot.value is None:
                source = pointers[slot.index]
                writer.body.append(Transpose(memory[slot.index], columns, source, step, rows, columns, slot.kind))

        def in_panels(own: dict[int, Ref], row: Operand) -> dict[int, Ref]:
            offset = writer.index("*", row, columns)
            return own | {s.index: self.advance(memory[s.index], s.kind, offset, s.name) for s in self.transposed_slots}

        strides = dict(self.strides)
        self.strides |= {(slot.index, inner): Constant(1, INT64) for slot in self.transposed_slots}
        yield in_panels
        self.strides = strides
        for slot in self.transposed_slots:
            if slot.value is not None:
                step, to = self.strides[slot.index, inner], pointers[slot.index]
                writer.body.append(Transpose(to, step, memory[slot.index], columns, columns, rows, slot.kind))

    def behind_kept(self) -> Ref:
        """The thread's scratch memory after that of blocks and of kept values."""
        columns = self.writer.index("+", self.column_count, SLACK)
        kept = self.writer.index("*", columns, self.schedule.bytes_of_column)
        return self.advance(self.kept_values(), "uint8", kept, "panels")
