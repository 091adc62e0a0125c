"""The layout of a call's tensors, as cpp/cpu/program/loops.h writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fourfold.compiler.ir.values import Value

# How threads split the work: by elements, rows, columns of each row, rows of few columns, or rows adjacent in memory.
ELEMENTS, ROWS, COLUMNS, SHORT_ROWS, SIDE_BY_SIDE = "ercsb"
BROADCAST, UNIT, STRIDED, ROW_BY_ROW = "01nc"
CONTINUED = "d"  # an axis of a row's columns that acts as one with the next axis
STREAMED = "="  # stride 1, of an output with non-temporal stores


SERIES = "s"  # of a loop over steps: each step has a tensor of its own
LONGEST_REDUCED_ROW = 128  # columns of a row that a step reduces


@dataclass(frozen=True, slots=True)
class Steps:
    """A loop over steps whose body is the program. feeds: for each input the output whose value the next step reads
    there, or None. series: for each tensor, inputs first, whether each step has its own."""

    feeds: tuple[int | None, ...]
    series: tuple[bool, ...]

    @classmethod
    def of(cls, text: str) -> Steps:
        inputs, outputs = (part.split(",") for part in text[1:].split(";"))
        feeds = tuple(int(each[1:]) if each[0] == "c" else None for each in inputs)
        return cls(feeds, tuple(each == SERIES for each in (*inputs, *outputs)))

    def changes(self, value: Value) -> bool:
        """Whether it is an input whose value differs between steps."""
        return value.op == "input" and (self.feeds[value.attribute] is not None or self.series[value.attribute])


@dataclass(frozen=True, slots=True)
class Layout:
    """split: how threads split the work. rows: how many leading axes number the rows. strides: for each tensor, inputs
    first, the class of its stride along each axis. columns: how many a row has, if the nest is for this number alone.
    transposed: the axis along which tensors are contiguous that aren't contiguous along the innermost one. steps: None
    without such a loop. has_few_columns: whether rows side by side have few, whatever their number."""

    split: str
    rows: int
    strides: tuple[str, ...]
    columns: int = 0
    transposed: int | None = None
    steps: Steps | None = None
    has_few_columns: bool = False

    @classmethod
    def of(cls, text: str) -> Layout:
        steps, _, text = text.rpartition("/")
        head, tensors = text.split(":")
        numbers = re.fullmatch(r"(\d+)(?:x(\d+))?(f)?(?:t(\d+))?", head[1:])
        rows, columns, transposed = (None if k is None else int(k) for k in numbers.group(1, 2, 4))
        strides = tuple(tensors.split(","))
        own = Steps.of(steps) if steps else None
        return cls(head[0], rows, strides, columns or 0, transposed, own, numbers.group(3) is not None)

    def stride(self, tensor: int, axis: int) -> str:
        """The class of its stride; a digit is the stride itself."""
        return UNIT if self.is_streamed(tensor) and axis == self.axes - 1 else self.strides[tensor][axis]

    def is_streamed(self, tensor: int) -> bool:
        return self.strides[tensor][-1] == STREAMED

    def has_dense_columns(self, tensor: int) -> bool:
        """Whether the axes of a row's columns act as one axis for it."""
        return are_mergeable(self.strides[tensor][self.rows :])

    @property
    def axes(self) -> int:
        return len(self.strides[0])


def are_mergeable(strides: str) -> bool:
    """Whether a tensor's axes with strides of these classes act as one axis."""
    return all(a == CONTINUED or a == b == BROADCAST for a, b in zip(strides, strides[1:], strict=False))
