"""Writes the kernels of a program for a layout of its call."""

from __future__ import annotations

from fourfold.compiler.ir.values import Program
from fourfold.compiler.nest.grid.builder import GridBuilder, first_number
from fourfold.compiler.nest.grid.columns import Finish, SumsOfChunks
from fourfold.compiler.nest.grid.elements import Elements
from fourfold.compiler.nest.grid.layout import COLUMNS, ELEMENTS, ROWS, SIDE_BY_SIDE, GridLayout
from fourfold.compiler.nest.grid.rows import Rows
from fourfold.compiler.nest.grid.split_rows import SplitRows
from fourfold.compiler.nest.ir.loops import Grid
from fourfold.compiler.nest.ir.schedule import ELEMENT, NotCompiled, Schedule
from fourfold.compiler.nest.ir.steps import IN_REGISTERS

MOST_SHARED = 48 * 1024  # bytes per block; a printer refuses what its own target has no room for


def build(program: Program, layout: GridLayout) -> Grid:
    """Raises NotCompiled."""
    schedule = Schedule(program, keeps=False)
    if layout.split in (ROWS, SIDE_BY_SIDE) and not layout.each:  # each stage reads the row again
        online = Schedule(program, keeps=False, has_online_sums=True)
        if online.stages < schedule.stages:
            schedule = online
    if layout.steps is not None:
        check_steps(schedule, layout)
    kernels = [builder.write_kernel() for builder in builders(schedule, layout)]
    if any(kernel.shared > MOST_SHARED for kernel in kernels):
        raise NotCompiled("reductions that need more memory than a block's shared memory")
    numbers = first_number(layout) + sum(each.kind == "number" for each in program.inputs)
    tensors = (*(slot.kind for slot in schedule.inputs), *(slot.kind for slot in schedule.outputs), "int64")
    return Grid(kernels, layout.lanes, layout.is_wide, numbers, tensors)


def builders(schedule: Schedule, layout: GridLayout) -> list[GridBuilder]:
    if layout.split == ELEMENTS:
        return [Elements(schedule, layout)]
    if layout.split == COLUMNS:
        return [SumsOfChunks(schedule, layout), *([Finish(schedule, layout)] if layout.is_split else [])]
    if layout.is_split:
        return [SplitRows(schedule, layout, stage) for stage in range(schedule.stages)]
    has_sums = any(slot.is_column_sum for slot in schedule.outputs)
    return [Rows(schedule, layout), *([Finish(schedule, layout)] if has_sums else [])]


def check_steps(schedule: Schedule, layout: GridLayout) -> None:
    """Raises NotCompiled for loops over steps that are not elementwise."""
    if layout.split != ELEMENTS:
        raise NotCompiled("a step with reductions")
    for slot, feed in zip(schedule.inputs, layout.steps.feeds, strict=True):
        if feed is None:
            continue
        new = schedule.outputs[feed]
        if slot.level != ELEMENT or not slot.kind == new.kind in IN_REGISTERS:
            raise NotCompiled(f"a state of {slot.kind}, or one whose new value has another shape")
    if any(slot.level != ELEMENT or slot.is_column_sum for slot in schedule.outputs):
        raise NotCompiled("a result of a step that is not a series of elements")
