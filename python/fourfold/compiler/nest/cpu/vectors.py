"""The operations of a stage on vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fourfold.compiler.ir.dtypes import INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import SLACK, Builder
from fourfold.compiler.nest.ir.layout import BROADCAST, UNIT
from fourfold.compiler.nest.ir.loops import Constant, Operand, Ref, Store, StoreRows
from fourfold.compiler.nest.ir.schedule import ELEMENT, Schedule, Slot, cost

EXPENSIVE = 10  # the cost of an operation at which two vectors at a time keep a processor busy
LONG = 24  # the number of operations with the same effect


def copies_of(schedule: Schedule, stage: int) -> int:
    """How many vectors at a time a stage computes."""
    computed = [value for value in schedule.elements(stage) if not schedule.is_loaded(value, stage)]
    return 2 if cost(computed) >= EXPENSIVE or len(computed) > LONG else 4


@dataclass(slots=True)
class Position:
    """The position of a loop over columns: each tensor's address, the index among the row's columns, and how many of
    these follow along the innermost axis."""

    pointers: dict[int, Ref]
    column: Operand
    count: Operand


@dataclass(slots=True)
class Sum:
    """A reduction in one block: its chains, or the memory that holds its operand. four: vectors to add before that."""

    value: Value
    chains: list[Ref] = field(default_factory=list)
    four: list[Operand] = field(default_factory=list)
    buffer: Ref | None = None


class VectorBody:
    """The operations of one stage on vectors along the innermost axis."""

    def __init__(self, builder: Builder, stage: int, place: Position, sums: dict[Value, Sum], buffered: Operand | None):
        self.builder, self.stage, self.place, self.sums, self.buffered = builder, stage, place, sums, buffered
        self.schedule, self.writer, self.lanes = builder.schedule, builder.writer, builder.lanes
        self.values = self.schedule.elements(stage)
        self.stores = self.schedule.stores(stage)
        self.keeps = self.schedule.keeps(stage)
        self.splats: dict[Value, Operand] = {}
        self.inner = builder.axes[-1]
        self.groups = list(self.grouped())
        self.hoist()

    def grouped(self) -> Iterator[list[Slot]]:
        """Groups the outputs that are stored together: those that are interleaved in memory."""
        for k, slot in enumerate(self.stores):
            turn, parts = slot.interleaved
            group = self.stores[k - turn : k - turn + parts]
            is_whole = [each.interleaved for each in group] == [(p, parts) for p in range(parts)]
            if not is_whole or self.stride(slot.index) != str(parts):
                yield [slot]
            elif turn == 0:
                yield group

    @property
    def copies(self) -> int:
        return copies_of(self.schedule, self.stage)

    def hoist(self) -> None:
        """Hoists values that are the same for all vectors."""
        for value in self.values:
            if value.op == "input" and self.stride(value.attribute) == BROADCAST and not self.changes(value):
                self.splats[value] = self.builder.splat(self.load(value, None, None), value)
            elif not self.schedule.is_loaded(value, self.stage):
                for operand in value.operands:
                    self.hoist_scalar(operand)
        for value in (*(slot.value for slot in self.stores), *(value.operands[0] for value in self.sums)):
            self.hoist_scalar(value)

    def changes(self, value: Value) -> bool:
        """Whether an input's value differs between steps."""
        return False

    def hoist_scalar(self, value: Value) -> None:
        if self.schedule.level[value] < ELEMENT and value not in self.splats:
            self.splats[value] = self.builder.splat(self.builder.scalar(value), value)

    def stride(self, slot: int) -> str:
        is_transposed = any(slot == each.index for each in self.builder.transposed_slots)
        return UNIT if is_transposed else self.builder.layout.stride(slot, self.inner)

    def step(self, slot: Slot) -> Operand | None:
        """The distance between lanes, in elements; None if they are contiguous or broadcast."""
        is_apart = self.stride(slot.index) not in (BROADCAST, UNIT)
        return self.builder.strides[slot.index, self.inner] if is_apart else None

    def load(self, value: Value, k: Operand | None, mask: Ref | None) -> Ref:
        """An input's vector at an index, or its number if k is None."""
        slot = self.schedule.inputs[value.attribute]
        pointer = self.place.pointers[slot.index]
        if k is None:
            zero, name = Constant(0, INT64), self.schedule.name(value)
            return self.writer.let("load", value.type, pointer, zero, attribute=slot.kind, name=name)
        operands: list[Operand] = [pointer, k]
        if mask is not None:
            operands.append(mask)
        stride = self.step(slot)
        return self.writer.let(
            "load" if stride is None else "load_strided",
            value.type,
            *operands,
            *(() if stride is None else (stride,)),
            lanes=self.lanes,
            attribute=slot.kind,
            name=self.schedule.name(value),
        )

    def write(self, places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
        """Writes several vectors, operation by operation: a processor overlaps the same operation on several vectors,
        but not several operations on one, each of which waits for the one before. More of them than copies would not
        fit its registers."""
        copies = list(enumerate(places))
        for first in range(0, len(copies), self.copies):
            some = copies[first : first + self.copies]
            known: dict[int, dict[Value, Operand]] = {copy: dict(self.splats) for copy, _ in some}
            for value in self.values:
                for copy, k in some:
                    if value not in known[copy]:
                        known[copy][value] = self.vector(value, known[copy], k, mask)
            for copy, k in some:
                self.write_results(known[copy], k, copy, mask, chain)

    def computed(self, k: Operand) -> dict[Value, Operand]:
        """The values of one whole vector, whose results are not yet written."""
        known = dict(self.splats)
        for value in self.values:
            if value not in known:
                known[value] = self.vector(value, known, k, None)
        return known

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
        for slots in self.groups:
            if len(slots) == 1:
                self.store(slots[0], known[slots[0].value], k, mask)
            else:
                vectors = tuple(known[slot.value] for slot in slots)
                pointer, stride = self.place.pointers[slots[0].index], Constant(len(slots), INT64)
                self.writer.body.append(StoreRows(vectors, pointer, k, stride, slots[0].kind, mask))

    def vector(self, value: Value, known: dict[Value, Operand], k: Operand, mask: Ref | None) -> Ref:
        name = self.schedule.name(value)
        if value.op == "input":
            return self.load(value, k, mask)
        if self.schedule.is_loaded(value, self.stage):
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
        offset = self.writer.index("*", each, self.schedule.kept[value])
        return builder.advance(builder.kept_base, "uint8", offset, f"{self.schedule.name(value)}_kept")

    def put(self, vector: Operand, pointer: Ref, k: Operand, kind: str, mask: Ref | None) -> None:
        self.writer.body.append(Store(vector, pointer, k, kind, mask))

    def store(self, slot: Slot, vector: Operand, k: Operand, mask: Ref | None) -> None:
        if slot.is_column_sum:
            return self.add_to_columns(slot, vector, k, mask)
        pointer, step = self.place.pointers[slot.index], self.step(slot)
        is_streamed = mask is None and self.builder.layout.is_streamed(slot.index)
        self.writer.body.append(Store(vector, pointer, k, slot.kind, mask, step, is_streamed))
        return None

    def add_to_columns(self, slot: Slot, vector: Operand, k: Operand, mask: Ref | None) -> None:
        masks = () if mask is None else (mask,)
        place, type = (self.builder.sums_of(slot), self.column(k)), vector.type
        old = self.writer.let("load", type, *place, *masks, lanes=self.lanes, attribute=type)
        self.put(self.builder.combined("sum", old, vector), *place, type, mask)


class ColumnSumBody(VectorBody):
    """The operations on vectors of one row whose column sums are variables: for each of these outputs, one for each
    place."""

    def __init__(self, builder: Builder, stage: int, place: Position, held: dict[int, list[Ref]]):
        super().__init__(builder, stage, place, {}, None)
        self.held, self.copy = held, 0

    def write_results(
        self, known: dict[Value, Operand], k: Operand, copy: int, mask: Ref | None, chain: Ref | None
    ) -> None:
        self.copy = copy
        super().write_results(known, k, copy, mask, chain)

    def add_to_columns(self, slot: Slot, vector: Operand, k: Operand, mask: Ref | None) -> None:
        variable = self.held[slot.index][self.copy]
        self.writer.assign(variable, self.builder.combined("sum", self.writer.get(variable), vector))
