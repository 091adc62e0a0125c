"""Loops over several axes as one."""

from __future__ import annotations

from collections.abc import Sequence

from fourfold.compiler.ir.dtypes import BOOLEAN, INT64
from fourfold.compiler.nest.cpu.builder import Builder
from fourfold.compiler.nest.ir.layout import BROADCAST
from fourfold.compiler.nest.ir.loops import Constant, Operand, Ref
from fourfold.compiler.nest.ir.schedule import Slot


class Odometer:
    """Counts through axes and updates each tensor's offset."""

    def __init__(self, builder: Builder, axes: Sequence[int], start: Operand, pointers: dict[int, Ref]):
        self.builder, self.axes, self.base = builder, list(axes), pointers
        writer = builder.writer
        self.digits: dict[int, Ref] = {}
        offsets: dict[int, Operand] = {slot.index: Constant(0, INT64) for slot in builder.slots}
        for axis in reversed(self.axes):
            is_first = axis == self.axes[0]
            digit = start if is_first else writer.index("%", start, builder.size[axis])
            start = start if is_first else writer.index("/", start, builder.size[axis])
            if not is_first:
                self.digits[axis] = writer.variable(INT64, digit, name="digit")
            for slot in self.moving(axis):
                moved = writer.index("*", digit, builder.strides[slot.index, axis])
                offsets[slot.index] = writer.index("+", offsets[slot.index], moved)
        moving = {slot.index for axis in self.axes for slot in self.moving(axis)}
        names = {slot.index: f"{slot.name}_offset" for slot in builder.slots}
        self.offsets = {k: writer.variable(INT64, offsets[k], name=names[k]) for k in sorted(moving)}

    def moving(self, axis: int) -> list[Slot]:
        builder = self.builder
        return [slot for slot in builder.slots if builder.layout.strides[slot.index][axis] != BROADCAST]

    def pointers(self) -> dict[int, Ref]:
        builder = self.builder
        kinds = {slot.index: slot.kind for slot in builder.slots}
        names = {slot.index: slot.name for slot in builder.slots}
        moved = {
            k: builder.advance(self.base[k], kinds[k], builder.writer.get(v), names[k]) for k, v in self.offsets.items()
        }
        return {**self.base, **moved}

    def left(self) -> Operand:
        """How many steps the last axis has left."""
        last = self.axes[-1]
        done = self.builder.writer.get(self.digits[last]) if last in self.digits else Constant(0, INT64)
        return self.builder.writer.index("-", self.builder.size[last], done)

    def step(self) -> None:
        if self.axes:
            self.step_axis(len(self.axes) - 1)

    def step_axis(self, position: int) -> None:
        builder, axis = self.builder, self.axes[position]
        writer = builder.writer
        for slot in self.moving(axis):
            self.move(slot.index, "+", builder.strides[slot.index, axis])
        if position == 0:
            return
        following = writer.index("+", writer.get(self.digits[axis]), 1)
        writer.assign(self.digits[axis], following)
        with writer.when(writer.let("equal", BOOLEAN, following, builder.size[axis])):
            writer.assign(self.digits[axis], Constant(0, INT64))
            for slot in self.moving(axis):
                self.move(slot.index, "-", writer.index("*", builder.size[axis], builder.strides[slot.index, axis]))
            self.step_axis(position - 1)

    def move(self, slot: int, op: str, by: Operand) -> None:
        writer = self.builder.writer
        writer.assign(self.offsets[slot], writer.index(op, writer.get(self.offsets[slot]), by))
