"""The layout of a call's tensors, as cpp/cpu/program/loops.h writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fourfold.compiler.ir import Dims, Output, Program

ELEMENTS, ROWS, COLUMNS = "erc"  # what threads share: elements, whole rows, or the columns of each row
BROADCAST, UNIT, STRIDED = "01n"
# cpp/cpu/program/run.cpp and column_sums.cpp have the same.
LONG_COLUMNS, FEWEST_ROWS, MOST_CHUNKS = 16384, 16, 32

Given = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Layout:
    """split: what threads share. rows: how many of the axes number the rows. strides: for each tensor, inputs first,
    the class of its stride along each axis."""

    split: str
    rows: int
    strides: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Layout:
        head, tensors = text.split(":")
        return cls(head[0], int(head[1:]), tuple(tensors.split(",")))

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
    columns = columns or [[0] * len(strides)]
    split = ELEMENTS
    if program.outer is not None:
        split = COLUMNS if shares_rows(program, sizes, threads) else ROWS
    classes = [
        "".join({0: BROADCAST, 1: UNIT}.get(axis[t], STRIDED) for axis in rows + columns) for t in range(len(strides))
    ]
    return f"{split}{len(rows)}:{','.join(classes)}"


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


def merged(sizes: Sequence[int], axes: Iterable[int], strides: Sequence[Sequence[int]]) -> list[list[int]]:
    """The strides of axes, of which two are one where every tensor steps through them as through one."""
    found: list[list[int]] = []
    for axis in axes:
        own = [of[axis] for of in strides]
        if sizes[axis] == 1:
            continue
        if found and all(last == stride * sizes[axis] for last, stride in zip(found[-1], own, strict=True)):
            found[-1] = own
        else:
            found.append(own)
    return found


def shares_rows(program: Program, sizes: Sequence[int], threads: int) -> bool:
    """Whether threads share the columns of each row: cpp/cpu/program/run.cpp has the rule."""
    rows, columns = math.prod(sizes[: program.outer]), math.prod(sizes[program.outer :])
    if any(output.column_sum for output in program.outputs):
        each = max(FEWEST_ROWS, -(-rows // MOST_CHUNKS))
        rows = max(1, -(-rows // each))
    return rows < threads and columns >= LONG_COLUMNS
