"""Kernels that sum each column over the rows, and kernels that add up the sums of chunks of rows."""

from __future__ import annotations

from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.grid.builder import LANES_OF_GROUP, LIMITS, GridBuilder, ThreadVector, Total
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.layout import BROADCAST
from fourfold.compiler.nest.ir.loops import INDEX, Constant, Kernel, Operand, Ref, Store
from fourfold.compiler.nest.ir.schedule import ROW, Schedule, Slot

IN_FLIGHT = 8  # chunks' sums that a thread loads before it adds them
PARTS = LIMITS["parts_of_rows"]  # of a chunk, which a block's threads add up in parallel


class Columns(GridBuilder):
    """Adjacent threads process adjacent vectors of columns, in the rows of one part of the block's chunk."""

    def __init__(self, name: str, schedule: Schedule, layout: GridLayout):
        super().__init__(name, schedule, layout, LANES_OF_GROUP * PARTS)
        index = self.writer.index
        self.own = index("%", self.thread, LANES_OF_GROUP, "own")
        self.part = index("/", self.thread, LANES_OF_GROUP, "part")
        self.sums = [slot for slot in schedule.outputs if slot.is_column_sum]

    def whole(self, slot: Slot, total: Operand) -> Operand:
        """The total of all parts of the block."""
        return self.across_parts([Total("sum", total)], PARTS, LANES_OF_GROUP, self.part, self.own, None)[0]


class SumsOfChunks(Columns):
    """Sums over the rows of a chunk. The block's index gives the chunk and the columns."""

    def __init__(self, schedule: Schedule, layout: GridLayout):
        super().__init__("columns", schedule, layout)

    def write_kernel(self) -> Kernel:
        writer, lanes = self.writer, self.lanes
        self.store_numbers()
        chunk, chunks = self.call_argument("chunk"), self.call_argument("chunks")
        group = writer.index("/", self.block, chunks, "group")
        self.chunk = writer.index("-", self.block, writer.index("*", group, chunks), "chunk")
        vectors = writer.index("/", self.column_count, lanes, "vectors") if lanes > 1 else self.column_count
        vector = writer.index("+", writer.index("*", group, LANES_OF_GROUP), self.own, "vector")
        self.is_column = self.let("<", vector, vectors, name="is_column")
        self.column = writer.index("*", vector, lanes, "column")
        begin = writer.index("*", self.chunk, chunk, "begin")
        end = writer.index("min", self.row_count, writer.index("+", begin, chunk), "end")
        of_column = self.column_offsets(self.column, {})
        sums = {slot.index: writer.variable(slot.value.type, self.zero(slot), lanes, "total") for slot in self.sums}
        first = writer.index("+", begin, self.part, "first")
        has_rows = self.let("<", first, end, name="has_rows")
        of_all_rows = ThreadVector(of_column, self.both(self.is_column, has_rows))
        self.write([value for value in self.schedule.elements(0) if self.is_of_all_rows(value)], [of_all_rows])
        with writer.loop(first, end, PARTS * self.layout.copies, name="at") as at:
            places = [self.place(at, copy, end, of_column) for copy in range(self.layout.copies)]
            for place in places:
                place.known |= of_all_rows.known
            self.write(self.schedule.elements(0), places)
            for place in places:
                self.add(place, sums)
        for slot in self.sums:
            self.put(slot, self.whole(slot, writer.get(sums[slot.index])))
        return self.kernel

    def is_of_all_rows(self, value: Value) -> bool:
        """Whether it is an input that is the same in every row, and read once."""
        strides = (self.layout.stride(value.attribute, axis) for axis in self.row_axes)
        return value.op == "input" and all(stride == BROADCAST for stride in strides)

    def place(self, at: Operand, copy: int, end: Operand, of_column: dict[int, Operand]) -> ThreadVector:
        """One row's place, with the row's values."""
        row = self.writer.index("+", at, copy * PARTS, "row")
        valid = self.both(self.is_column, self.let("<", row, end, name="is_row") if copy else None)
        if copy:
            row = self.writer.index("min", row, self.writer.index("-", end, 1), "row")
        of_row = self.offsets_along(self.row_axes, row)
        both = {k: self.writer.index("+", a, of_column[k]) if k in of_column else a for k, a in of_row.items()}
        place, numbers = ThreadVector(of_column | both, valid), dict(self.known)
        self.compute_rows(0, of_row)
        place.known = {value: self.splat(value) for value in self.schedule.scalars(ROW, 0)}
        if any(slot.level == ROW for slot in self.schedule.outputs):
            with self.writer.when(self.both(valid, self.let("equal", self.column, 0))):
                self.store_scalars(ROW, of_row)
        self.known = numbers
        return place

    def add(self, place: ThreadVector, sums: dict[int, Ref]) -> None:
        for slot in self.schedule.stores(0):
            if slot.is_column_sum:
                vector = self.masked("sum", self.operand(slot.value, place), place.valid)
                new = self.combined("sum", self.writer.get(sums[slot.index]), vector)
                self.writer.assign(sums[slot.index], new)
            else:
                self.store_vector(slot, place)

    def put(self, slot: Slot, total: Operand) -> None:
        """Stores a total, by the threads of the first part: in memory for the next kernel, or in the result if this is
        the only chunk."""
        writer = self.writer
        with writer.when(self.both(self.is_column, self.let("equal", self.part, 0))):
            if self.layout.is_split:
                place = self.sum_of_chunk(slot, self.sums.index(slot), self.chunk, self.column)
                writer.body.append(Store(total, *place, slot.value.type))
            else:
                offset = self.column_offsets(self.column, {}).get(slot.index, Constant(0, INDEX))
                step = None if self.lanes == 1 else self.step_of(slot)
                writer.body.append(Store(total, self.base[slot.index], offset, slot.kind, None, step))


class Finish(Columns):
    """The sums of all chunks, column by column."""

    def __init__(self, schedule: Schedule, layout: GridLayout):
        super().__init__("finish", schedule, layout)
        self.lanes = 1

    def write_kernel(self) -> Kernel:
        writer = self.writer
        chunks = self.call_argument("chunks")
        column = writer.index("+", writer.index("*", self.block, LANES_OF_GROUP), self.own, "column")
        is_column = self.let("<", column, self.column_count, name="is_column")
        offsets = self.column_offsets(column, {})
        for number, slot in enumerate(self.sums):
            total = writer.variable(slot.value.type, self.zero(slot), self.lanes, "total")
            with writer.loop(self.part, chunks, PARTS * IN_FLIGHT, name="chunk") as chunk:
                parts = [self.part_of(slot, number, chunk, copy, column, is_column) for copy in range(IN_FLIGHT)]
                sum = writer.get(total)
                for part in parts:
                    sum = self.combined("sum", sum, part)
                writer.assign(total, sum)
            whole = self.whole(slot, writer.get(total))
            with writer.when(self.both(is_column, self.let("equal", self.part, 0))):
                offset = offsets.get(slot.index, Constant(0, INDEX))
                writer.body.append(Store(whole, self.base[slot.index], offset, slot.kind))
        return self.kernel

    def part_of(self, slot: Slot, number: int, first: Operand, copy: int, column: Operand, is_column: Ref) -> Operand:
        """The sum of a chunk; zero for one beyond the last."""
        writer, type = self.writer, slot.value.type
        chunk = writer.index("+", first, copy * PARTS)
        valid = self.both(is_column, self.let("<", chunk, self.call_argument("chunks")) if copy else None)
        memory, offset = self.sum_of_chunk(slot, number, chunk, column)
        return writer.let("load", type, memory, offset, valid, lanes=self.lanes, attribute=type, name="part")
