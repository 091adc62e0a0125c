"""Kernels over rows, each of which a group of threads reduces: adjacent threads, along the columns; or, for rows that
are adjacent in memory, one thread of each group of 32, whose threads lie along the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.grid.builder import (
    LANES_OF_GROUP,
    LIMITS,
    GridBuilder,
    ThreadVector,
    Total,
)
from fourfold.compiler.nest.grid.layout import SIDE_BY_SIDE, GridLayout
from fourfold.compiler.nest.grid.online import KINDS, OnlinePart
from fourfold.compiler.nest.ir.layout import BROADCAST
from fourfold.compiler.nest.ir.loops import INDEX, Constant, Kernel, Operand, Ref, Store
from fourfold.compiler.nest.ir.online import OnlineSum
from fourfold.compiler.nest.ir.schedule import ROW, Schedule, Slot, identity

LEAST_THREADS = LIMITS["threads"]  # of a block
THREADS_OF_ROWS = LIMITS["threads_of_rows"]  # of a block of rows that 32 threads or fewer share
MOST_HOISTED = 16  # elements of operands that all rows share, which a thread keeps


@dataclass(slots=True)
class Row:
    """A row in flight: its tensors' offsets, whether it exists (None if it always does), the thread's vectors of it in
    registers, and its values."""

    offsets: dict[int, Operand]
    valid: Ref | None
    places: list[ThreadVector]
    known: dict[Value, Operand] = field(default_factory=dict)


@dataclass(slots=True)
class Parts:
    """A thread's parts of a stage's totals, before its lanes are combined; and of online sums, by the first total."""

    vectors: dict[Value, Operand]
    online: dict[Value, OnlinePart] = field(default_factory=dict)


class Rows(GridBuilder):
    """The threads of a row, the layout's group, are a power of two."""

    def __init__(self, schedule: Schedule, layout: GridLayout, name: str = "rows"):
        self.has_row_per_lane = layout.split == SIDE_BY_SIDE
        threads = LEAST_THREADS if layout.group > LANES_OF_GROUP else THREADS_OF_ROWS
        self.rows_of_block = LANES_OF_GROUP if self.has_row_per_lane else max(1, threads // layout.group)
        super().__init__(name, schedule, layout, self.rows_of_block * layout.group)
        index, thread = self.writer.index, self.thread
        # own: the thread's row within the block; lane: the thread's index within the row.
        if self.rows_of_block == 1:
            self.own, self.lane = Constant(0, INDEX), thread
        elif self.has_row_per_lane:
            self.own, self.lane = index("%", thread, LANES_OF_GROUP, "own"), index("/", thread, LANES_OF_GROUP, "lane")
        else:
            self.own, self.lane = index("/", thread, layout.group, "own"), index("%", thread, layout.group, "lane")
        self.begin: Operand = Constant(0, INDEX)  # the first of the row's vectors that this block processes
        self.end = index("/", self.column_count, self.lanes, "vectors") if self.lanes > 1 else self.column_count
        self.sums = [slot for slot in schedule.outputs if slot.is_column_sum]
        self.added: dict[tuple[int, int], Ref] = {}  # by slot and vector of a row: the column's sum so far
        # A block that sums columns has many rows, and no other blocks to hide the latency of one's loads and barriers.
        self.rows_in_flight = layout.copies if self.sums and layout.each else 1

    def write_kernel(self) -> Kernel:
        writer = self.writer
        self.store_numbers()
        blocks = writer.let("blocks", INDEX, name="blocks")
        first = writer.index("*", self.block, self.rows_of_block, "first")
        self.number = writer.index("+", first, self.own, "number")  # of the row's group of threads
        self.begin_sums()
        shared = self.shared_operands()
        step = writer.index("*", blocks, self.rows_of_block, "step")
        tile = writer.index("*", step, self.rows_in_flight, "tile")
        with writer.loop(first, self.row_count, tile, name="present") as present:
            rows = []
            for copy in range(self.rows_in_flight):
                at = writer.index("+", present, writer.index("*", step, copy))
                row, valid = self.row_of(at, is_present=copy == 0)
                offsets = self.offsets_along(self.row_axes, row)
                rows.append(Row(offsets, valid, self.kept_places(offsets, valid, shared)))
            self.write_rows(rows)
        self.end_sums()
        return self.kernel

    def shared_operands(self) -> list[dict[Value, Operand]]:
        """Operands that all rows share, loaded before the loop over rows if they fit: by vector of a row."""
        found = dict.fromkeys(
            value
            for stage in range(self.schedule.stages)
            for value in self.schedule.elements(stage)
            if value.op == "input" and all(self.layout.stride(value.attribute, a) == BROADCAST for a in self.row_axes)
        )
        if len(found) * self.layout.each * max(1, self.lanes) > MOST_HOISTED or not self.row_axes:
            return [{} for _ in range(self.layout.each)]
        places = [self.place(self.lane, k, {}, None) for k in range(self.layout.each)]
        self.write(list(found), places)
        return [place.known for place in places]

    def row_of(self, first: Operand, is_present: bool = True) -> tuple[Operand, Ref | None]:
        """The thread's row, and whether it exists. All threads of a block have to reach its barriers, and all lanes an
        exchange, so threads without a row take the last one. is_present: whether the block's first row exists."""
        row = self.writer.index("+", first, self.own, "row")
        if self.rows_of_block == 1 and is_present:
            return row, None
        valid = self.let("<", row, self.row_count, name="is_row")
        return self.writer.index("min", row, self.writer.index("-", self.row_count, 1), "row"), valid

    def write_rows(self, rows: list[Row]) -> None:
        numbers = self.known
        for row in rows:
            row.known = dict(numbers)
        for stage in range(self.schedule.stages):
            loads = [value for value in self.schedule.elements(stage) if value.op == "input"]
            for row in rows:
                self.known = row.known
                self.compute_rows(stage, row.offsets)
                self.write(loads, row.places)
            parts = []
            for row in rows:
                self.known = row.known
                parts.append(self.stage(stage, row.places, row.offsets, row.valid))
            for row, totals in zip(rows, self.row_totals([each.vectors for each in parts]), strict=True):
                row.known |= totals
            for row, own in zip(rows, parts, strict=True):
                self.known = row.known
                row.known |= self.online_totals(
                    stage, lambda each, shift, own=own: own.online[each.first].relative_to(shift)
                )
        for row in rows:
            self.known = row.known
            is_first = self.both(self.let("equal", self.lane, 0), row.valid)
            if any(slot.level == ROW and not slot.is_column_sum for slot in self.schedule.outputs):
                with self.writer.when(is_first):
                    self.store_scalars(ROW, row.offsets)
        self.known = numbers

    def kept_places(
        self, offsets: dict[int, Operand], valid: Ref | None, shared: list[dict[Value, Operand]]
    ) -> list[ThreadVector]:
        """The vectors of a row that a thread keeps in registers from stage to stage."""
        places = [self.place(self.lane, k, offsets, valid) for k in range(self.layout.each)]
        for place, known in zip(places, shared, strict=True):
            place.known |= known
        return places

    def place(self, at: Operand, k: int, offsets: dict[int, Operand], valid: Ref | None) -> ThreadVector:
        vector = self.writer.index("+", at, k * self.layout.group)
        inside = self.let("<", vector, self.end, name="valid")
        column = self.writer.index("*", vector, self.lanes, "column")
        return ThreadVector(self.column_offsets(column, offsets), self.both(inside, valid))

    def stage(self, stage: int, places: list[ThreadVector], offsets: dict[int, Operand], valid: Ref | None) -> Parts:
        """One pass over a row; returns each thread's part of the totals."""
        if places:
            return Parts(self.write_stage(stage, places, {}))
        writer = self.writer
        sums = {
            value: writer.variable(
                value.type, Constant(identity(value.op, value.type), value.type, self.lanes), self.lanes, "total"
            )
            for value in self.schedule.sums(stage)
        }
        if not (sums or self.schedule.stores(stage)):
            return Parts({})
        online = self.online_parts(stage)
        for part in online.values():
            part.begin()
        first = writer.index("+", self.begin, self.lane)
        with writer.loop(first, self.end, self.layout.group * self.layout.copies, name="at") as at:
            own = [self.place(at, copy, offsets, valid) for copy in range(self.layout.copies)]
            totals = self.write_stage(stage, own, sums, at)
            for value, total in totals.items():
                writer.assign(sums[value], total)
            for first, part in online.items():
                part.add(own, totals[first])
        return Parts({value: writer.get(total) for value, total in sums.items()}, online)

    def online_parts(self, stage: int) -> dict[Value, OnlinePart]:
        firsts = dict.fromkeys(each.first for each in self.schedule.online_sums(stage))
        return {first: KINDS[first.op](first, self.writer, self.lanes, self.operand) for first in firsts}

    def online_totals(self, stage: int, part: Callable[[OnlineSum, Operand], Operand]) -> dict[Value, Operand]:
        """The online sums of a stage whose other totals are known. part: each thread's, relative to a shift."""
        parts = {}
        for each in self.schedule.online_sums(stage):
            for value in each.between:
                if value not in self.known:
                    self.compute(value, {})
            parts[each.total] = part(each, self.scalar(each.shift))
        return self.row_totals([parts])[0]

    def write_stage(
        self, stage: int, places: list[ThreadVector], before: dict[Value, Ref], at: Operand | None = None
    ) -> dict[Value, Operand]:
        self.write(self.schedule.elements(stage), places)
        totals: dict[Value, Operand] = {}
        for value in self.schedule.sums(stage):
            vectors = [self.summand(value, place) for place in places]
            if value in before:
                vectors.insert(0, self.writer.get(before[value]))
            totals[value] = vectors[0]
            for vector in vectors[1:]:
                totals[value] = self.combined(value.op, totals[value], vector)
        for k, place in enumerate(places):
            for slot in self.schedule.stores(stage):
                if slot.is_column_sum:
                    self.add_to_columns(slot, place, k, at)
                else:
                    self.store_vector(slot, place)
        return totals

    def row_totals(self, rows: list[dict[Value, Operand]]) -> list[dict[Value, Operand]]:
        """The totals of whole rows, in all of their threads. rows: each one's vectors by reduction, the same ones."""
        group = self.layout.group
        folded = [{value: self.fold(value, vector) for value, vector in vectors.items()} for vectors in rows]
        if not folded[0] or group == 1:
            return folded
        totals = [Total(value.op, total) for row in folded for value, total in row.items()]
        if self.has_row_per_lane:
            found = self.across_parts(totals, group, LANES_OF_GROUP, self.lane, self.own, None)
        else:
            neighbours = min(group, LANES_OF_GROUP)
            found = [self.exchanged(total.op, total.operand, neighbours) for total in totals]
        if group > LANES_OF_GROUP:
            part = self.writer.index("/", self.thread, LANES_OF_GROUP, "part")
            is_first = self.let("equal", self.writer.index("%", self.thread, LANES_OF_GROUP), 0)
            totals = [Total(total.op, own) for total, own in zip(totals, found, strict=True)]
            found = self.across_parts(totals, group // LANES_OF_GROUP, 1, part, Constant(0, INDEX), is_first)
        each = iter(found)
        return [{value: next(each) for value in row} for row in folded]

    # Sums of columns: each group of threads adds up its rows. The rows of a group depend on the number of rows alone,
    # and so does the order of the sum.

    def begin_sums(self) -> None:
        for slot in self.sums:
            for k in range(self.layout.each):
                zero = self.zero(slot)
                self.added[slot.index, k] = self.writer.variable(zero.type, zero, self.lanes, f"{slot.name}_sum")
        if self.sums and not self.layout.each:
            self.for_columns(lambda slot, at: self.put(slot, at, self.zero(slot)))

    def end_sums(self) -> None:
        if not self.layout.each or not self.sums:
            return
        for k in range(self.layout.each):
            at = self.writer.index("+", self.lane, k * self.layout.group)
            with self.writer.when(self.let("<", at, self.end)):
                for slot in self.sums:
                    self.put(slot, at, self.writer.get(self.added[slot.index, k]))

    def for_columns(self, write: object) -> None:
        with self.writer.loop(self.lane, self.end, self.layout.group, name="at") as at:
            for slot in self.sums:
                write(slot, at)

    def add_to_columns(self, slot: Slot, place: ThreadVector, k: int, at: Operand | None) -> None:
        """Adds to the sum in a register, or to the one in memory, which no other thread accesses."""
        vector = self.masked("sum", self.operand(slot.value, place), place.valid)
        if at is None:
            variable = self.added[slot.index, k]
            self.writer.assign(variable, self.combined("sum", self.writer.get(variable), vector))
            return
        memory, offset = self.partial(slot, self.writer.index("+", at, k * self.layout.group))
        type, given = slot.value.type, () if place.valid is None else (place.valid,)
        old = self.writer.let("load", type, memory, offset, *given, lanes=self.lanes, attribute=type)
        new = self.combined("sum", old, vector)
        self.writer.body.append(Store(new, memory, offset, type, place.valid))

    def put(self, slot: Slot, at: Operand, vector: Operand) -> None:
        memory, offset = self.partial(slot, at)
        self.writer.body.append(Store(vector, memory, offset, slot.value.type))

    def partial(self, slot: Slot, at: Operand) -> tuple[Ref, Operand]:
        """The address and offset of the group's sum of a vector of columns, with at most 8 bytes an element."""
        column = self.writer.index("*", at, self.lanes)
        return self.sum_of_chunk(slot, self.sums.index(slot), self.number, column)
