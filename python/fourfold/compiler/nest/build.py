"""Writes the nest of a program for a layout.

Threads share elements, whole rows, or the columns of each row. Reductions add up as the interpreter does
(cpp/cpu/kernels/reductions.h): a block's elements go to the lanes of four chains in turn, the chains are folded, and
the blocks' results added in order, sums and products of float32 in float64. So a nest gives the interpreter's bits,
from any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fourfold.compiler.dtypes import BOOLEAN, FLOAT32, FLOAT64, INT64
from fourfold.compiler.ir import Program, Value
from fourfold.compiler.nest.layout import (
    BROADCAST,
    COLUMNS,
    ELEMENTS,
    ROW_BY_ROW,
    ROWS,
    SHORT_ROWS,
    STRIDED,
    UNIT,
    Layout,
)
from fourfold.compiler.nest.loops import (
    BEGIN,
    END,
    POINTER,
    SCRATCH,
    Constant,
    Function,
    Nest,
    Operand,
    Ref,
    Store,
    StoreRows,
    Transpose,
    Writer,
)
from fourfold.compiler.nest.plan import ELEMENT, NUMBER, REDUCTIONS, ROW, SIZES, Plan, Slot, cost, identity, total_type

# The arguments of a call: cpp/cpu/program/loops.cpp has the same order.
COLUMN_COUNT, BLOCK, ROW_INDEX, PARTIALS, BLOCKS, KEPT, CHUNK, CHUNKS = range(8)
PANEL_ROWS, PANEL_COLUMNS, FIRST_TENSOR = range(8, 11)
COMBINED = {
    "sum": "add",
    "prod": "mul",
    "amax": "maximum",
    "amin": "minimum",
    "all": "bitwise_and",
    "any": "bitwise_or",
}
SLACK = 64  # elements behind scratch memory that whole vectors may touch
CHAINS = 4
EXPENSIVE = 10  # an operation from which on two vectors at a time keep a processor busy
LONG = 24  # operations from which on likewise


Body = Callable[[list[Operand], "Ref | None", "Ref | None"], None]


Turned = Callable[["dict[int, Ref]", Operand], "dict[int, Ref]"]


class NotCompiled(Exception):
    """No nest is built for a program and layout; the interpreter runs it. The message says why."""


def build(program: Program, layout: Layout, lanes: int) -> Nest:
    """lanes: of a float32 vector of the target. Raises NotCompiled."""
    plan = Plan(program)
    check(layout)
    functions = [once(plan, layout, lanes)]
    if layout.split == ELEMENTS:
        functions.append(Builder("elements", plan, layout, lanes).elements())
    elif layout.split == SHORT_ROWS and ShortRows.suits(plan, layout):
        functions.append(ShortRows("short_rows", plan, layout, lanes).short_rows())
    elif layout.split in (ROWS, SHORT_ROWS):
        functions.append(Builder("rows", plan, layout, lanes).rows())
    else:
        for stage in range(plan.stages):
            functions.append(Builder(f"columns_{stage}", plan, layout, lanes).columns(stage))
            functions.append(Builder(f"combine_{stage}", plan, layout, lanes).combine(stage))
    sums = sum(len(plan.sums(stage)) for stage in range(plan.stages))
    panel = sum(SIZES[slot.kind] for slot in across(plan, layout))
    return Nest(functions, lanes, plan.bytes_of_column, bytes_of_block(plan, layout), panel, sums)


def bytes_of_block(plan: Plan, layout: Layout) -> int:
    """Of the memory that gathers what a block's reductions read, where columns run along several axes."""
    is_gathered = layout.axes - layout.rows > 1
    return SIZES[FLOAT64] * max(len(plan.sums(stage)) for stage in range(plan.stages)) * is_gathered


def check(layout: Layout) -> None:
    if layout.turned is None or layout.split in (ELEMENTS, SHORT_ROWS):
        return
    if layout.split == COLUMNS or layout.turned != layout.rows - 1 or layout.axes - layout.rows > 1:
        raise NotCompiled("rows that lie across the memory of a tensor, and threads or axes that share them")


def across(plan: Plan, layout: Layout) -> list[Slot]:
    """The tensors whose neighbours in memory are not those along the innermost axis."""
    if layout.turned is None or layout.split == SHORT_ROWS:
        return []
    of_elements = (slot for slot in (*plan.inputs, *plan.outputs) if slot.level == ELEMENT and not slot.is_column_sum)
    strides = layout.strides
    found = [s for s in of_elements if strides[s.index][-1] == STRIDED and strides[s.index][layout.turned] == UNIT]
    return sorted(found, key=lambda slot: -SIZES[slot.kind])  # the widest first, so that each panel is aligned


def once(plan: Plan, layout: Layout, lanes: int) -> Function | None:
    """What is stored once a call: outputs of one number."""
    outputs = [slot for slot in plan.outputs if slot.level == NUMBER and not slot.is_column_sum]
    if not outputs:
        return None
    builder = Builder("once", plan, layout, lanes)
    for slot in outputs:
        builder.store_scalar(slot, builder.base[slot.index])
    return builder.function


@dataclass(slots=True)
class Place:
    """Where a loop over columns stands: each tensor's address there, the index among the row's columns, and how many of
    these follow along the innermost axis."""

    pointers: dict[int, Ref]
    column: Operand
    count: Operand


@dataclass(slots=True)
class Sum:
    """A reduction in one block: its chains, or the memory that holds its operand."""

    value: Value
    chains: list[Ref] = field(default_factory=list)
    buffer: Ref | None = None


class Builder:
    def __init__(self, name: str, plan: Plan, layout: Layout, lanes: int):
        self.plan, self.layout, self.lanes = plan, layout, lanes
        self.writer = Writer(lanes)
        self.function = Function(name, self.writer.body)
        self.slots: list[Slot] = [*plan.inputs, *plan.outputs]
        self.axes = range(layout.axes)
        self.column_axes = self.axes[layout.rows :]
        self.known: dict[Value, Operand] = {}  # numbers, and the present row's values
        self.base = {
            slot.index: self.argument(POINTER, FIRST_TENSOR + slot.index, slot.kind, name=slot.name)
            for slot in self.slots
        }
        first = FIRST_TENSOR + len(self.slots)
        self.size = {axis: self.argument(INT64, first + axis, name="size") for axis in self.axes}
        self.first_stride = first + layout.axes
        self.strides: dict[tuple[int, int], Operand] = {}
        self.column_count = self.argument(INT64, COLUMN_COUNT, name="columns")
        self.block = self.argument(INT64, BLOCK, name="block_size")
        self.kept_base: Ref | None = None
        self.across = across(plan, layout)
        for slot in self.slots:
            for axis in self.axes:
                self.strides[slot.index, axis] = self.stride(slot, axis)
        for value in plan.scalars(NUMBER):
            self.compute(value, self.base)

    # What comes with a call.

    def argument(self, type: str, index: int, kind: str | None = None, name: str = "n") -> Ref:
        return self.writer.let("argument", type, attribute=(index, kind), name=name)

    def stride(self, slot: Slot, axis: int) -> Operand:
        known = {BROADCAST: 0, UNIT: 1}.get(self.layout.strides[slot.index][axis])
        if known is not None:
            return Constant(known, INT64)
        index = self.first_stride + axis * len(self.slots) + slot.index
        return self.argument(INT64, index, name=f"{slot.name}_stride")

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

    def scalar(self, value: Value) -> Operand:
        return Constant(value.attribute, value.type) if value.is_constant else self.known[value]

    def compute(self, value: Value, pointers: dict[int, Ref]) -> None:
        writer = self.writer
        if value.op in ("input", "number"):
            kind = self.plan.inputs[value.attribute].kind
            zero = Constant(0, INT64)
            self.known[value] = writer.let(
                "load", value.type, pointers[value.attribute], zero, attribute=kind, name=self.plan.name(value)
            )
        elif value.op == "columns":
            count = self.column_count
            self.known[value] = (
                count
                if value.type == INT64
                else writer.let(f"to_{value.type}", value.type, count, name=self.plan.name(value))
            )
        else:
            operands = [self.scalar(operand) for operand in value.operands]
            self.known[value] = writer.let(value.op, value.type, *operands, name=self.plan.name(value))

    def compute_rows(self, stage: int, pointers: dict[int, Ref]) -> None:
        for value in self.plan.scalars(ROW, stage):
            if value not in self.known:
                self.compute(value, pointers)

    def store_scalar(self, slot: Slot, pointer: Ref) -> None:
        self.writer.body.append(Store(self.scalar(slot.value), pointer, Constant(0, INT64), slot.kind))

    def store_rows(self, pointers: dict[int, Ref]) -> None:
        for slot in self.plan.outputs:
            if slot.level == ROW:
                self.store_scalar(slot, pointers[slot.index])

    # The loops that threads share.

    def elements(self) -> Function:
        """begin and end: elements of the only axis, or chunks of the innermost axis of all others."""
        if len(self.column_axes) == 1:
            count = self.writer.index("-", END, BEGIN, "count")
            pointers = self.advanced(self.base, self.axes[-1], BEGIN)
            self.run(0, Place(pointers, BEGIN, count), {})
            return self.function
        writer, inner = self.writer, self.axes[-1]
        shared = [axis for axis in self.column_axes[:-1] if axis != self.layout.turned]
        chunk, chunks = self.argument(INT64, CHUNK, name="chunk_size"), self.argument(INT64, CHUNKS, name="chunks")
        outer = Odometer(self, shared, writer.index("/", BEGIN, chunks), self.base)
        present = writer.variable(INT64, writer.index("%", BEGIN, chunks), name="chunk")
        with writer.loop(BEGIN, END, 1):
            at = writer.get(present)
            start = writer.index("*", at, chunk)
            count = writer.index("min", chunk, writer.index("-", self.size[inner], start), "count")
            self.run_turned(Place(self.advanced(outer.pointers(), inner, start), start, count))
            following = writer.index("+", at, 1)
            writer.assign(present, following)
            with writer.when(writer.let("equal", BOOLEAN, following, chunks)):
                writer.assign(present, Constant(0, INT64))
                outer.step()
        return self.function

    def run_turned(self, place: Place) -> None:
        """A piece of the innermost axis, in all rows of the axis along which tensors lie across."""
        writer, axis = self.writer, self.layout.turned
        if axis is None:
            return self.run(0, place, {})
        most = self.argument(INT64, PANEL_ROWS, name="panel_rows")
        body = writer.loop(0, self.size[axis], most, name="row")
        with body as first:
            count = writer.index("min", most, writer.index("-", self.size[axis], first), "rows")
            pointers = self.advanced(place.pointers, axis, first)
            with self.panels(pointers, count, place.count) as turned, writer.loop(0, count, 1, name="row") as row:
                own = turned(self.advanced(pointers, axis, row), row)
                self.run(0, Place(own, place.column, place.count), {})
        return None

    @contextmanager
    def panels(self, pointers: dict[int, Ref], rows: Operand, columns: Operand) -> Iterator[Turned]:
        """Transposes so many rows of the tensors that lie across into memory of the thread's own, and back behind the
        block. Gives a function of addresses and a row, which replaces those of these tensors."""
        writer, inner = self.writer, self.axes[-1]
        memory, start = {}, self.behind_kept()
        most = writer.index(
            "*",
            self.argument(INT64, PANEL_ROWS, name="panel_rows"),
            self.argument(INT64, PANEL_COLUMNS, name="panel_columns"),
        )
        size = 0
        for slot in self.across:
            offset = writer.index("*", most, size)
            memory[slot.index] = self.advance(start, "uint8", offset, f"{slot.name}_panel")
            size += SIZES[slot.kind]
            step = self.strides[slot.index, inner]
            if slot.value is None:
                source = pointers[slot.index]
                writer.body.append(Transpose(memory[slot.index], columns, source, step, rows, columns, slot.kind))

        def turned(own: dict[int, Ref], row: Operand) -> dict[int, Ref]:
            offset = writer.index("*", row, columns)
            return own | {s.index: self.advance(memory[s.index], s.kind, offset, s.name) for s in self.across}

        strides = dict(self.strides)
        self.strides |= {(slot.index, inner): Constant(1, INT64) for slot in self.across}
        yield turned
        self.strides = strides
        for slot in self.across:
            if slot.value is not None:
                step, to = self.strides[slot.index, inner], pointers[slot.index]
                writer.body.append(Transpose(to, step, memory[slot.index], columns, columns, rows, slot.kind))

    def behind_kept(self) -> Ref:
        """The memory of a thread behind that of blocks and of kept values."""
        columns = self.writer.index("+", self.column_count, SLACK)
        kept = self.writer.index("*", columns, self.plan.bytes_of_column)
        return self.advance(self.behind_blocks(), "uint8", kept, "panels")

    def behind_blocks(self) -> Ref:
        blocks = self.writer.index(
            "*", self.writer.index("+", self.block, SLACK), bytes_of_block(self.plan, self.layout)
        )
        return self.advance(SCRATCH, "uint8", blocks, "kept")

    def rows(self) -> Function:
        writer = self.writer
        self.kept_base = self.behind_blocks()
        outer = Odometer(self, range(self.layout.rows), BEGIN, self.base)
        if not self.across:
            with writer.loop(BEGIN, END, 1, name="row"):
                self.run_row(outer.pointers())
                outer.step()
            return self.function
        most = self.argument(INT64, PANEL_ROWS, name="panel_rows")
        body = writer.loop(BEGIN, END, most, name="row")
        with body as first:
            left = writer.index("min", writer.index("-", END, first), outer.left())
            count = writer.index("min", most, left, "rows")
            with (
                self.panels(outer.pointers(), count, self.column_count) as turned,
                writer.loop(0, count, 1, name="row") as row,
            ):
                self.run_row(turned(outer.pointers(), row))
                outer.step()
            body.step(count)
        return self.function

    def run_row(self, pointers: dict[int, Ref]) -> None:
        numbers = dict(self.known)
        for stage in range(self.plan.stages):
            self.compute_rows(stage, pointers)
            totals = self.run_stage(stage, pointers)
            for value, total in totals.items():
                self.known[value] = self.in_type(value, self.writer.get(total))
        self.store_rows(pointers)
        self.known = numbers

    def columns(self, stage: int) -> Function | None:
        """begin and end: blocks of the columns of one row."""
        plan, writer = self.plan, self.writer
        if not (plan.sums(stage) or plan.stores(stage) or plan.keeps(stage)):
            return None
        self.kept_base = self.argument(POINTER, KEPT, "uint8", name="kept")
        pointers = self.enter_row(stage)
        with writer.loop(BEGIN, END, 1, name="block") as block:
            start = writer.index("*", block, self.block)
            count = writer.index("min", self.block, writer.index("-", self.column_count, start), "count")
            folded = self.run_block(stage, pointers, start, count)
            for value, part in folded.items():
                first = Constant(identity(value.op, part.type), part.type)
                whole = self.combined(value.op, first, part)
                writer.body.append(Store(whole, self.partials(value, part.type), block, part.type))
        return self.function

    def combine(self, stage: int) -> Function | None:
        """What the blocks come to; the row's outputs behind the last stage."""
        plan, writer = self.plan, self.writer
        is_last = stage == plan.stages - 1
        if not plan.sums(stage) and not (is_last and any(slot.level == ROW for slot in plan.outputs)):
            return None
        pointers = self.enter_row(stage)
        blocks = self.argument(INT64, BLOCKS, name="blocks")
        for value in plan.sums(stage):
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
        """The addresses of the present row, whose values of all stages up to this one are known then."""
        pointers = Odometer(
            self, range(self.layout.rows), self.argument(INT64, ROW_INDEX, name="row"), self.base
        ).pointers()
        blocks = self.argument(INT64, BLOCKS, name="blocks")
        for s in range(stage + 1):
            for value in self.plan.sums(s - 1) if s else ():
                type = total_type(value.op, value.type)
                whole = self.writer.let("load", type, self.partials(value, type), blocks, attribute=type)
                self.known[value] = self.in_type(value, whole)
            self.compute_rows(s, pointers)
        return pointers

    def partials(self, value: Value, type: str) -> Ref:
        """The parts of a reduction by block, and behind them the whole."""
        every = [v for s in range(self.plan.stages) for v in self.plan.sums(s)]
        each = self.writer.index("+", self.argument(INT64, BLOCKS, name="blocks"), 1)
        offset = self.writer.index("*", each, every.index(value))
        base = self.argument(POINTER, PARTIALS, INT64, name="parts")
        return self.advance(base, INT64, offset, f"{self.plan.name(value)}_parts")

    def in_type(self, value: Value, total: Ref) -> Ref:
        if total.type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, name=self.plan.name(value))

    # A stage of one row.

    def run_stage(self, stage: int, pointers: dict[int, Ref]) -> dict[Value, Ref]:
        """Its reductions' totals."""
        writer, plan = self.writer, self.plan
        sums = plan.sums(stage)
        if not sums:
            if plan.stores(stage) or plan.keeps(stage):
                self.run_block(stage, pointers, Constant(0, INT64), self.column_count)
            return {}
        totals = {}
        for value in sums:
            type = total_type(value.op, value.type)
            first = Constant(identity(value.op, type), type)
            totals[value] = writer.variable(type, first, name=f"{plan.name(value)}_total")
        with writer.loop(0, self.column_count, self.block, name="start") as start:
            count = writer.index("min", self.block, writer.index("-", self.column_count, start), "count")
            for value, part in self.run_block(stage, pointers, start, count).items():
                writer.assign(totals[value], self.combined(value.op, writer.get(totals[value]), part))
        return totals

    def combined(self, op: str, a: Operand, b: Operand) -> Ref:
        return self.writer.let(COMBINED[op], b.type, a, b, lanes=b.lanes)

    def run_block(self, stage: int, pointers: dict[int, Ref], start: Operand, count: Operand) -> dict[Value, Ref]:
        """So many columns of a row; gives what its reductions come to there."""
        sums = {value: Sum(value) for value in self.plan.sums(stage)}
        if len(self.column_axes) == 1:
            for each in sums.values():
                each.chains = self.new_chains(each.value)
            inner = self.axes[-1]
            self.run(stage, Place(self.advanced(pointers, inner, start), start, count), sums)
        else:
            self.run_segments(stage, pointers, start, count, sums)
        return {value: self.folded(each) for value, each in sums.items()}

    def new_chains(self, value: Value) -> list[Ref]:
        first = Constant(identity(value.op, value.type), value.type, self.lanes)
        name = f"{self.plan.name(value)}_lanes"
        return [self.writer.variable(value.type, first, self.lanes, name) for _ in range(CHAINS)]

    def folded(self, each: Sum) -> Ref:
        a, b, c, d = (self.writer.get(chain) for chain in each.chains)
        op = each.value.op
        lanes = self.combined(op, self.combined(op, a, b), self.combined(op, c, d))
        return self.writer.let("fold", total_type(op, each.value.type), lanes, attribute=op)

    def run_segments(
        self, stage: int, pointers: dict[int, Ref], start: Operand, count: Operand, sums: dict[Value, Sum]
    ) -> None:
        """A block of columns that run along several axes: the innermost axis piece by piece. What is reduced is
        gathered first, so that the order of a sum does not depend on the layout."""
        writer, inner = self.writer, self.axes[-1]
        for k, each in enumerate(sums.values()):
            offset = writer.index("*", writer.index("+", self.block, SLACK), k * SIZES[FLOAT64])
            each.buffer = self.advance(SCRATCH, "uint8", offset, "gathered")
        within = writer.variable(INT64, writer.index("%", start, self.size[inner]), name="at")
        outer = Odometer(self, self.column_axes[:-1], writer.index("/", start, self.size[inner]), pointers)
        body = writer.loop(0, count, 1, name="column")
        with body as column:
            at = writer.get(within)
            left = writer.index("-", self.size[inner], at, "left")
            piece = writer.index("min", left, writer.index("-", count, column), "piece")
            place = Place(self.advanced(outer.pointers(), inner, at), writer.index("+", start, column), piece)
            self.run(stage, place, sums, column)
            writer.assign(within, writer.index("+", at, piece))
            with writer.when(writer.let("<", BOOLEAN, writer.index("-", left, 1), piece)):
                writer.assign(within, Constant(0, INT64))
                outer.step()
            body.step(piece)
        for each in sums.values():
            each.chains = self.new_chains(each.value)
            self.run_chains(each, count)

    def run_chains(self, each: Sum, count: Operand) -> None:
        """Adds up what a buffer holds."""
        kind = each.value.type

        def add(places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
            masks = () if mask is None else (mask,)
            for copy, k in enumerate(places):
                place = (each.buffer, k, *masks)
                vector = self.writer.let("load", kind, *place, lanes=self.lanes, attribute=kind)
                self.accumulate(each, vector, mask, copy, chain)

        self.vectors(count, CHAINS, add)

    # Vectors.

    def vectors(self, count: Operand, copies: int, body: Body) -> None:
        """body(indices, mask, chain) for whole vectors, `copies` of them at a time, and for those that are left, one by
        one under a mask: chain is then the index of the chain that they go to."""
        writer, lanes = self.writer, self.lanes
        step = lanes * copies
        main = writer.index("*", writer.index("/", count, step), step, "main")
        with writer.loop(0, main, step) as k:
            body([writer.index("+", k, copy * lanes) for copy in range(copies)], None, None)
        with writer.loop(main, count, lanes) as k:
            left = writer.index("-", count, k, "left")
            mask = writer.let("mask", BOOLEAN, left, lanes=lanes, name="mask")
            is_part = writer.let("<", BOOLEAN, left, Constant(lanes, INT64))
            number = writer.index("/", writer.index("-", k, main), lanes)
            chain = writer.let("where", INT64, is_part, Constant(CHAINS - 1, INT64), number, name="chain")
            body([k], mask, chain)

    def run(self, stage: int, place: Place, sums: dict[Value, Sum], buffered: Operand | None = None) -> None:
        """All vectors of a stage in one piece of the innermost axis. buffered: where it begins in the sums' buffers."""
        body = VectorBody(self, stage, place, sums, buffered)
        has_chains = sums and buffered is None
        self.vectors(place.count, CHAINS if has_chains else body.copies, body.write)

    def accumulate(self, each: Sum, vector: Ref, mask: Ref | None, copy: int, chain: Ref | None) -> None:
        writer, op = self.writer, each.value.op
        if mask is None:
            variable = each.chains[copy]
            writer.assign(variable, self.combined(op, writer.get(variable), vector))
            return
        first = Constant(identity(op, vector.type), vector.type, self.lanes)
        vector = writer.let("where", vector.type, mask, vector, first, lanes=self.lanes)
        for k, variable in enumerate(each.chains):
            old = writer.get(variable)
            is_this = writer.let("equal", BOOLEAN, chain, Constant(k, INT64))
            new = self.combined(op, old, vector)
            writer.assign(variable, writer.let("select", vector.type, is_this, new, old, lanes=self.lanes))


class Odometer:
    """Counts through axes: each tensor's offset moves along."""

    def __init__(self, builder: Builder, axes: Sequence[int], start: Operand, pointers: dict[int, Ref]):
        self.builder, self.axes, self.base = builder, list(axes), pointers
        writer = builder.writer
        self.digits: dict[int, Ref] = {}
        offsets: dict[int, Operand] = {slot.index: Constant(0, INT64) for slot in builder.slots}
        for axis in reversed(self.axes):
            is_first = axis == self.axes[0]
            digit = start if is_first else writer.index("%", start, builder.size[axis])
            start = start if is_first else writer.index("/", start, builder.size[axis])
            if not is_first:
                self.digits[axis] = writer.variable(INT64, digit, name="digit")
            for slot in self.moving(axis):
                moved = writer.index("*", digit, builder.strides[slot.index, axis])
                offsets[slot.index] = writer.index("+", offsets[slot.index], moved)
        moving = {slot.index for axis in self.axes for slot in self.moving(axis)}
        names = {slot.index: f"{slot.name}_offset" for slot in builder.slots}
        self.offsets = {k: writer.variable(INT64, offsets[k], name=names[k]) for k in sorted(moving)}

    def moving(self, axis: int) -> list[Slot]:
        builder = self.builder
        return [slot for slot in builder.slots if builder.layout.strides[slot.index][axis] != BROADCAST]

    def pointers(self) -> dict[int, Ref]:
        builder = self.builder
        kinds = {slot.index: slot.kind for slot in builder.slots}
        names = {slot.index: slot.name for slot in builder.slots}
        moved = {
            k: builder.advance(self.base[k], kinds[k], builder.writer.get(v), names[k]) for k, v in self.offsets.items()
        }
        return {**self.base, **moved}

    def left(self) -> Operand:
        """How many steps the last axis has left."""
        last = self.axes[-1]
        done = self.builder.writer.get(self.digits[last]) if last in self.digits else Constant(0, INT64)
        return self.builder.writer.index("-", self.builder.size[last], done)

    def step(self) -> None:
        if self.axes:
            self.step_axis(len(self.axes) - 1)

    def step_axis(self, position: int) -> None:
        builder, axis = self.builder, self.axes[position]
        writer = builder.writer
        for slot in self.moving(axis):
            self.move(slot.index, "+", builder.strides[slot.index, axis])
        if position == 0:
            return
        following = writer.index("+", writer.get(self.digits[axis]), 1)
        writer.assign(self.digits[axis], following)
        with writer.when(writer.let("equal", BOOLEAN, following, builder.size[axis])):
            writer.assign(self.digits[axis], Constant(0, INT64))
            for slot in self.moving(axis):
                self.move(slot.index, "-", writer.index("*", builder.size[axis], builder.strides[slot.index, axis]))
            self.step_axis(position - 1)

    def move(self, slot: int, op: str, by: Operand) -> None:
        writer = self.builder.writer
        writer.assign(self.offsets[slot], writer.index(op, writer.get(self.offsets[slot]), by))


class VectorBody:
    """The operations of one stage on vectors along the innermost axis."""

    def __init__(self, builder: Builder, stage: int, place: Place, sums: dict[Value, Sum], buffered: Operand | None):
        self.builder, self.stage, self.place, self.sums, self.buffered = builder, stage, place, sums, buffered
        self.plan, self.writer, self.lanes = builder.plan, builder.writer, builder.lanes
        self.values = self.plan.elements(stage)
        self.stores = self.plan.stores(stage)
        self.keeps = self.plan.keeps(stage)
        self.splats: dict[Value, Operand] = {}
        self.inner = builder.axes[-1]
        self.hoist()

    @property
    def copies(self) -> int:
        computed = [value for value in self.values if not self.plan.is_loaded(value, self.stage)]
        return 2 if cost(computed) >= EXPENSIVE or len(computed) > LONG else 4

    def hoist(self) -> None:
        """What is the same for all of them."""
        for value in self.values:
            if value.op == "input" and self.stride(value.attribute) == BROADCAST:
                self.splats[value] = self.splat(self.load(value, None, None), value)
            elif not self.plan.is_loaded(value, self.stage):
                for operand in value.operands:
                    self.hoist_scalar(operand)
        for value in (*(slot.value for slot in self.stores), *(value.operands[0] for value in self.sums)):
            self.hoist_scalar(value)

    def hoist_scalar(self, value: Value) -> None:
        if self.plan.level[value] < ELEMENT and value not in self.splats:
            self.splats[value] = self.splat(self.builder.scalar(value), value)

    def splat(self, scalar: Operand, value: Value) -> Operand:
        if isinstance(scalar, Constant):
            return Constant(scalar.value, scalar.type, self.lanes)
        return self.writer.let("splat", scalar.type, scalar, lanes=self.lanes, name=self.plan.name(value))

    def stride(self, slot: int) -> str:
        is_turned = any(slot == turned.index for turned in self.builder.across)
        return UNIT if is_turned else self.builder.layout.strides[slot][self.inner]

    def load(self, value: Value, k: Operand | None, mask: Ref | None) -> Ref:
        """An input's vector at an index, or its number where it has one for all."""
        slot = self.plan.inputs[value.attribute]
        pointer = self.place.pointers[slot.index]
        if k is None:
            zero, name = Constant(0, INT64), self.plan.name(value)
            return self.writer.let("load", value.type, pointer, zero, attribute=slot.kind, name=name)
        operands: list[Operand] = [pointer, k]
        if mask is not None:
            operands.append(mask)
        stride = None
        if self.stride(slot.index) == STRIDED:
            stride = self.builder.strides[slot.index, self.inner]
        return self.writer.let(
            "load" if stride is None else "load_strided",
            value.type,
            *operands,
            *(() if stride is None else (stride,)),
            lanes=self.lanes,
            attribute=slot.kind,
            name=self.plan.name(value),
        )

    def write(self, places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
        """Several vectors, operation by operation: a processor computes the same function of several at once, but not
        several of a vector's, each of which waits for the one before."""
        known: list[dict[Value, Operand]] = [dict(self.splats) for _ in places]
        for value in self.values:
            for copy, k in enumerate(places):
                if value not in known[copy]:
                    known[copy][value] = self.vector(value, known[copy], k, mask)
        for copy, k in enumerate(places):
            self.write_results(known[copy], k, copy, mask, chain)

    def write_results(
        self, known: dict[Value, Operand], k: Operand, copy: int, mask: Ref | None, chain: Ref | None
    ) -> None:
        for each in self.sums.values():
            vector = known[each.value.operands[0]]
            if each.buffer is None:
                self.builder.accumulate(each, vector, mask, copy, chain)
            else:
                self.put(vector, each.buffer, self.writer.index("+", self.buffered, k), vector.type, mask)
        for value in self.keeps:
            self.put(known[value], self.kept(value), self.column(k), value.type, mask)
        for slot in self.stores:
            self.store(slot, known[slot.value], k, mask)

    def vector(self, value: Value, known: dict[Value, Operand], k: Operand, mask: Ref | None) -> Ref:
        name = self.plan.name(value)
        if value.op == "input":
            return self.load(value, k, mask)
        if self.plan.is_loaded(value, self.stage):
            masks = () if mask is None else (mask,)
            place = (self.kept(value), self.column(k), *masks)
            return self.writer.let("load", value.type, *place, lanes=self.lanes, attribute=value.type, name=name)
        operands = [known[operand] for operand in value.operands]
        return self.writer.let(value.op, value.type, *operands, lanes=self.lanes, name=name)

    def column(self, k: Operand) -> Operand:
        return self.writer.index("+", self.place.column, k)

    def kept(self, value: Value) -> Ref:
        builder = self.builder
        each = self.writer.index("+", builder.column_count, SLACK)
        offset = self.writer.index("*", each, self.plan.kept[value])
        return builder.advance(builder.kept_base, "uint8", offset, f"{self.plan.name(value)}_kept")

    def put(self, vector: Operand, pointer: Ref, k: Operand, kind: str, mask: Ref | None) -> None:
        self.writer.body.append(Store(vector, pointer, k, kind, mask))

    def store(self, slot: Slot, vector: Operand, k: Operand, mask: Ref | None) -> None:
        if slot.is_column_sum:
            return self.add_to_columns(slot, vector, k, mask)
        stride = None
        if self.stride(slot.index) == STRIDED:
            stride = self.builder.strides[slot.index, self.inner]
        self.writer.body.append(Store(vector, self.place.pointers[slot.index], k, slot.kind, mask, stride))
        return None

    def add_to_columns(self, slot: Slot, vector: Operand, k: Operand, mask: Ref | None) -> None:
        masks = () if mask is None else (mask,)
        place = (self.builder.base[slot.index], self.column(k))
        old = self.writer.let("load", FLOAT64, *place, *masks, lanes=self.lanes, attribute=FLOAT64)
        wide = vector
        if vector.type == FLOAT32:
            wide = self.writer.let("to_float64", FLOAT64, vector, lanes=self.lanes)
        self.put(self.writer.let("add", FLOAT64, old, wide, lanes=self.lanes), *place, FLOAT64, mask)


class ShortRows(Builder):
    """Rows of few columns: a vector holds one column of many rows, and all columns of these are computed at once."""

    MOST_OPERATIONS = 400  # of all columns together

    @classmethod
    def suits(cls, plan: Plan, layout: Layout) -> bool:
        return len(plan.values) * layout.columns <= cls.MOST_OPERATIONS

    def short_rows(self) -> Function:
        writer, axis = self.writer, self.layout.rows - 1
        outer = Odometer(self, range(axis), writer.index("/", BEGIN, self.size[axis]), self.base)
        within = writer.variable(INT64, writer.index("%", BEGIN, self.size[axis]), name="at")
        body = writer.loop(BEGIN, END, 1, name="row")
        with body as row:
            at = writer.get(within)
            left = writer.index("-", self.size[axis], at)
            count = writer.index("min", left, writer.index("-", END, row))
            self.run_rows(self.advanced(outer.pointers(), axis, at), count)
            writer.assign(within, writer.index("+", at, count))
            with writer.when(writer.let("equal", BOOLEAN, left, count)):
                writer.assign(within, Constant(0, INT64))
                outer.step()
            body.step(count)
        return self.function

    def run_rows(self, pointers: dict[int, Ref], count: Operand) -> None:
        writer, lanes = self.writer, self.lanes
        self.pointers, self.axis = pointers, self.layout.rows - 1
        self.fixed = {v: self.fixed_columns(v) for v in self.plan.values if self.is_fixed(v)}
        whole = writer.index("*", writer.index("/", count, lanes), lanes)
        with writer.loop(0, whole, lanes) as k:
            self.run_vector(k, None)
        with writer.loop(whole, count, lanes) as k:
            self.run_vector(k, writer.let("mask", BOOLEAN, writer.index("-", count, k), lanes=lanes, name="mask"))

    # Values by column; one that is the same in all columns is the same object in each.

    def classes(self, value: Value) -> str:
        """Of an input's strides along the rows' last axis and along the columns."""
        return self.layout.strides[value.attribute][self.axis :]

    def is_fixed(self, value: Value) -> bool:
        """Whether it is the same in all rows of the last axis."""
        is_input = value.op == "input" and self.plan.level[value] > NUMBER
        return self.plan.level[value] == NUMBER or is_input and self.classes(value)[0] == BROADCAST

    def fixed_columns(self, value: Value) -> list[Operand]:
        columns = self.layout.columns
        if self.plan.level[value] == NUMBER:
            return [self.splat(self.scalar(value), value)] * columns
        slot = self.plan.inputs[value.attribute]
        pointer, stride = self.pointers[slot.index], self.strides[slot.index, self.axes[-1]]
        if self.classes(value)[1] == BROADCAST:
            columns = 1
        found = []
        for column in range(columns):
            offset = self.writer.index("*", column, stride)
            scalar = self.writer.let(
                "load", value.type, pointer, offset, attribute=slot.kind, name=self.plan.name(value)
            )
            found.append(self.splat(scalar, value))
        return found * (self.layout.columns // columns)

    def splat(self, scalar: Operand, value: Value) -> Operand:
        if isinstance(scalar, Constant):
            return Constant(scalar.value, scalar.type, self.lanes)
        return self.writer.let("splat", scalar.type, scalar, lanes=self.lanes, name=self.plan.name(value))

    def run_vector(self, k: Operand, mask: Ref | None) -> None:
        known: dict[Value, list[Operand]] = dict(self.fixed)
        made: dict[tuple, Ref] = {}
        for value in self.plan.values:
            if value in known:
                continue
            if value.op == "input":
                known[value] = self.loaded(value, k, mask)
            elif value.op in REDUCTIONS:
                known[value] = [self.reduced(value, known[value.operands[0]])] * self.layout.columns
            else:
                known[value] = []
                for column in range(self.layout.columns):
                    operands = tuple(known[operand][column] for operand in value.operands)
                    key = (value.op, value.type, operands)
                    if key not in made:
                        made[key] = self.writer.let(
                            value.op, value.type, *operands, lanes=self.lanes, name=self.plan.name(value)
                        )
                    known[value].append(made[key])
        for slot in self.plan.outputs:
            if slot.level > NUMBER:
                self.store(slot, known[slot.value], k, mask)

    def loaded(self, value: Value, k: Operand, mask: Ref | None) -> list[Operand]:
        slot, columns = self.plan.inputs[value.attribute], self.layout.columns
        pointer, masks = self.pointers[slot.index], () if mask is None else (mask,)
        of_row, of_column = self.classes(value)
        if (of_row, of_column) == (ROW_BY_ROW, UNIT):
            offset = self.writer.index("*", k, columns)
            return [
                self.writer.let(
                    "load_column", value.type, pointer, offset, *masks,
                    lanes=self.lanes, attribute=(slot.kind, column, columns), name=self.plan.name(value),
                )
                for column in range(columns)
            ]  # fmt: skip
        found: list[Operand] = []
        for column in range(1 if of_column == BROADCAST else columns):
            offset = self.writer.index("*", column, self.strides[slot.index, self.axes[-1]])
            place: list[Operand] = [self.advance(pointer, slot.kind, offset), k, *masks]
            op = "load"
            if of_row != UNIT:
                op = "load_strided"
                place.append(self.strides[slot.index, self.axis])
            found.append(
                self.writer.let(
                    op, value.type, *place, lanes=self.lanes, attribute=slot.kind, name=self.plan.name(value)
                )
            )
        return found * (columns // len(found))

    def store(self, slot: Slot, vectors: list[Operand], k: Operand, mask: Ref | None) -> None:
        pointer, columns = self.pointers[slot.index], self.layout.columns
        of_row, of_column = self.layout.strides[slot.index][self.axis :]
        body = self.writer.body
        if (of_row, of_column) == (ROW_BY_ROW, UNIT):
            offset = self.writer.index("*", k, columns)
            body.append(StoreRows(tuple(vectors), pointer, offset, slot.kind, mask))
            return
        stride = None if of_row == UNIT else self.strides[slot.index, self.axis]
        for column in range(columns if slot.level == ELEMENT else 1):
            offset = self.writer.index("*", column, self.strides[slot.index, self.axes[-1]])
            place = self.advance(pointer, slot.kind, offset)
            body.append(Store(vectors[column], place, k, slot.kind, mask, stride))

    def reduced(self, value: Value, columns: list[Operand]) -> Ref:
        """As a block of a longer row: in the lanes of its chains, and these in halves."""
        lanes: list[Operand | None] = [None] * self.lanes
        for column, vector in enumerate(columns):
            lanes[column % self.lanes] = self.both(value.op, lanes[column % self.lanes], vector)
        type = total_type(value.op, value.type)
        if type != value.type:
            lanes = [v if v is None else self.writer.let(f"to_{type}", type, v, lanes=self.lanes) for v in lanes]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self.both(value.op, lanes[k], lanes[k + half]) for k in range(half)]
        total = self.combined(value.op, Constant(identity(value.op, type), type, self.lanes), lanes[0])
        if type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, lanes=self.lanes, name=self.plan.name(value))

    def both(self, op: str, a: Operand | None, b: Operand | None) -> Operand | None:
        return b if a is None else a if b is None else self.combined(op, a, b)
