"""Kernels over elements: each thread processes some vectors of each tile of its block."""

from __future__ import annotations

from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.grid.builder import LIMITS, GridBuilder, ThreadVector
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.layout import BROADCAST
from fourfold.compiler.nest.ir.loops import INDEX, Constant, Kernel, Operand, Ref
from fourfold.compiler.nest.ir.schedule import Schedule, Slot
from fourfold.compiler.nest.ir.steps import LoopOverSteps

THREADS = LIMITS["threads"]


class Elements(GridBuilder):
    def __init__(self, schedule: Schedule, layout: GridLayout):
        super().__init__("elements", schedule, layout, THREADS)
        self.uniform: dict[Value, Ref] = {}

    def write_kernel(self) -> Kernel:
        """Vectors, then the remaining elements, which are too few for one."""
        writer, lanes = self.writer, self.lanes
        self.store_numbers()
        if self.layout.steps is None:
            self.load_uniform()
        vectors = writer.index("/", self.column_count, lanes, "vectors") if lanes > 1 else self.column_count
        tile = THREADS * self.layout.copies
        first = writer.index("+", writer.index("*", self.block, tile), self.thread, "first")
        step = writer.index("*", writer.let("blocks", self.writer.index_type, name="blocks"), tile, "step")
        with writer.loop(first, vectors, step, name="at") as at:
            self.write_places([self.place(at, copy, vectors) for copy in range(self.layout.copies)])
        if lanes > 1 and self.layout.axes == 1:
            self.write_rest(writer.index("*", vectors, lanes, "whole"))
        return self.kernel

    def load_uniform(self) -> None:
        """Loads inputs with one element for all, once a thread. A call without elements launches no kernel."""
        for value in self.schedule.elements(0):
            if value.op == "input" and set(self.layout.strides[value.attribute]) == {BROADCAST}:
                self.uniform[value] = self.load(value, Constant(0, INDEX))

    def load_vector(self, value: Value, place: ThreadVector) -> Operand:
        if value not in self.uniform:
            return super().load_vector(value, place)
        one = self.uniform[value]
        return self.writer.let("splat", value.type, one, lanes=self.lanes, name=self.schedule.name(value))

    def place(self, at: Operand, copy: int, vectors: Operand) -> ThreadVector:
        """The loop's condition has checked the first of a thread's vectors."""
        vector = self.writer.index("+", at, copy * THREADS)
        valid = None if copy == 0 else self.let("<", vector, vectors, name="valid")
        element = self.writer.index("*", vector, self.lanes, "element")
        return ThreadVector(self.column_offsets(element, {}), valid)

    def write_places(self, places: list[ThreadVector]) -> None:
        if self.layout.steps is not None:
            return StepsOfPlaces(self, places).write()
        self.write(self.schedule.elements(0), places)
        for place in places:
            for slot in self.schedule.stores(0):
                self.store_vector(slot, place)
        return None

    def write_rest(self, whole: Operand) -> None:
        """The last elements, one a thread."""
        writer = self.writer
        with writer.when(self.let("equal", self.block, 0)):
            element = writer.index("+", whole, self.thread, "element")
            with writer.when(self.let("<", element, self.column_count)):
                self.lanes = 1
                self.write_places([ThreadVector(self.column_offsets(element, {}), None)])
                self.lanes = self.layout.lanes


class StepsOfPlaces(LoopOverSteps):
    """All steps of some vectors, whose states stay in registers."""

    def __init__(self, builder: Elements, places: list[ThreadVector]):
        super().__init__(builder, builder.base)
        self.places = places

    def computed(self, value: Value, known: dict[Value, list[Operand]], pointers: dict[int, Ref]) -> list[Operand]:
        found = []
        for n, place in enumerate(self.places):
            own = {operand: known[operand][n] for operand in value.operands if operand in known}
            found.append(self.at(pointers, place, own, lambda place: self.vector(value, place)))
        return found

    def vector(self, value: Value, place: ThreadVector) -> Operand:
        return (
            self.builder.operand(value, place)
            if value in self.builder.known or value.is_constant
            else (self.builder.vector(value, place))
        )

    def loaded(self, value: Value, pointers: dict[int, Ref]) -> list[Operand]:
        return self.computed(value, {}, pointers)

    def store(self, slot: Slot, values: list[Operand], pointers: dict[int, Ref]) -> None:
        for vector, place in zip(values, self.places, strict=True):
            self.at(pointers, place, {slot.value: vector}, lambda place: self.builder.store_vector(slot, place))

    def at(self, pointers: dict[int, Ref], place: ThreadVector, known: dict[Value, Operand], write: object) -> object:
        """Calls ``write`` for a place whose tensors are at these addresses."""
        before, self.builder.base = self.builder.base, pointers
        found = write(ThreadVector(place.offsets, place.valid, known))
        self.builder.base = before
        return found
