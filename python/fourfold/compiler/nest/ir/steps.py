"""The loop over the steps of a sequence, as all nests have it: states stay in registers from step to step."""

from __future__ import annotations

import abc
from typing import Any

from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.ir.layout import Steps
from fourfold.compiler.nest.ir.loops import Operand, Ref
from fourfold.compiler.nest.ir.schedule import Schedule, Slot

IN_REGISTERS = ("float32", "float64", "int32", "int64")  # kinds that programs compute in directly


def moving(schedule: Schedule, steps: Steps) -> set[Value]:
    """The values that may differ from step to step."""
    found: set[Value] = set()
    for value in schedule.values:
        if steps.changes(value) or any(operand in found for operand in value.operands):
            found.add(value)
    return found


class LoopOverSteps(abc.ABC):
    """The loop over steps. A value of a step is a list of numbers or vectors. builder: a CPU's or a GPU's."""

    def __init__(self, builder: Any, pointers: dict[int, Ref]):
        self.builder, self.schedule, self.writer, self.lanes = builder, builder.schedule, builder.writer, builder.lanes
        self.layout, self.pointers = builder.layout, pointers
        self.values = self.schedule.values
        self.moving = moving(self.schedule, self.layout.steps)

    def write(self) -> None:
        schedule, writer = self.schedule, self.writer
        feeds = self.layout.steps.feeds
        fixed = self.given()
        inputs = [value for value in self.values if value.op == "input" and value not in fixed]
        state_of = {value: feeds[value.attribute] for value in inputs if feeds[value.attribute] is not None}
        for value in self.values:
            if value not in self.moving and value not in fixed:
                fixed[value] = self.computed(value, fixed, self.pointers)
        states = {
            value: [
                writer.variable(value.type, first, first.lanes, "state") for first in self.loaded(value, self.pointers)
            ]
            for value in state_of
        }
        with writer.loop(0, self.builder.step_count(), 1, name="step") as step:
            pointers = self.builder.at_step(self.pointers, step)
            now = fixed | {value: list(map(writer.get, of)) for value, of in states.items()}
            for value in self.values:
                if value not in now:
                    now[value] = self.computed(value, now, pointers)
            for n, slot in enumerate(schedule.outputs):
                if self.is_series(slot) or n not in state_of.values():
                    self.store(slot, now[slot.value], pointers)
            for value, of in states.items():
                for variable, new in zip(of, now[schedule.outputs[state_of[value]].value], strict=True):
                    writer.assign(variable, new)
        for value, of in states.items():
            slot = schedule.outputs[state_of[value]]
            if not self.is_series(slot):
                self.store(slot, list(map(writer.get, of)), self.pointers)

    def is_series(self, slot: Slot) -> bool:
        return self.layout.steps.series[slot.index]

    def given(self) -> dict[Value, list[Operand]]:
        """Values that are known before the first step."""
        return {}

    @abc.abstractmethod
    def computed(self, value: Value, known: dict[Value, list[Operand]], pointers: dict[int, Ref]) -> list[Operand]:
        """Computes a value of the step whose tensors are at these addresses. known: the values before it."""

    @abc.abstractmethod
    def loaded(self, value: Value, pointers: dict[int, Ref]) -> list[Operand]:
        """Loads an input."""

    @abc.abstractmethod
    def store(self, slot: Slot, values: list[Operand], pointers: dict[int, Ref]) -> None:
        """Stores a result."""
