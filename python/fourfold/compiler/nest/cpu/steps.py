"""A loop over steps within the loop over vectors: states stay in registers from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import Builder
from fourfold.compiler.nest.cpu.steps_of_rows import COPIES, are_numbers, check_rows
from fourfold.compiler.nest.cpu.vectors import Position, Sum, VectorBody
from fourfold.compiler.nest.ir.layout import BROADCAST, ROWS, Layout
from fourfold.compiler.nest.ir.loops import Operand, Ref
from fourfold.compiler.nest.ir.schedule import ELEMENT, NotCompiled, Schedule, Slot
from fourfold.compiler.nest.ir.steps import IN_REGISTERS, LoopOverSteps, moving


def check_steps(schedule: Schedule, layout: Layout) -> None:
    """Raises NotCompiled."""
    if layout.split == ROWS:
        return check_rows(schedule, layout)
    if layout.transposed is not None:
        raise NotCompiled("tensors with transposed layouts within a step")
    for slot, feed in zip(schedule.inputs, layout.steps.feeds, strict=True):
        if feed is not None and not slot.kind == schedule.outputs[feed].kind in IN_REGISTERS:
            raise NotCompiled(f"a state of {slot.kind}")
    if are_numbers(schedule):
        return None
    for slot, feed in zip(schedule.inputs, layout.steps.feeds, strict=True):
        if feed is not None and slot.level != ELEMENT:
            raise NotCompiled("a state of one number beside larger ones needs their shape")
    if any(slot.level != ELEMENT or slot.is_column_sum or slot.interleaved != (0, 1) for slot in schedule.outputs):
        raise NotCompiled("a result of a step that is not a series of whole vectors")
    return None


class StepsBody(VectorBody):
    """All steps of several vectors."""

    def __init__(self, builder: Builder, stage: int, place: Position, sums: dict[Value, Sum], buffered: Operand | None):
        self.moving = moving(builder.schedule, builder.layout.steps)
        self.numbers = [v for v in builder.schedule.values if v in self.moving and builder.schedule.level[v] < ELEMENT]
        super().__init__(builder, stage, place, sums, buffered)

    @property
    def copies(self) -> int:
        return COPIES

    def hoist(self) -> None:
        super().hoist()
        for value in self.numbers:
            for operand in value.operands:
                self.hoist_scalar(operand)

    def hoist_scalar(self, value: Value) -> None:
        if value not in self.moving:
            super().hoist_scalar(value)

    def changes(self, value: Value) -> bool:
        return self.builder.layout.steps.changes(value)

    def write(self, places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
        first_step = self.place
        StepsOfVectors(self, places, mask).write()
        self.place = first_step

    def vector(self, value: Value, known: Mapping[Value, Operand], k: Operand, mask: Ref | None) -> Ref:
        if value.op == "input" and self.stride(value.attribute) == BROADCAST:
            return self.builder.splat(self.load(value, None, None), value)
        return super().vector(value, known, k, mask)


class StepsOfVectors(LoopOverSteps):
    """A value is a list of vectors, one for each place."""

    def __init__(self, body: StepsBody, places: list[Operand], mask: Ref | None):
        super().__init__(body.builder, body.place.pointers)
        self.body, self.places, self.mask = body, places, mask
        of_step = {*body.values, *body.numbers}
        self.values = [value for value in self.schedule.values if value in of_step]

    def given(self) -> dict[Value, list[Operand]]:
        return {value: [splat] * len(self.places) for value, splat in self.body.splats.items()}

    def computed(self, value: Value, known: dict[Value, list[Operand]], pointers: dict[int, Ref]) -> list[Operand]:
        self.body.place = replace(self.body.place, pointers=pointers)
        if self.schedule.level[value] < ELEMENT:
            operands = {operand: known[operand][0] for operand in value.operands}
            return [self.body.vector(value, operands, self.places[0], self.mask)] * len(self.places)
        found = []
        for n, k in enumerate(self.places):
            operands = {operand: known[operand][n] for operand in value.operands}
            found.append(self.body.vector(value, operands, k, self.mask))
        return found

    def loaded(self, value: Value, pointers: dict[int, Ref]) -> list[Operand]:
        return self.computed(value, {}, pointers)

    def store(self, slot: Slot, values: list[Operand], pointers: dict[int, Ref]) -> None:
        self.body.place = replace(self.body.place, pointers=pointers)
        for vector, k in zip(values, self.places, strict=True):
            self.body.store(slot, vector, k, self.mask)
