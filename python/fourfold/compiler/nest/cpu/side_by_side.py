"""Rows that are adjacent in memory, as in a reduction over channels: a vector holds one column of many rows, and a
stage loops over the columns of several vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64, INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import CHAINS, REDUCTION_BLOCK, ROWS_TOGETHER, SLACK
from fourfold.compiler.nest.cpu.short_rows import ShortRows
from fourfold.compiler.nest.cpu.vectors import Sum, copies_of
from fourfold.compiler.nest.ir.layout import BROADCAST, UNIT
from fourfold.compiler.nest.ir.loops import SCRATCH, Constant, Function, Operand, Prefetch, Ref, Store
from fourfold.compiler.nest.ir.schedule import ELEMENT, NUMBER, ROW, SIZES, Slot, identity, total_type

Known = dict[Value, Operand]
Masks = tuple[Ref, ...]

# Columns whose memory is fetched before it is read: hardware doesn't predict the jumps from column to column.
AHEAD = 16
MOST_REPEATED = 8  # operations on elements whose code is repeated, so that sums are in registers


class SideBySide(ShortRows):
    """A reduction adds up each lane's row in the order of a row on its own: a block's columns go to the lanes of four
    chains in turn. Each lane of a chain is a vector in scratch memory here, and so are a row's values.

    Each pass over the columns is for many rows: columns lie on different pages, and if they are a large power of two
    apart, in the same few sets of the caches."""

    def side_by_side(self) -> Function:
        self.row_values = self.schedule.scalars(ROW)
        self.most_sums = max(len(self.schedule.sums(stage)) for stage in range(self.schedule.stages))
        self.kept_base = self.kept_values()
        return self.short_rows()

    def run_rows(self, pointers: dict[int, Ref], count: Operand) -> None:
        writer, lanes, self.axis = self.writer, self.lanes, self.layout.rows - 1
        with writer.loop(0, count, ROWS_TOGETHER, name="first") as first:
            self.pointers = self.advanced(pointers, self.axis, first)
            self.rows = writer.index("min", writer.index("-", count, first), ROWS_TOGETHER, "rows")
            self.whole = writer.index("*", writer.index("/", self.rows, lanes), lanes, "whole")
            left = writer.index("-", self.rows, self.whole)
            self.mask = writer.let("mask", BOOLEAN, left, lanes=lanes, name="mask")
            # The distance between columns in scratch memory: the rows in whole vectors.
            vectors = writer.index("/", writer.index("+", self.rows, lanes - 1), lanes)
            self.distance = writer.index("*", vectors, lanes, "distance")
            for stage in range(self.schedule.stages):
                self.each_vector(functools.partial(self.run_row_values, stage))
                self.run_stage(stage)
            self.each_vector(self.put_rows)

    def each_vector(self, write: Callable[[Operand, Masks], None]) -> None:
        """write(k, masks) writes the code for the vector of rows that begins at k."""
        with self.writer.loop(0, self.whole, self.lanes) as k:
            write(k, ())
        with self.writer.loop(self.whole, self.rows, self.lanes) as k:
            write(k, (self.mask,))

    # Values of rows.

    def run_row_values(self, stage: int, k: Operand, masks: Masks) -> None:
        known: Known = {}
        for value in self.schedule.scalars(ROW, stage):
            known[value] = self.row_vector(value, known, k, masks)
            self.writer.body.append(Store(known[value], *self.row_at(value, k), value.type))

    def row_vector(self, value: Value, known: Known, k: Operand, masks: Masks) -> Operand:
        if value.op == "input":
            return self.load(value, Constant(0, INT64), k, masks)
        if value in self.schedule.sums(self.schedule.stage[value] - 1):
            return self.total_in_type(
                value, self.load_scratch(total_type(value.op, value.type), *self.total_at(value, k))
            )
        operands = [self.vector_of(operand, known, k) for operand in value.operands]
        return self.writer.let(value.op, value.type, *operands, lanes=self.lanes, name=self.schedule.name(value))

    def vector_of(self, value: Value, known: Known, k: Operand) -> Operand:
        if value not in known and self.schedule.level[value] == ROW:
            known[value] = self.load_scratch(value.type, *self.row_at(value, k), self.schedule.name(value))
        return self.splat(self.scalar(value), value) if self.schedule.level[value] == NUMBER else known[value]

    def total_in_type(self, value: Value, total: Ref) -> Ref:
        if total.type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, lanes=self.lanes, name=self.schedule.name(value))

    def put_rows(self, k: Operand, masks: Masks) -> None:
        known: Known = {}
        for slot in self.schedule.outputs:
            if slot.level == ROW:
                self.put(slot, self.vector_of(slot.value, known, k), Constant(0, INT64), k, masks)

    # Scratch memory: the chains of a stage's reductions, their totals, and the values of rows.

    def load_scratch(self, type: str, pointer: Ref, offset: Operand, name: str = "t") -> Ref:
        return self.writer.let("load", type, pointer, offset, lanes=self.lanes, attribute=type, name=name)

    def scratch(self, order: int, name: str) -> Ref:
        """The address of the part of that number. A part holds a value of at most 8 bytes for each row."""
        bytes = order * ROWS_TOGETHER * SIZES[FLOAT64]
        return self.advance(SCRATCH, "uint8", Constant(bytes, INT64), name)

    def chains(self, value: Value) -> Ref:
        order = self.schedule.sums(self.schedule.stage[value] - 1).index(value)
        return self.scratch(order * (CHAINS * self.lanes + 1), f"{self.schedule.name(value)}_chains")

    def chain_at(self, value: Value, place: Operand | int, k: Operand) -> tuple[Ref, Operand]:
        """place: the lane of the chains."""
        first = self.writer.index("*", place, ROWS_TOGETHER)
        return self.chains(value), self.writer.index("+", first, k)

    def total_at(self, value: Value, k: Operand) -> tuple[Ref, Operand]:
        order = self.schedule.sums(self.schedule.stage[value] - 1).index(value)
        return self.scratch((order + 1) * (CHAINS * self.lanes + 1) - 1, f"{self.schedule.name(value)}_total"), k

    def row_at(self, value: Value, k: Operand) -> tuple[Ref, Operand]:
        order = self.most_sums * (CHAINS * self.lanes + 1) + self.row_values.index(value)
        return self.scratch(order, f"{self.schedule.name(value)}_rows"), k

    def kept_at(self, value: Value, column: Operand, k: Operand) -> tuple[Ref, Operand]:
        each = self.writer.index("*", self.writer.index("+", self.column_count, SLACK), self.distance)
        offset = self.writer.index("*", each, self.schedule.kept[value])
        pointer = self.advance(self.kept_base, "uint8", offset, f"{self.schedule.name(value)}_kept")
        return pointer, self.writer.index("+", self.writer.index("*", column, self.distance), k)

    # A stage.

    def run_stage(self, stage: int) -> None:
        writer, schedule = self.writer, self.schedule
        sums = schedule.sums(stage)
        if not sums:
            if schedule.stores(stage) or schedule.keeps(stage):
                with writer.loop(0, self.column_count, 1, name="column") as column:
                    self.run_column(stage, column)
            return
        for value in sums:
            type = total_type(value.op, value.type)
            self.fill(value.op, type, self.total_at(value, Constant(0, INT64))[0], 1)
        with writer.loop(0, self.column_count, REDUCTION_BLOCK, name="start") as start:
            count = writer.index("min", REDUCTION_BLOCK, writer.index("-", self.column_count, start), "count")
            if self.in_registers(stage):
                with writer.loop(0, Constant(self.lanes, INT64), 1, name="lane") as lane:
                    self.each_vector(functools.partial(self.run_lane, stage, start, count, lane))
            else:
                self.run_columns(stage, start, count)
            for value in sums:
                with writer.loop(0, self.rows, self.lanes) as k:
                    self.add_block(value, k)

    def in_registers(self, stage: int) -> bool:
        """Whether a lane's chains are computed at once, in registers: the code of short stages is repeated."""
        are_wide = all(value.op == "sum_float64" or value.type == FLOAT64 for value in self.schedule.sums(stage))
        is_short = copies_of(self.schedule, stage) > 2 and len(self.schedule.elements(stage)) <= MOST_REPEATED
        return self.layout.has_few_columns and are_wide and is_short

    def run_lane(self, stage: int, start: Operand, count: Operand, lane: Operand, k: Operand, masks: Masks) -> None:
        """The sums of one lane in one vector of rows, of this many columns from start on."""
        writer, sums, lanes = self.writer, self.schedule.sums(stage), self.lanes
        fours = writer.index("*", writer.index("/", count, CHAINS * lanes), CHAINS * lanes, "fours")
        whole = writer.index("*", writer.index("/", count, lanes), lanes, "whole")
        self.held = {value: Sum(value, self.new_chains(value)) for value in sums}

        def add(column: Operand, copy: int, chain: Operand | None) -> None:
            self.turn = copy, chain
            self.run_vector_of_column(stage, writer.index("+", start, column), None, {}, k, masks)

        with writer.loop(lane, fours, CHAINS * lanes, name="column") as column:
            for chain in range(CHAINS):
                add(writer.index("+", column, chain * lanes), chain, None)
        with writer.loop(writer.index("+", fours, lane), whole, lanes, name="column") as column:
            add(column, 0, writer.index("/", writer.index("-", column, fours), lanes, "chain"))
        with writer.when(writer.let("<", BOOLEAN, lane, writer.index("-", count, whole))):
            add(writer.index("+", whole, lane), 0, Constant(CHAINS - 1, INT64))
        for value, each in self.held.items():
            vectors = [writer.get(chain) for chain in each.chains]
            while len(vectors) > 1:
                vectors = [self.combined(value.op, *vectors[n : n + 2]) for n in range(0, len(vectors), 2)]
            writer.body.append(Store(vectors[0], *self.lane_at(value, lane, k), vectors[0].type))

    def lane_at(self, value: Value, lane: Operand | int, k: Operand) -> tuple[Ref, Operand]:
        return self.chains(value), self.writer.index("+", self.writer.index("*", lane, ROWS_TOGETHER), k)

    def run_columns(self, stage: int, start: Operand, count: Operand) -> None:
        """Adds up this many columns from start on."""
        writer, sums, group = self.writer, self.schedule.sums(stage), CHAINS * self.lanes
        wide = [value for value in sums if value.op == "sum_float64"]
        is_short = writer.let("<", BOOLEAN, count, Constant(group, INT64))
        for value in wide:
            self.fill(value.op, FLOAT64, self.wide_chain(value), self.lanes)
        if len(wide) < len(sums):
            with writer.when(is_short):
                for value in sums:
                    if value not in wide:
                        self.fill(value.op, value.type, self.chains(value), group)
        # The columns before `first` store to their places, to which the others are added.
        zero = Constant(0, INT64)
        first = writer.let("select", INT64, is_short, zero, Constant(group, INT64), name="first")
        whole = writer.index("*", writer.index("/", count, self.lanes), self.lanes, "whole")
        fours = writer.index("*", writer.index("/", count, group), group, "fours") if wide else count
        with writer.loop(0, count, 1, name="column") as column:
            own = writer.index("%", column, group)
            left = writer.index("+", writer.index("-", column, whole), group - self.lanes)
            is_whole = writer.let("<", BOOLEAN, column, whole)
            place = writer.let("select", INT64, is_whole, own, left, name="place")
            self.is_first = writer.let("<", BOOLEAN, column, first)
            self.is_left = writer.let("<", BOOLEAN, fours, writer.index("+", column, 1)) if wide else None
            self.run_column(stage, writer.index("+", start, column), place)
            if wide:
                with writer.when(writer.let("equal", BOOLEAN, own, Constant(group - 1, INT64))):
                    for value in wide:
                        self.add_fours(value)

    def fill(self, op: str, type: str, pointer: Ref, places: int) -> None:
        first = Constant(identity(op, type), type, self.lanes)
        with self.writer.loop(0, Constant(places, INT64), 1, name="place") as place:
            of_place = self.writer.index("*", place, ROWS_TOGETHER)
            with self.writer.loop(0, self.rows, self.lanes) as k:
                self.writer.body.append(Store(first, pointer, self.writer.index("+", of_place, k), type))

    def add_block(self, value: Value, k: Operand) -> None:
        """Adds what a block's chains hold to the total."""
        type = total_type(value.op, value.type)
        total = self.load_scratch(type, *self.total_at(value, k))
        new = self.combined(value.op, total, self.folded(value, k))
        self.writer.body.append(Store(new, *self.total_at(value, k), type))

    def accumulate_at(self, value: Value, vector: Operand, place: Operand | None, k: Operand) -> None:
        """place: None if the chains are in registers."""
        if place is None:
            copy, chain = self.turn
            self.accumulate(self.held[value], vector, None, copy, chain)
            return
        writer, (pointer, offset) = self.writer, self.chain_at(value, place, k)
        if value.op == "sum_float64":
            part = self.quarter(vector)
            writer.body.append(Store(part, pointer, offset, FLOAT32))
            with writer.when(self.is_left):
                lane = writer.index("*", writer.index("%", place, self.lanes), ROWS_TOGETHER)
                at = self.wide_chain(value), writer.index("+", lane, k)
                total = self.combined("sum", self.load_scratch(FLOAT64, *at), self.wide(part))
                writer.body.append(Store(total, *at, FLOAT64))
            return
        old = self.load_scratch(value.type, pointer, offset)
        new = writer.let(
            "select", value.type, self.is_first, vector, self.combined(value.op, old, vector), lanes=self.lanes
        )
        writer.body.append(Store(new, pointer, offset, value.type))

    # sum_float64: as many float32 places as chains have lanes hold the columns that are added next.

    def wide_chain(self, value: Value) -> Ref:
        """The address of the sum of each lane, behind these places."""
        offset = Constant(CHAINS * self.lanes * ROWS_TOGETHER, INT64)
        return self.advance(self.chains(value), FLOAT32, offset, f"{self.schedule.name(value)}_wide")

    def add_fours(self, value: Value) -> None:
        """Adds what the places hold, four at a time, to the sums of the lanes."""
        with self.writer.loop(0, self.rows, self.lanes) as k:
            for lane in range(self.lanes):
                held = [self.chain_at(value, chain * self.lanes + lane, k) for chain in range(CHAINS)]
                offset = self.writer.index("+", k, lane * ROWS_TOGETHER)
                part = self.four([self.load_scratch(FLOAT32, *place) for place in held])
                total = self.load_scratch(FLOAT64, self.wide_chain(value), offset)
                total = self.combined("sum", total, self.wide(part))
                self.writer.body.append(Store(total, self.wide_chain(value), offset, FLOAT64))

    def folded(self, value: Value, k: Operand) -> Operand:
        """Folds as a vector of chains is folded: the chains, and then their lanes by halves."""
        type = total_type(value.op, value.type)
        if self.in_registers(self.schedule.stage[value] - 1):
            own = FLOAT64 if value.op == "sum_float64" else value.type
            lanes = [self.load_scratch(own, *self.lane_at(value, lane, k)) for lane in range(self.lanes)]
            if own != type:
                lanes = [self.writer.let(f"to_{type}", type, vector, lanes=self.lanes) for vector in lanes]
            total = self.halved(value.op, lanes)
            return self.of_quarters(total) if value.op == "sum_float64" else total
        if value.op == "sum_float64":
            places = [self.writer.index("+", k, lane * ROWS_TOGETHER) for lane in range(self.lanes)]
            sums = [self.load_scratch(FLOAT64, self.wide_chain(value), place) for place in places]
            return self.of_quarters(self.halved(value.op, sums))

        def chain(number: int, lane: int) -> Ref:
            return self.load_scratch(value.type, *self.chain_at(value, number * self.lanes + lane, k))

        lanes: list[Operand] = []
        for lane in range(self.lanes):
            pairs = [self.combined(value.op, chain(n, lane), chain(n + 1, lane)) for n in (0, 2)]
            lanes.append(self.combined(value.op, *pairs))
        if (value.type, type) == (FLOAT32, FLOAT64):
            lanes = [self.writer.let("to_float64", type, vector, lanes=self.lanes) for vector in lanes]
        return self.halved(value.op, lanes)

    def halved(self, op: str, lanes: list[Operand]) -> Operand:
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self.combined(op, lanes[n], lanes[n + half]) for n in range(half)]
        return lanes[0]

    # One column.

    def run_column(self, stage: int, column: Operand, place: Operand | None = None) -> None:
        """place: the lane of the chains to which its reductions add."""
        same: Known = {}  # in all rows
        for value in self.schedule.elements(stage):
            if self.is_same(value, stage, same):
                same[value] = self.element(value, stage, column, same, Constant(0, INT64), ())
        self.each_vector(functools.partial(self.run_vector_of_column, stage, column, place, same))

    def is_same(self, value: Value, stage: int, same: Known) -> bool:
        if value.op == "input":
            return self.layout.strides[value.attribute][self.axis] == BROADCAST
        is_loaded = self.schedule.is_loaded(value, stage)
        return not is_loaded and all(v in same or self.schedule.level[v] == NUMBER for v in value.operands)

    def run_vector_of_column(
        self, stage: int, column: Operand, place: Operand | None, same: Known, k: Operand, masks: Masks
    ) -> None:
        own = dict(same)
        for value in self.schedule.elements(stage):
            if value not in own:
                own[value] = self.element(value, stage, column, own, k, masks)
        for value in self.schedule.sums(stage):
            self.accumulate_at(value, self.vector_of(value.operands[0], own, k), place, k)
        for value in self.schedule.keeps(stage):
            self.writer.body.append(Store(own[value], *self.kept_at(value, column, k), value.type))
        for slot in self.schedule.stores(stage):
            self.put(slot, self.vector_of(slot.value, own, k), column, k, masks)

    def element(self, value: Value, stage: int, column: Operand, known: Known, k: Operand, masks: Masks) -> Operand:
        name = self.schedule.name(value)
        if value.op == "input":
            return self.load(value, column, k, masks)
        if self.schedule.is_loaded(value, stage):
            return self.load_scratch(value.type, *self.kept_at(value, column, k), name)
        operands = [self.vector_of(operand, known, k) for operand in value.operands]
        return self.writer.let(value.op, value.type, *operands, lanes=self.lanes, name=name)

    def load(self, value: Value, column: Operand, k: Operand, masks: Masks) -> Operand:
        slot, name = self.schedule.inputs[value.attribute], self.schedule.name(value)
        pointer, of_row = self.place_of(slot, column)
        if of_row == BROADCAST:
            scalar = self.writer.let("load", value.type, pointer, Constant(0, INT64), attribute=slot.kind, name=name)
            return self.splat(scalar, value)
        stride = () if of_row == UNIT else (self.strides[slot.index, self.axis],)
        if of_row == UNIT and slot.level == ELEMENT:
            ahead = self.writer.index("*", self.strides[slot.index, self.axes[-1]], AHEAD)
            self.writer.body.append(Prefetch(pointer, self.writer.index("+", ahead, k), slot.kind))
        op = "load_strided" if stride else "load"
        return self.writer.let(
            op, value.type, pointer, k, *masks, *stride, lanes=self.lanes, attribute=slot.kind, name=name
        )

    def put(self, slot: Slot, vector: Operand, column: Operand, k: Operand, masks: Masks) -> None:
        pointer, of_row = self.place_of(slot, column)
        stride = None if of_row == UNIT else self.strides[slot.index, self.axis]
        self.writer.body.append(Store(vector, pointer, k, slot.kind, masks[0] if masks else None, stride))

    def place_of(self, slot: Slot, column: Operand) -> tuple[Ref, str]:
        """A column's address in the first row, and the class of the stride from row to row."""
        pointer = self.pointers[slot.index]
        if slot.level == ELEMENT:
            offset = self.writer.index("*", column, self.strides[slot.index, self.axes[-1]])
            pointer = self.advance(pointer, slot.kind, offset, slot.name)
        return pointer, self.layout.strides[slot.index][self.axis]
