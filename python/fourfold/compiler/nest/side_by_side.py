"""Rows that are adjacent in memory, as in a reduction over channels: a vector holds one column of many rows, and a
stage loops over the columns."""

from __future__ import annotations

from fourfold.compiler.dtypes import FLOAT32, FLOAT64, INT64
from fourfold.compiler.ir import Value
from fourfold.compiler.nest.builder import CHAINS, SLACK
from fourfold.compiler.nest.layout import BROADCAST, UNIT
from fourfold.compiler.nest.loops import SCRATCH, Constant, Function, Operand, Ref, Store
from fourfold.compiler.nest.plan import ELEMENT, NUMBER, ROW, SIZES, Slot, identity, total_type
from fourfold.compiler.nest.short_rows import ShortRows

Known = dict[Value, Operand]


class SideBySide(ShortRows):
    """A reduction adds up each lane's row in the order of a row on its own: a block's columns go to the lanes of four
    chains in turn. Each lane of a chain is a vector in scratch memory here."""

    def side_by_side(self) -> Function:
        self.kept_base = self.behind_blocks()
        return self.short_rows()

    def find_fixed(self) -> None:
        """Finds none: values that are the same in all rows differ from column to column."""

    def run_vector(self, k: Operand, mask: Ref | None) -> None:
        known: Known = {}
        masks = () if mask is None else (mask,)
        for stage in range(self.plan.stages):
            for value in self.plan.scalars(ROW, stage):
                if value not in known:
                    known[value] = self.row_vector(value, known, k, masks)
            known |= self.run_stage(stage, known, k, masks)
        for slot in self.plan.outputs:
            if slot.level == ROW:
                self.put(slot, self.vector_of(slot.value, known), Constant(0, INT64), k, masks)

    def row_vector(self, value: Value, known: Known, k: Operand, masks: tuple[Ref, ...]) -> Operand:
        if value.op == "input":
            return self.load(value, Constant(0, INT64), k, masks)
        operands = [self.vector_of(operand, known) for operand in value.operands]
        return self.writer.let(value.op, value.type, *operands, lanes=self.lanes, name=self.plan.name(value))

    def vector_of(self, value: Value, known: Known) -> Operand:
        return self.splat(self.scalar(value), value) if self.plan.level[value] == NUMBER else known[value]

    def run_stage(self, stage: int, known: Known, k: Operand, masks: tuple[Ref, ...]) -> Known:
        """Runs a stage; returns its reductions' results."""
        writer, plan = self.writer, self.plan
        sums = plan.sums(stage)
        if not sums:
            if plan.stores(stage) or plan.keeps(stage):
                with writer.loop(0, self.column_count, 1, name="column") as column:
                    self.run_column(stage, known, column, k, masks)
            return {}
        totals = {}
        for value in sums:
            type = total_type(value.op, value.type)
            first = Constant(identity(value.op, type), type, self.lanes)
            totals[value] = writer.variable(type, first, self.lanes, name=f"{plan.name(value)}_total")
        with writer.loop(0, self.column_count, self.block, name="start") as start:
            count = writer.index("min", self.block, writer.index("-", self.column_count, start), "count")
            self.clear(sums)
            whole = writer.index("*", writer.index("/", count, self.lanes), self.lanes, "whole")
            with writer.loop(0, whole, 1, name="column") as column:
                place = writer.index("%", column, CHAINS * self.lanes)
                self.run_column(stage, known, writer.index("+", start, column), k, masks, place)
            with writer.loop(whole, count, 1, name="column") as column:
                place = writer.index("+", writer.index("-", column, whole), (CHAINS - 1) * self.lanes)
                self.run_column(stage, known, writer.index("+", start, column), k, masks, place)
            for value in sums:
                total = totals[value]
                writer.assign(total, self.combined(value.op, writer.get(total), self.folded(value)))
        return {value: self.total_in_type(value, writer.get(total)) for value, total in totals.items()}

    def total_in_type(self, value: Value, total: Ref) -> Ref:
        if total.type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, lanes=self.lanes, name=self.plan.name(value))

    # A block's partial results.

    def chains(self, value: Value) -> Ref:
        """The address of a reduction's chains."""
        order = self.plan.sums(self.plan.stage[value] - 1).index(value)
        size = CHAINS * self.lanes * self.lanes * SIZES[FLOAT64]
        return self.advance(SCRATCH, "uint8", Constant(order * size, INT64), f"{self.plan.name(value)}_chains")

    def clear(self, sums: list[Value]) -> None:
        for value in sums:
            first = Constant(identity(value.op, value.type), value.type, self.lanes)
            with self.writer.loop(0, Constant(CHAINS * self.lanes, INT64), 1, name="place") as place:
                offset = self.writer.index("*", place, self.lanes)
                self.writer.body.append(Store(first, self.chains(value), offset, value.type))

    def accumulate_at(self, value: Value, vector: Operand, place: Operand) -> None:
        pointer, offset = self.chains(value), self.writer.index("*", place, self.lanes)
        old = self.writer.let("load", value.type, pointer, offset, lanes=self.lanes, attribute=value.type)
        self.writer.body.append(Store(self.combined(value.op, old, vector), pointer, offset, value.type))

    def folded(self, value: Value) -> Operand:
        """Folds as a vector of chains is folded: the chains, and then their lanes by halves."""
        pointer, type = self.chains(value), total_type(value.op, value.type)

        def chain(number: int, lane: int) -> Ref:
            offset = Constant((number * self.lanes + lane) * self.lanes, INT64)
            return self.writer.let("load", value.type, pointer, offset, lanes=self.lanes, attribute=value.type)

        lanes: list[Operand] = []
        for lane in range(self.lanes):
            pairs = [self.combined(value.op, chain(n, lane), chain(n + 1, lane)) for n in (0, 2)]
            lanes.append(self.combined(value.op, *pairs))
        if (value.type, type) == (FLOAT32, FLOAT64):
            lanes = [self.writer.let("to_float64", type, vector, lanes=self.lanes) for vector in lanes]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self.combined(value.op, lanes[n], lanes[n + half]) for n in range(half)]
        return lanes[0]

    # One column.

    def run_column(
        self,
        stage: int,
        known: Known,
        column: Operand,
        k: Operand,
        masks: tuple[Ref, ...],
        place: Operand | None = None,
    ) -> None:
        """place: the lane of the chains to which its reductions add."""
        own = dict(known)
        for value in self.plan.elements(stage):
            if value.op == "input":
                own[value] = self.load(value, column, k, masks)
            elif self.plan.is_loaded(value, stage):
                own[value] = self.writer.let(
                    "load", value.type, *self.kept_at(value, column),
                    lanes=self.lanes, attribute=value.type, name=self.plan.name(value),
                )  # fmt: skip
            else:
                operands = [self.vector_of(operand, own) for operand in value.operands]
                own[value] = self.writer.let(
                    value.op, value.type, *operands, lanes=self.lanes, name=self.plan.name(value)
                )
        for value in self.plan.sums(stage):
            self.accumulate_at(value, self.vector_of(value.operands[0], own), place)
        for value in self.plan.keeps(stage):
            self.writer.body.append(Store(own[value], *self.kept_at(value, column), value.type))
        for slot in self.plan.stores(stage):
            self.put(slot, self.vector_of(slot.value, own), column, k, masks)

    def kept_at(self, value: Value, column: Operand) -> tuple[Ref, Operand]:
        each = self.writer.index("*", self.writer.index("+", self.column_count, SLACK), self.lanes)
        offset = self.writer.index("*", each, self.plan.kept[value])
        pointer = self.advance(self.kept_base, "uint8", offset, f"{self.plan.name(value)}_kept")
        return pointer, self.writer.index("*", column, self.lanes)

    def load(self, value: Value, column: Operand, k: Operand, masks: tuple[Ref, ...]) -> Operand:
        slot, name = self.plan.inputs[value.attribute], self.plan.name(value)
        pointer, of_row = self.place_of(slot, column)
        if of_row == BROADCAST:
            scalar = self.writer.let("load", value.type, pointer, Constant(0, INT64), attribute=slot.kind, name=name)
            return self.splat(scalar, value)
        stride = () if of_row == UNIT else (self.strides[slot.index, self.axis],)
        op = "load_strided" if stride else "load"
        return self.writer.let(
            op, value.type, pointer, k, *masks, *stride, lanes=self.lanes, attribute=slot.kind, name=name
        )

    def put(self, slot: Slot, vector: Operand, column: Operand, k: Operand, masks: tuple[Ref, ...]) -> None:
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
