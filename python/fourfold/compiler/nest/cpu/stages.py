"""A stage of a row: one pass over its columns.

Reductions add up as the interpreter does (cpp/cpu/kernels/functions.cpp): a block's elements go to the lanes of four
chains in turn, the chains are folded, and the blocks' results added in order, sums and products of float32 in float64.
sum_float64 has one chain, to which four vectors are added at a time. So a nest gives the same bits as the interpreter,
with any number of threads."""

from __future__ import annotations

from collections.abc import Callable

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64, INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import CHAINS, REDUCTION_BLOCK, ROWS_OF_SUM, SLACK
from fourfold.compiler.nest.cpu.chains import Chains
from fourfold.compiler.nest.cpu.odometer import Odometer
from fourfold.compiler.nest.cpu.steps import StepsBody
from fourfold.compiler.nest.cpu.vectors import ColumnSumBody, Position, Sum, VectorBody, copies_of
from fourfold.compiler.nest.ir.layout import ELEMENTS
from fourfold.compiler.nest.ir.loops import END, SCRATCH, Constant, Operand, Ref, Store
from fourfold.compiler.nest.ir.schedule import SIZES, Slot, identity, total_type

Body = Callable[[list[Operand], "Ref | None", "Ref | None"], None]
MOST_SUMMED = 8  # vectors of column sums in registers


class Stages(Chains):
    def run_stage(self, stage: int, pointers: dict[int, Ref]) -> dict[Value, Ref]:
        """Runs a stage; returns its reductions' totals."""
        writer, schedule = self.writer, self.schedule
        sums = schedule.sums(stage)
        if not sums:
            if schedule.stores(stage) or schedule.keeps(stage):
                self.run_block(stage, pointers, Constant(0, INT64), self.column_count)
            return {}
        totals = {}
        for value in sums:
            type = total_type(value.op, value.type)
            first = Constant(identity(value.op, type), type)
            totals[value] = writer.variable(type, first, name=f"{schedule.name(value)}_total")
        with writer.loop(0, self.column_count, REDUCTION_BLOCK, name="start") as start:
            count = writer.index("min", REDUCTION_BLOCK, writer.index("-", self.column_count, start), "count")
            for value, part in self.run_block(stage, pointers, start, count).items():
                writer.assign(totals[value], self.combined(value.op, writer.get(totals[value]), part))
        return totals

    def run_block(self, stage: int, pointers: dict[int, Ref], start: Operand, count: Operand) -> dict[Value, Ref]:
        """Runs a stage over this many columns of a row; returns its reductions' results there."""
        sums = {value: Sum(value) for value in self.schedule.sums(stage)}
        if self.has_one_axis(stage):
            for each in sums.values():
                each.chains = self.new_chains(each.value)
            inner = self.axes[-1]
            self.run(stage, Position(self.advanced(pointers, inner, start), start, count), sums)
        else:
            self.run_segments(stage, pointers, start, count, sums)
        return {value: self.folded(each) for value, each in sums.items()}

    def has_one_axis(self, stage: int) -> bool:
        """Whether the axes of a row's columns act as one axis for all tensors of a stage. They may not for other
        tensors of the program: the weights of a group norm repeat along each channel, and are read after the
        statistics."""
        loaded = [value.attribute for value in self.schedule.elements(stage) if value.op == "input"]
        stored = [slot.index for slot in self.schedule.stores(stage) if not slot.is_column_sum]
        return all(self.layout.has_dense_columns(tensor) for tensor in (*loaded, *stored))

    def folded(self, each: Sum) -> Ref:
        op = each.value.op
        if op == "sum_float64":
            lanes = self.writer.get(each.chains[0])
            return self.of_quarters(self.writer.let("fold", FLOAT64, lanes, attribute="sum"))
        a, b, c, d = (self.writer.get(chain) for chain in each.chains)
        lanes = self.combined(op, self.combined(op, a, b), self.combined(op, c, d))
        return self.writer.let("fold", total_type(op, each.value.type), lanes, attribute=op)

    def run_segments(
        self, stage: int, pointers: dict[int, Ref], start: Operand, count: Operand, sums: dict[Value, Sum]
    ) -> None:
        """A block of columns that run along several axes: the innermost axis piece by piece. The operands of reductions
        are gathered first, so that the order of a sum does not depend on the layout."""
        writer, inner = self.writer, self.axes[-1]
        for k, each in enumerate(sums.values()):
            offset = k * SIZES[FLOAT64] * (REDUCTION_BLOCK + SLACK)
            each.buffer = self.advance(SCRATCH, "uint8", Constant(offset, INT64), "gathered")
        within = writer.variable(INT64, writer.index("%", start, self.size[inner]), name="at")
        outer = Odometer(self, self.column_axes[:-1], writer.index("/", start, self.size[inner]), pointers)
        body = writer.loop(0, count, 1, name="column")
        with body as column:
            at = writer.get(within)
            left = writer.index("-", self.size[inner], at, "left")
            piece = writer.index("min", left, writer.index("-", count, column), "piece")
            place = Position(self.advanced(outer.pointers(), inner, at), writer.index("+", start, column), piece)
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
        """Adds up the contents of a buffer."""
        kind = each.value.operands[0].type

        def add(places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
            masks = () if mask is None else (mask,)
            for copy, k in enumerate(places):
                place = (each.buffer, k, *masks)
                vector = self.writer.let("load", kind, *place, lanes=self.lanes, attribute=kind)
                self.accumulate(each, vector, mask, copy, chain)

        self.vectors(count, CHAINS, add)

    # Vectors.

    def vectors(self, count: Operand, copies: int, body: Body) -> None:
        """Calls body(indices, mask, chain) for whole vectors, `copies` of them at a time, then for the remaining ones,
        and then under a mask. chain: the index of the chain to which a remaining vector is added. With two copies, a
        remaining whole vector has a mask too: such bodies are long."""
        writer, lanes = self.writer, self.lanes
        step = lanes * copies
        main = whole = writer.index("*", writer.index("/", count, step), step, "main")
        with writer.loop(0, main, step) as k:
            body([writer.index("+", k, copy * lanes) for copy in range(copies)], None, None)
        if copies > 2:
            whole = writer.index("*", writer.index("/", count, lanes), lanes, "whole")
            with writer.loop(main, whole, lanes) as k:
                body([k], None, writer.index("/", writer.index("-", k, main), lanes, "chain"))
        with writer.loop(whole, count, lanes) as k:
            mask = writer.let("mask", BOOLEAN, writer.index("-", count, k, "left"), lanes=lanes, name="mask")
            body([k], mask, Constant(CHAINS - 1, INT64))

    def run(self, stage: int, place: Position, sums: dict[Value, Sum], buffered: Operand | None = None) -> None:
        """All vectors of a stage in one piece of the innermost axis. buffered: the piece's start in the sums'
        buffers."""
        kind = VectorBody if self.layout.steps is None else StepsBody
        body = kind(self, stage, place, sums, buffered)
        if self.has_overlapping_ends():
            return self.overlapped(place.count, body)
        has_chains = sums and buffered is None
        return self.vectors(place.count, CHAINS if has_chains else body.copies, body.write)

    def run_column_sums(
        self, stage: int, rows: Operand, enter: Callable[[Operand], dict[int, Ref]], settles: bool
    ) -> None:
        """A stage without reductions in at most ROWS_OF_SUM rows, a few vectors of columns at a time: the sums over
        these rows stay in registers. enter: makes a row's values known and returns its addresses. settles: whether
        these are all rows that are added in float32."""
        slots = [slot for slot in self.schedule.stores(stage) if slot.is_column_sum]
        known, kept_base = self.known, self.kept_base

        def write(places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
            sums = {slot.index: [self.column_sum(slot, k, mask, settles) for k in places] for slot in slots}
            with self.writer.loop(0, rows, 1, name="row") as row:
                place = Position(enter(row), Constant(0, INT64), self.column_count)
                ColumnSumBody(self, stage, place, sums).write(places, mask, chain)
            self.known, self.kept_base = known, kept_base
            for slot in slots:
                for k, each in zip(places, sums[slot.index], strict=True):
                    base, total = self.sums_of(slot), self.writer.get(each)
                    if settles and total.type == FLOAT32:
                        base, total = self.base[slot.index], self.settled(slot, k, mask, total)
                    self.writer.body.append(Store(total, base, k, total.type, mask))

        most = max(1, min(MOST_SUMMED // len(slots), copies_of(self.schedule, stage)))
        whole = self.layout.columns // self.lanes
        if whole:  # of known columns as few as possible remain
            most = min(range(min(most, whole), most // 2, -1), key=lambda copies: whole % copies, default=most)
        self.vectors(self.column_count, most, write)

    def column_sum(self, slot: Slot, k: Operand, mask: Ref | None, settles: bool) -> Ref:
        """A variable that holds a vector of a column sum."""
        type, masks = slot.value.type, () if mask is None else (mask,)
        old: Operand = Constant(0.0, FLOAT32, self.lanes)
        if type == FLOAT64 or not settles:
            old = self.writer.let("load", type, self.sums_of(slot), k, *masks, lanes=self.lanes, attribute=type)
        return self.writer.variable(type, old, self.lanes, f"{slot.name}_sum")

    def settled(self, slot: Slot, k: Operand, mask: Ref | None, part: Ref) -> Ref:
        """A vector of a column sum in float64, and what float32 sums add to it."""
        place = self.base[slot.index], k, *(() if mask is None else (mask,))
        old = self.writer.let("load", FLOAT64, *place, lanes=self.lanes, attribute=FLOAT64)
        return self.combined("sum", old, self.wide(part))

    def settle(self) -> None:
        """Adds the float32 sums of the last rows to those in float64."""
        slots = [slot for slot in self.schedule.outputs if slot.is_column_sum and slot.value.type == FLOAT32]

        def write(places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
            masks = () if mask is None else (mask,)
            for slot in slots:
                part, zero = self.sums_of(slot), Constant(0.0, FLOAT32, self.lanes)
                for k in places:
                    new = self.writer.let("load", FLOAT32, part, k, *masks, lanes=self.lanes, attribute=FLOAT32)
                    total = self.settled(slot, k, mask, new)
                    self.writer.body.append(Store(total, self.base[slot.index], k, FLOAT64, mask))
                    self.writer.body.append(Store(zero, part, k, FLOAT32, mask))

        if slots:
            self.vectors(self.column_count, 1, write)

    def count_summed(self) -> Ref | None:
        """A variable that counts the rows whose column sums are in float32; None without column sums."""
        if not any(slot.is_column_sum for slot in self.schedule.outputs):
            return None
        return self.writer.variable(INT64, Constant(0, INT64), name="summed")

    def settle_after(self, summed: Ref, rows: int, following: Operand) -> None:
        """Settles column sums after every ROWS_OF_SUM rows and the last one. rows: how many more there are now.
        following: the next row."""
        writer, most = self.writer, Constant(ROWS_OF_SUM, INT64)
        has_more, now = writer.let("<", BOOLEAN, following, END), writer.index("+", writer.get(summed), rows)
        now = writer.let("select", INT64, has_more, now, most)
        writer.assign(summed, now)
        with writer.when(writer.let("equal", BOOLEAN, now, most)):
            self.settle()
            writer.assign(summed, Constant(0, INT64))

    def has_column_sums(self, stage: int) -> bool:
        """Whether a stage may run by run_column_sums()."""
        slots = self.schedule.stores(stage)
        return any(slot.is_column_sum for slot in slots) and not self.schedule.sums(stage) and self.has_one_axis(stage)

    def has_overlapping_ends(self) -> bool:
        """Whether the last vector of a piece is a whole one that overlaps the one before it. Elements of several axes
        have many ends, and a mask of 16-bit numbers takes an instruction for each lane on some processors."""
        layout = self.layout
        is_streamed = any(layout.is_streamed(slot.index) for slot in self.slots)
        return layout.split == ELEMENTS and layout.axes > 1 and layout.steps is None and not is_streamed

    def overlapped(self, count: Operand, body: VectorBody) -> None:
        """All vectors of a piece of elements. The last one is loaded first, because an output may have an input's
        memory, and stored last. Pieces that are shorter than a vector have a mask."""
        writer, lanes = self.writer, self.lanes
        with writer.when(writer.let("<", BOOLEAN, Constant(lanes - 1, INT64), count)):
            last = writer.index("-", count, lanes, "last")
            values = body.computed(last)
            before = writer.index("-", count, 1)
            whole = writer.index("*", writer.index("/", before, lanes), lanes, "whole")
            step = lanes * body.copies
            main = writer.index("*", writer.index("/", before, step), step, "main")
            with writer.loop(0, main, step) as k:
                body.write([writer.index("+", k, copy * lanes) for copy in range(body.copies)], None, None)
            with writer.loop(main, whole, lanes) as k:
                body.write([k], None, None)
            body.write_results(values, last, 0, None, None)
        with writer.when(writer.let("<", BOOLEAN, count, Constant(lanes, INT64))):
            mask = writer.let("mask", BOOLEAN, count, lanes=lanes, name="mask")
            body.write([Constant(0, INT64)], mask, None)
