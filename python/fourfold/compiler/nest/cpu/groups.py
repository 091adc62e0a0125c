"""Rows in groups of as many as a vector has lanes. Elements are vectors along the columns, row by row; what a row has
one of, such as a mean, is computed for all rows of the group at once, as a vector."""

from __future__ import annotations

from collections.abc import Sequence

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT64, FLOATING, INT64
from fourfold.compiler.ir.folding import REDUCTIONS
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import CHAINS, SLACK, transposed_slots
from fourfold.compiler.nest.cpu.odometer import Odometer
from fourfold.compiler.nest.cpu.stages import Body, Stages
from fourfold.compiler.nest.cpu.vectors import Position, Sum
from fourfold.compiler.nest.ir.layout import BROADCAST, ROWS, SHORT_ROWS, UNIT, Layout
from fourfold.compiler.nest.ir.loops import BEGIN, END, SCRATCH, Constant, Function, Operand, Ref, Store
from fourfold.compiler.nest.ir.schedule import ELEMENT, NUMBER, ROW, SIZES, Schedule, Slot, identity, total_type

NEAR_BYTES = 16384  # of a group: they stay in the first-level cache from stage to stage
FEWEST_ROWS = 4
UNROLLED = 2  # times that a body of several vectors is repeated without a loop


def rows_of_group(schedule: Schedule, layout: Layout, lanes: int) -> int:
    """A power of two: as many rows of all tensors and kept values as stay near."""
    slots = (slot for slot in (*schedule.inputs, *schedule.outputs) if slot.level == ELEMENT and not slot.is_column_sum)
    bytes = (schedule.bytes_of_column + sum(SIZES[slot.kind] for slot in slots)) * layout.columns
    rows = lanes
    while rows > 1 and rows * bytes > NEAR_BYTES:
        rows //= 2
    return rows


def suits(schedule: Schedule, layout: Layout, lanes: int) -> bool:
    is_by_rows = layout.split in (ROWS, SHORT_ROWS) and layout.rows >= 1 and layout.axes == layout.rows + 1
    if not is_by_rows or layout.steps is not None or transposed_slots(schedule, layout):
        return False
    has_sums = any(schedule.sums(stage) for stage in range(schedule.stages))
    fits = layout.columns > 0 and rows_of_group(schedule, layout, lanes) >= FEWEST_ROWS
    return schedule.program.outer is not None and has_sums and fits


def most_sums(schedule: Schedule) -> int:
    return max(len(schedule.sums(stage)) for stage in range(schedule.stages))


def places_of_rows(schedule: Schedule) -> list[Value]:
    """What has a value for each row of a group in scratch memory."""
    of_outputs = [slot.value for slot in schedule.outputs if slot.level == ROW]
    return list(dict.fromkeys([*schedule.scalars(ROW), *of_outputs]))


def bytes_of_group(schedule: Schedule, layout: Layout, lanes: int) -> int:
    """Bytes of scratch memory besides kept values: a stage's chains, the values of rows, and where rows begin."""
    vectors = most_sums(schedule) * lanes + len(places_of_rows(schedule))
    return SIZES[FLOAT64] * lanes * (vectors + len(layout.strides) * (layout.rows > 1))


class Groups(Stages):
    def grouped(self) -> Function:
        writer, schedule = self.writer, self.schedule
        self.columns = self.layout.columns
        self.column_count = self.size[self.axes[-1]] = Constant(self.columns, INT64)
        self.row_values = schedule.scalars(ROW)
        # Of each row they are loaded where its elements are computed.
        of_elements = [v for value in schedule.values if schedule.level[value] == ELEMENT for v in value.operands]
        of_elements += [slot.value for slot in schedule.outputs if slot.level == ELEMENT or slot.is_column_sum]
        of_elements += [value.operands[0] for value in schedule.values if value.op in REDUCTIONS]
        self.needed = [value for value in self.row_values if value in of_elements]
        self.all_kept = self.advance(
            SCRATCH, "uint8", Constant(bytes_of_group(schedule, self.layout, self.lanes), INT64), "kept"
        )
        most = rows_of_group(schedule, self.layout, self.lanes)
        outer = Odometer(self, range(self.layout.rows), BEGIN, self.base)
        summed = self.count_summed()
        with writer.loop(BEGIN, END, most, name="first") as first:
            rows = writer.index("min", most, writer.index("-", END, first), "rows")
            self.mask = writer.let("mask", BOOLEAN, rows, lanes=self.lanes, name="mask")
            if self.layout.rows == 1:
                self.first = self.advanced(self.base, 0, first)
            else:
                with writer.loop(0, rows, 1, name="row") as row:
                    self.put_offsets(outer, row)
            self.group(rows)
            if summed is not None:
                self.settle_after(summed, most, writer.index("+", first, most))
        return self.function

    def put_offsets(self, outer: Odometer, row: Operand) -> None:
        """Rows of several axes: where each begins, and the values of rows that it is given."""
        for index, offset in outer.offsets.items():
            self.writer.body.append(Store(self.writer.get(offset), self.offsets_at(index), row, INT64))
        pointers = outer.pointers()
        for value in self.given():
            self.compute(value, pointers)
            self.writer.body.append(Store(self.known.pop(value), self.row_at(value), row, value.type))
        outer.step()

    def given(self) -> list[Value]:
        return [value for value in self.row_values if value.op == "input"]

    def pointers_of(self, row: Operand) -> dict[int, Ref]:
        """The addresses of a row of the group."""
        if self.layout.rows == 1:
            return self.advanced(self.first, 0, row)
        found = dict(self.base)
        for slot in self.slots:
            if any(stride != BROADCAST for stride in self.layout.strides[slot.index][: self.layout.rows]):
                offset = self.writer.let("load", INT64, self.offsets_at(slot.index), row, attribute=INT64)
                found[slot.index] = self.advance(self.base[slot.index], slot.kind, offset, slot.name)
        return found

    def group(self, rows: Operand) -> None:
        schedule, numbers = self.schedule, dict(self.known)
        self.of_rows: dict[Value, Operand] = {}
        for stage in range(schedule.stages):
            for value in schedule.scalars(ROW, stage):
                if value not in self.of_rows:
                    self.put_row(value, self.row_vector(value))
            sums = schedule.sums(stage)
            if self.has_column_sums(stage):

                def enter(row: Operand) -> dict[int, Ref]:
                    self.enter(row, numbers)
                    return self.pointers_of(row)

                self.run_column_sums(stage, rows, enter, settles=False)
            elif sums or schedule.stores(stage) or schedule.keeps(stage):
                with self.writer.loop(0, rows, 1, name="row") as row:
                    self.run_row(stage, self.pointers_of(row), row, numbers)
                self.known = numbers
            self.clear_chains(sums, rows)
            for value in sums:
                self.put_row(value, self.total(value))
        self.put_outputs(rows)

    def run_row(self, stage: int, pointers: dict[int, Ref], row: Operand, numbers: dict[Value, Operand]) -> None:
        writer, schedule = self.writer, self.schedule
        self.enter(row, numbers)
        sums = {value: Sum(value, self.new_chains(value)) for value in schedule.sums(stage)}
        self.run(stage, Position(pointers, Constant(0, INT64), self.column_count), sums)
        for value, each in sums.items():
            chains = [writer.get(chain) for chain in each.chains]
            while len(chains) > 1:
                chains = [self.combined(value.op, *chains[k : k + 2]) for k in range(0, len(chains), 2)]
            (lanes,) = chains
            writer.body.append(Store(lanes, self.chains_at(value), writer.index("*", row, self.lanes), lanes.type))

    def enter(self, row: Operand, numbers: dict[Value, Operand]) -> None:
        """Makes a row's values known, and its memory of kept values."""
        self.known = numbers | {value: self.load_row(value, row, 0) for value in self.needed if value in self.of_rows}
        if self.schedule.kept:
            each = (self.columns + SLACK) * self.schedule.bytes_of_column
            self.kept_base = self.advance(self.all_kept, "uint8", self.writer.index("*", row, each), "kept")

    def clear_chains(self, sums: Sequence[Value], rows: Operand) -> None:
        """Those of rows that a group lacks. Their memory may be subnormal numbers, with which sums take long."""
        if not sums:
            return
        with self.writer.loop(rows, Constant(self.lanes, INT64), 1, name="row") as row:
            for value in sums:
                type = FLOAT64 if value.op == "sum_float64" else value.type
                zero = Constant(False if type == BOOLEAN else 0.0 if type in FLOATING else 0, type, self.lanes)
                place = self.writer.index("*", row, self.lanes)
                self.writer.body.append(Store(zero, self.chains_at(value), place, type))

    def total(self, value: Value) -> Ref:
        """A reduction's results in all rows of the group."""
        is_wide = value.op == "sum_float64"
        op, given = ("sum", FLOAT64) if is_wide else (value.op, value.type)
        type = FLOAT64 if is_wide else total_type(op, given)
        name = self.schedule.name(value)
        total = self.writer.let("fold_rows", type, self.chains_at(value), lanes=self.lanes, attribute=(op, given))
        if is_wide:
            return self.of_quarters(total)
        total = self.combined(op, Constant(identity(op, type), type, self.lanes), total)
        if type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, lanes=self.lanes, name=name)

    def row_vector(self, value: Value) -> Operand:
        writer, name, zero = self.writer, self.schedule.name(value), Constant(0, INT64)
        if value.op == "input" and self.layout.rows > 1:
            return self.load_row(value, zero, self.lanes)
        if value.op == "input":
            slot = self.schedule.inputs[value.attribute]
            pointer, of_row = self.first[slot.index], self.layout.strides[slot.index][0]
            if of_row == BROADCAST:
                return self.splat(writer.let("load", value.type, pointer, zero, attribute=slot.kind, name=name), value)
            op, stride = ("load", ()) if of_row == UNIT else ("load_strided", (self.strides[slot.index, 0],))
            place = (pointer, zero, self.mask, *stride)
            return writer.let(op, value.type, *place, lanes=self.lanes, attribute=slot.kind, name=name)
        operands = [self.row_operand(operand) for operand in value.operands]
        return writer.let(value.op, value.type, *operands, lanes=self.lanes, name=name)

    def row_operand(self, value: Value) -> Operand:
        if self.schedule.level[value] == NUMBER:
            return self.splat(self.scalar(value), value)
        return self.of_rows[value]

    def put_row(self, value: Value, vector: Operand) -> None:
        self.of_rows[value] = vector
        if value in self.needed:
            self.writer.body.append(Store(vector, self.row_at(value), Constant(0, INT64), value.type))

    def put_outputs(self, rows: Operand) -> None:
        """Without a mask if the group is full: masked stores are slow on some processors."""
        writer = self.writer
        slots = [slot for slot in self.schedule.outputs if slot.level == ROW]
        if not slots:
            return None
        if self.layout.rows > 1:
            for value in dict.fromkeys(slot.value for slot in slots):
                writer.body.append(Store(self.row_operand(value), self.row_at(value), Constant(0, INT64), value.type))
            with writer.loop(0, rows, 1, name="row") as row:
                pointers = self.pointers_of(row)
                for slot in slots:
                    number = self.load_row(slot.value, row, 0)
                    writer.body.append(Store(number, pointers[slot.index], Constant(0, INT64), slot.kind))
            return None
        if rows_of_group(self.schedule, self.layout, self.lanes) < self.lanes:
            return self.store_vectors(slots, self.mask)
        lanes = Constant(self.lanes, INT64)
        for op, mask in (("equal", None), ("<", self.mask)):
            with writer.when(writer.let(op, BOOLEAN, rows, lanes)):
                self.store_vectors(slots, mask)
        return None

    def store_vectors(self, slots: list[Slot], mask: Ref | None) -> None:
        for slot in slots:
            stride = None if self.layout.strides[slot.index][0] == UNIT else self.strides[slot.index, 0]
            place = (self.first[slot.index], Constant(0, INT64))
            self.writer.body.append(Store(self.row_operand(slot.value), *place, slot.kind, mask, stride))

    # Scratch memory: a stage's chains, a vector of each row, and the values of rows.

    def chains_at(self, value: Value) -> Ref:
        order = self.schedule.sums(self.schedule.stage[value] - 1).index(value)
        return self.scratch(order * self.lanes, f"{self.schedule.name(value)}_chains")

    def load_row(self, value: Value, row: Operand, lanes: int) -> Ref:
        """The value of a row, or of as many rows from there on as there are lanes."""
        name = self.schedule.name(value)
        return self.writer.let(
            "load", value.type, self.row_at(value), row, lanes=lanes, attribute=value.type, name=name
        )

    def row_at(self, value: Value) -> Ref:
        order = most_sums(self.schedule) * self.lanes + places_of_rows(self.schedule).index(value)
        return self.scratch(order, f"{self.schedule.name(value)}_rows")

    def offsets_at(self, index: int) -> Ref:
        places = most_sums(self.schedule) * self.lanes + len(places_of_rows(self.schedule))
        return self.scratch(places + index, "offsets")

    def scratch(self, order: int, name: str) -> Ref:
        return self.advance(SCRATCH, "uint8", Constant(SIZES[FLOAT64] * self.lanes * order, INT64), name)

    def vectors(self, count: Operand, copies: int, body: Body) -> None:
        """As in any row, but the columns' number is known: without a loop if it would be short, and with a constant
        mask."""
        lanes, columns = self.lanes, self.columns
        step, whole = lanes * copies, columns // lanes * lanes
        main = columns // step * step

        def write(k: Operand) -> None:
            body([self.writer.index("+", k, copy * lanes) for copy in range(copies)], None, None)

        if main > UNROLLED * step:
            with self.writer.loop(0, Constant(main, INT64), step) as k:
                write(k)
        else:
            for k in range(0, main, step):
                write(Constant(k, INT64))
        for k in range(main, whole, lanes):
            body([Constant(k, INT64)], None, Constant((k - main) // lanes, INT64))
        if columns > whole:
            mask = self.writer.let("mask", BOOLEAN, Constant(columns - whole, INT64), lanes=lanes, name="mask")
            body([Constant(whole, INT64)], mask, Constant(CHAINS - 1, INT64))
