"""A loop over steps within the loop over vectors: states stay in registers from step to step."""

from __future__ import annotations

from fourfold.compiler.ir import Value
from fourfold.compiler.nest.layout import BROADCAST, ROWS, Layout
from fourfold.compiler.nest.loops import Operand, Ref
from fourfold.compiler.nest.plan import ELEMENT, NotCompiled, Plan
from fourfold.compiler.nest.steps_of_rows import COPIES, IN_REGISTERS, are_numbers, at_step, check_rows, steps_of
from fourfold.compiler.nest.vectors import Place, VectorBody


def check_steps(plan: Plan, layout: Layout) -> None:
    """Raises NotCompiled."""
    if layout.split == ROWS:
        return check_rows(plan, layout)
    if layout.turned is not None:
        raise NotCompiled("tensors that lie transposed to each other within a step")
    for slot, feed in zip(plan.inputs, layout.steps.feeds, strict=True):
        if feed is not None and not slot.kind == plan.outputs[feed].kind in IN_REGISTERS:
            raise NotCompiled(f"a state of {slot.kind}")
    if are_numbers(plan):
        return None
    for slot, feed in zip(plan.inputs, layout.steps.feeds, strict=True):
        if feed is None and not layout.steps.series[slot.index]:
            continue
        if slot.level != ELEMENT:
            raise NotCompiled("a state or a series of one number, beside others")
    if any(slot.level != ELEMENT or slot.is_column_sum or slot.interleaved != (0, 1) for slot in plan.outputs):
        raise NotCompiled("a result of a step that is no series of whole vectors")
    return None


class StepsBody(VectorBody):
    """All steps of several vectors."""

    @property
    def copies(self) -> int:
        return COPIES

    def feed(self, value: Value) -> int | None:
        return self.builder.layout.steps.feeds[value.attribute] if value.op == "input" else None

    def changes(self, value: Value) -> bool:
        return self.builder.layout.steps.changes(value)

    def write(self, places: list[Operand], mask: Ref | None, chain: Ref | None) -> None:
        builder, writer = self.builder, self.writer
        first_step = self.place
        inputs = [value for value in self.values if value.op == "input" and value not in self.splats]
        states = [value for value in inputs if self.feed(value) is not None]
        known: list[dict[Value, Operand]] = [dict(self.splats) for _ in places]
        for value in inputs:
            for own, k in zip(known, places, strict=True):
                if value in states:
                    own[value] = writer.variable(value.type, self.vector(value, own, k, mask), self.lanes, "state")
                elif not self.changes(value):
                    own[value] = self.vector(value, own, k, mask)
        held = [{value: own.pop(value) for value in states} for own in known]
        with writer.loop(0, steps_of(builder), 1, name="step") as step:
            pointers = at_step(builder, first_step.pointers, step)
            self.place = Place(pointers, first_step.column, first_step.count)
            now = [
                own | {value: writer.get(state) for value, state in of.items()}
                for own, of in zip(known, held, strict=True)
            ]
            for value in self.values:
                for own, k in zip(now, places, strict=True):
                    if value not in own:
                        own[value] = self.vector(value, own, k, mask)
            fed = {self.feed(value) for value in states}
            for own, k in zip(now, places, strict=True):
                for n, slot in enumerate(self.plan.outputs):
                    if n not in fed or self.is_series(slot.index):
                        self.store(slot, own[slot.value], k, mask)
            for own, of in zip(now, held, strict=True):
                for value, state in of.items():
                    writer.assign(state, own[self.plan.outputs[self.feed(value)].value])
        self.place = first_step
        for value in states:
            slot = self.plan.outputs[self.feed(value)]
            for of, k in zip(held, places, strict=True):
                if not self.is_series(slot.index):
                    self.store(slot, writer.get(of[value]), k, mask)

    def is_series(self, tensor: int) -> bool:
        return self.builder.layout.steps.series[tensor]

    def vector(self, value: Value, known: dict[Value, Operand], k: Operand, mask: Ref | None) -> Ref:
        if value.op == "input" and self.stride(value.attribute) == BROADCAST:
            return self.builder.splat(self.load(value, None, None), value)
        return super().vector(value, known, k, mask)
