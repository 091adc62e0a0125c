"""The layout of a call's tensors, as cpp/cpu/program/loops.h writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fourfold.compiler.ir import Dims, Output, Program

# What threads share: elements, whole rows, the columns of each row, or rows of few columns.
ELEMENTS, ROWS, COLUMNS, SHORT_ROWS = "ercs"
BROADCAST, UNIT, STRIDED, ROW_BY_ROW = "01nc"
# cpp/cpu/program/run.cpp, column_sums.cpp and loops.cpp have the same.
LONG_COLUMNS, FEWEST_ROWS, MOST_CHUNKS, MOST_SHORT_COLUMNS, FEWEST_SHORT_ROWS = 16384, 16, 32, 16, 16

Given = tuple[Sequence[int], Sequence[int]]
Merged = tuple[int, list[int]]


@dataclass(frozen=True, slots=True)
class Layout:
    """split: what threads share. rows: how many of the axes number the rows. strides: for each tensor, inputs first,
    the class of its stride along each axis. columns: how many short rows have."""

    split: str
    rows: int
    strides: tuple[str, ...]
    columns: int = 0

    @classmethod
    def of(cls, text: str) -> Layout:
        head, tensors = text.split(":")
        rows, _, columns = head[1:].partition("x")
        return cls(head[0], int(rows), tuple(tensors.split(",")), int(columns or 0))

    @property
    def turned(self) -> int | None:
        """The axis along which tensors lie side by side whose neighbours are not those along the innermost axis."""
        across = [strides for strides in self.strides if strides[-1] == STRIDED]
        found = [axis for axis in range(self.axes - 1) if any(strides[axis] == UNIT for strides in across)]
        return found[-1] if found else None

    @property
    def axes(self) -> int:
        return len(self.strides[0])


def layout_of(program: Program, inputs: Sequence[Given], threads: int) -> str:
    """The layout of a call, as the library writes it (cpp/cpu/program/loops.cpp). inputs: each tensor's sizes and
    strides, both empty for numbers. threads: that torch may use."""
    names = {given.name: k for k, given in enumerate(program.inputs)}
    sizes = []
    for axis in program.axes:
        name, dot, dim = axis.size.partition(".")
        sizes.append(inputs[names[name]][0][int(dim)] if dot else int(axis.size))
    strides = [along(given.dims, strides, sizes) for given, (_, strides) in zip(program.inputs, inputs, strict=True)]
    for output in program.outputs:
        own = [0] * len(sizes) if output.column_sum else along(output.dims, strides_of(output, sizes), sizes)
        strides += [own] * len(output.values)
    outer = program.outer or 0
    rows, columns = merged(sizes, range(outer), strides), merged(sizes, range(outer, len(sizes)), strides)
    columns = columns or [(1, [0] * len(strides))]
    split, axes, row_axes = ELEMENTS, rows + columns, len(rows)
    if program.outer is not None:
        split = COLUMNS if shares_rows(program, sizes, threads) else ROWS
    size = axes[-1][0]
    if is_short(program, axes, len(columns)):
        split, row_axes = SHORT_ROWS, len(axes) - 1

    def stride_class(axis: int, stride: int) -> str:
        if split == SHORT_ROWS and axis + 1 == row_axes and stride == size > 1:
            return ROW_BY_ROW
        return {0: BROADCAST, 1: UNIT}.get(stride, STRIDED)

    classes = ["".join(stride_class(k, of[t]) for k, (_, of) in enumerate(axes)) for t in range(len(strides))]
    few = f"x{size}" if split == SHORT_ROWS else ""
    return f"{split}{row_axes}{few}:{','.join(classes)}"


def is_short(program: Program, axes: Sequence[Merged], column_axes: int) -> bool:
    """Whether it is one of rows of few columns: cpp/cpu/program/loops.cpp has the rule."""
    has_column_sums = any(output.column_sum for output in program.outputs)
    is_one_axis = program.outer is None or column_axes == 1
    columns, rows = axes[-1][0], axes[-2][0] if len(axes) > 1 else 1
    return not has_column_sums and is_one_axis and 1 <= columns <= MOST_SHORT_COLUMNS and rows >= FEWEST_SHORT_ROWS


def along(dims: Dims, strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """A tensor's stride along each axis."""
    result = [0] * len(sizes)
    for dim, stride in zip(dims, strides, strict=True):
        for axis in reversed(dim):
            result[axis] = stride
            stride *= sizes[axis]
    return result


def strides_of(output: Output, sizes: Sequence[int]) -> list[int]:
    """Of the whole tensor that the program makes."""
    own = [math.prod(sizes[axis] for axis in dim) for dim in output.dims]
    if output.join >= 0:
        own[output.join] *= len(output.values)
    result, stride = [0] * len(own), 1
    for dim in reversed(output.order):
        result[dim] = stride
        stride *= max(1, own[dim])
    return result


def merged(sizes: Sequence[int], axes: Iterable[int], strides: Sequence[Sequence[int]]) -> list[Merged]:
    """The sizes and strides of axes, of which two are one where every tensor steps through them as through one."""
    found: list[Merged] = []
    for axis in axes:
        size, own = sizes[axis], [of[axis] for of in strides]
        if size == 1:
            continue
        if found and all(last == stride * size for last, stride in zip(found[-1][1], own, strict=True)):
            found[-1] = found[-1][0] * size, own
        else:
            found.append((size, own))
    return found


def shares_rows(program: Program, sizes: Sequence[int], threads: int) -> bool:
    """Whether threads share the columns of each row: cpp/cpu/program/run.cpp has the rule."""
    rows, columns = math.prod(sizes[: program.outer]), math.prod(sizes[program.outer :])
    if any(output.column_sum for output in program.outputs):
        each = max(FEWEST_ROWS, -(-rows // MOST_CHUNKS))
        rows = max(1, -(-rows // each))
    return rows < threads and columns >= LONG_COLUMNS
