"""Kernels over rows that several blocks share, one for each stage."""

from __future__ import annotations

from functools import partial

from fourfold.compiler.ir.dtypes import INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.grid.online import OnlinePart
from fourfold.compiler.nest.grid.rows import Rows
from fourfold.compiler.nest.ir.loops import Constant, Kernel, Operand, Ref, Store
from fourfold.compiler.nest.ir.online import OnlineSum
from fourfold.compiler.nest.ir.schedule import ROW, Schedule, identity


class SplitRows(Rows):
    """One stage of rows that several blocks share: each block reduces a chunk of a row's columns, and stores its totals
    for the kernel of the next stage."""

    def __init__(self, schedule: Schedule, layout: GridLayout, number: int):
        super().__init__(schedule, layout, f"stage_{number}")
        self.number_of_stage = number

    def write_kernel(self) -> Kernel:
        writer, stage = self.writer, self.number_of_stage
        self.chunk, self.chunks = self.call_argument("chunk"), self.call_argument("chunks")
        group = writer.index("/", self.block, self.chunks, "group")
        self.part = writer.index("-", self.block, writer.index("*", group, self.chunks), "part")
        row, valid = self.row_of(writer.index("*", group, self.rows_of_block, "first"))
        offsets = self.offsets_along(self.row_axes, row)
        if stage == 0:
            self.store_numbers()
        for before in range(stage):
            self.compute_rows(before, offsets)
            self.known |= self.row_totals([self.of_chunks(before, row)])[0]
            online = self.online_parts(before)
            self.known |= self.online_totals(before, partial(self.online_of_chunks, online, row))
        self.compute_rows(stage, offsets)
        self.begin = writer.index("*", self.part, self.chunk, "begin")
        self.end = writer.index("min", self.end, writer.index("+", self.begin, self.chunk), "end")
        parts = self.stage(stage, [], offsets, valid)
        totals = self.row_totals([parts.vectors])[0]
        totals |= self.row_totals([self.online_of_chunk(parts.online, totals)])[0]
        is_first = self.both(self.let("equal", self.lane, 0), valid)
        if totals:
            with writer.when(is_first):
                for value, total in totals.items():
                    writer.body.append(Store(total, *self.of_chunk(value, row, self.part), value.type))
        if stage == self.schedule.stages - 1 and any(slot.level == ROW for slot in self.schedule.outputs):
            with writer.when(self.both(is_first, self.let("equal", self.part, 0))):
                self.store_scalars(ROW, offsets)
        return self.kernel

    def of_chunk(self, value: Value, row: Operand, chunk: Operand) -> tuple[Ref, Operand]:
        """The address and offset of a chunk's total: by reduction, row and chunk."""
        writer = self.writer
        every = [v for stage in range(self.schedule.stages) for v in self.schedule.reductions(stage)]
        each = writer.index("*", self.row_count, self.chunks)
        memory = self.advance(self.scratch(), INT64, writer.index("*", each, every.index(value)), "parts")
        return memory, writer.index("+", writer.index("*", row, self.chunks), chunk)

    def of_chunks(self, stage: int, row: Operand) -> dict[Value, Operand]:
        """Each thread's part of a row's totals of an earlier stage: the totals of some of its chunks."""
        writer, totals = self.writer, {}
        for value in self.schedule.sums(stage):
            first = Constant(identity(value.op, value.type), value.type)
            total = writer.variable(value.type, first, name="total")
            with writer.loop(self.lane, self.chunks, self.layout.group, name="chunk") as chunk:
                memory, offset = self.of_chunk(value, row, chunk)
                part = writer.let("load", value.type, memory, offset, attribute=value.type)
                writer.assign(total, self.combined(value.op, writer.get(total), part))
            totals[value] = writer.get(total)
        return totals

    def online_of_chunk(self, parts: dict[Value, OnlinePart], totals: dict[Value, Operand]) -> dict[Value, Operand]:
        """Each thread's part of this chunk's online sums, relative to shifts of the chunk: one for each first total."""
        count = self.writer.index("-", self.end, self.begin, "count")
        found = {}
        for first, part in parts.items():
            shift = part.shift_of(totals[first], self.elements_of(count, part.type))
            found[self.stored_for(first)] = part.relative_to(shift)
        return found

    def stored_for(self, first: Value) -> Value:
        """The online sum in whose place chunks store theirs: the same for all of a first total."""
        return next(each.total for each in self.schedule.online.values() if each.first is first)

    def online_of_chunks(
        self, parts: dict[Value, OnlinePart], row: Operand, online: OnlineSum, shift: Operand
    ) -> Operand:
        """Each thread's part of an online sum of an earlier stage, relative to a shift: of some of its chunks."""
        writer, each = self.writer, parts[online.first]
        total = each.variable(0.0, "total")
        with writer.loop(self.lane, self.chunks, self.layout.group, name="chunk") as chunk:
            first, part = (
                writer.let("load", value.type, *self.of_chunk(value, row, chunk), attribute=value.type)
                for value in (online.first, self.stored_for(online.first))
            )
            left = writer.index("-", self.end, writer.index("*", chunk, self.chunk))
            count = self.elements_of(writer.index("min", left, self.chunk), each.type)
            writer.assign(total, each.let("add", writer.get(total), each.moved(part, first, count, shift)))
        return writer.get(total)

    def elements_of(self, vectors: Operand, type: str) -> Ref:
        return self.writer.let(f"to_{type}", type, self.writer.index("*", vectors, self.lanes), name="count")
