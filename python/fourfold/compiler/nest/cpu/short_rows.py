"""Rows of few columns: a vector holds one column of many rows, and all columns of these are computed at once."""

from __future__ import annotations

from fourfold.compiler.ir.dtypes import BOOLEAN, INT64
from fourfold.compiler.ir.folding import REDUCTIONS
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import CHAINS, chain_of
from fourfold.compiler.nest.cpu.chains import Chains
from fourfold.compiler.nest.cpu.odometer import Odometer
from fourfold.compiler.nest.ir.layout import BROADCAST, ROW_BY_ROW, STRIDED, UNIT
from fourfold.compiler.nest.ir.loops import BEGIN, END, Constant, Function, Operand, Ref, Store, StoreRows
from fourfold.compiler.nest.ir.schedule import ELEMENT, NUMBER, Slot, identity, total_type


class ShortRows(Chains):
    """Rows of few columns: a vector holds one column of many rows, and all columns of these are computed at once."""

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
        self.find_fixed()
        whole = writer.index("*", writer.index("/", count, lanes), lanes)
        with writer.loop(0, whole, lanes) as k:
            self.run_vector(k, None)
        with writer.loop(whole, count, lanes) as k:
            self.run_vector(k, writer.let("mask", BOOLEAN, writer.index("-", count, k), lanes=lanes, name="mask"))

    def find_fixed(self) -> None:
        self.fixed = {v: self.fixed_columns(v) for v in self.schedule.values if self.is_fixed(v)}

    # Values by column; one that is the same in all columns is the same object in each.

    def classes(self, value: Value) -> str:
        """The classes of an input's strides along the rows' last axis and along the columns."""
        return self.layout.strides[value.attribute][self.axis :]

    def is_fixed(self, value: Value) -> bool:
        """Whether it is the same in all rows of the last axis."""
        is_input = value.op == "input" and self.schedule.level[value] > NUMBER
        return self.schedule.level[value] == NUMBER or is_input and self.classes(value)[0] == BROADCAST

    def fixed_columns(self, value: Value) -> list[Operand]:
        if self.schedule.level[value] == NUMBER:
            return [self.splat(self.scalar(value), value)] * self.layout.columns
        return self.columns_of_input(value)

    def columns_of_input(self, value: Value) -> list[Operand]:
        """Of an input that is the same in all rows of the last axis."""
        slot, columns = self.schedule.inputs[value.attribute], self.layout.columns
        pointer, stride = self.pointers[slot.index], self.strides[slot.index, self.axes[-1]]
        if self.classes(value)[1] == BROADCAST:
            columns = 1
        found = []
        for column in range(columns):
            offset = self.writer.index("*", column, stride)
            scalar = self.writer.let(
                "load", value.type, pointer, offset, attribute=slot.kind, name=self.schedule.name(value)
            )
            found.append(self.splat(scalar, value))
        return found * (self.layout.columns // columns)

    def run_vector(self, k: Operand, mask: Ref | None) -> None:
        known: dict[Value, list[Operand]] = dict(self.fixed)
        made: dict[tuple, Ref] = {}
        for value in self.schedule.values:
            if value in known:
                continue
            if value.op == "input":
                known[value] = self.loaded(value, k, mask)
            else:
                known[value] = self.computed(value, known, made)
        for slot in self.schedule.outputs:
            if slot.level > NUMBER:
                self.store(slot, known[slot.value], k, mask)

    def computed(self, value: Value, known: dict[Value, list[Operand]], made: dict[tuple, Ref]) -> list[Operand]:
        """made: the operations so far, by name and operands."""
        if value.op in REDUCTIONS:
            return [self.reduced(value, known[value.operands[0]])] * self.layout.columns
        found = []
        for column in range(self.layout.columns):
            operands = tuple(known[operand][column] for operand in value.operands)
            key = (value.op, value.type, operands)
            if key not in made:
                name = self.schedule.name(value)
                made[key] = self.writer.let(value.op, value.type, *operands, lanes=self.lanes, name=name)
            found.append(made[key])
        return found

    def loaded(self, value: Value, k: Operand, mask: Ref | None) -> list[Operand]:
        slot, columns = self.schedule.inputs[value.attribute], self.layout.columns
        pointer, masks = self.pointers[slot.index], () if mask is None else (mask,)
        of_row, of_column = self.classes(value)
        if self.has_rows(slot):
            stride = self.row_stride(slot)
            return [
                self.writer.let(
                    "load_column", value.type, pointer, k, stride, *masks,
                    lanes=self.lanes, attribute=(slot.kind, column, columns), name=self.schedule.name(value),
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
                    op, value.type, *place, lanes=self.lanes, attribute=slot.kind, name=self.schedule.name(value)
                )
            )
        return found * (columns // len(found))

    def has_rows(self, slot: Slot) -> bool:
        """Whether a row's elements are contiguous, and the rows apart."""
        of_row, of_column = self.layout.strides[slot.index][self.axis :]
        is_apart = of_row in (ROW_BY_ROW, STRIDED) and self.layout.columns > 1
        return slot.level == ELEMENT and of_column == UNIT and is_apart

    def row_stride(self, slot: Slot) -> Operand:
        is_dense = self.layout.strides[slot.index][self.axis] == ROW_BY_ROW
        return Constant(self.layout.columns, INT64) if is_dense else self.strides[slot.index, self.axis]

    def store(self, slot: Slot, vectors: list[Operand], k: Operand, mask: Ref | None) -> None:
        pointer, columns = self.pointers[slot.index], self.layout.columns
        of_row = self.layout.strides[slot.index][self.axis]
        body = self.writer.body
        if self.has_rows(slot):
            body.append(StoreRows(tuple(vectors), pointer, k, self.row_stride(slot), slot.kind, mask))
            return
        stride = None if of_row == UNIT else self.strides[slot.index, self.axis]
        for column in range(columns if slot.level == ELEMENT else 1):
            offset = self.writer.index("*", column, self.strides[slot.index, self.axes[-1]])
            place = self.advance(pointer, slot.kind, offset)
            body.append(Store(vectors[column], place, k, slot.kind, mask, stride))

    def reduced(self, value: Value, columns: list[Operand]) -> Ref:
        """In the order of a block of a longer row: by the lanes of its chains, which are then folded by halves."""
        if value.op == "sum_float64":
            fours, own = len(columns) // (CHAINS * self.lanes), [columns[k :: self.lanes] for k in range(self.lanes)]
            return self.of_quarters(self.folded(value, [self.wide_sum(each, fours) if each else None for each in own]))
        chains: list[list[Operand | None]] = [[None] * self.lanes for _ in range(CHAINS)]
        for column, vector in enumerate(columns):
            chain, lane = chains[chain_of(column, len(columns), self.lanes)], column % self.lanes
            chain[lane] = self.both(value.op, chain[lane], vector)
        a, b, c, d = chains
        halves = [[self.both(value.op, *pair) for pair in zip(*two, strict=True)] for two in ((a, b), (c, d))]
        return self.folded(value, [self.both(value.op, *pair) for pair in zip(*halves, strict=True)])

    def folded(self, value: Value, lanes: list[Operand | None]) -> Ref:
        """A reduction's result from what its lanes hold, None for nothing."""
        type = total_type(value.op, value.type)
        if type != value.type:
            lanes = [v if v is None else self.writer.let(f"to_{type}", type, v, lanes=self.lanes) for v in lanes]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self.both(value.op, lanes[k], lanes[k + half]) for k in range(half)]
        total = self.combined(value.op, Constant(identity(value.op, type), type, self.lanes), lanes[0])
        if type == value.type:
            return total
        return self.writer.let(f"to_{value.type}", value.type, total, lanes=self.lanes, name=self.schedule.name(value))

    def both(self, op: str, a: Operand | None, b: Operand | None) -> Operand | None:
        return b if a is None else a if b is None else self.combined(op, a, b)
