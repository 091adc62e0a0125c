"""The layout of a call's tensors, as cpp/cpu/program/loops.h writes it."""

from __future__ import annotations

from dataclasses import dataclass

# What threads share: elements, whole rows, the columns of each row, rows of few columns, or rows that lie side by side.
ELEMENTS, ROWS, COLUMNS, SHORT_ROWS, SIDE_BY_SIDE = "ercsb"
BROADCAST, UNIT, STRIDED, ROW_BY_ROW = "01nc"
CONTINUED = "d"  # an axis of a row's columns that a tensor steps through as through one with the next
STREAMED = "="  # 1, of an output that is stored past the caches


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

    def stride(self, tensor: int, axis: int) -> str:
        """Its class: a digit is the stride itself."""
        return UNIT if self.is_streamed(tensor) and axis == self.axes - 1 else self.strides[tensor][axis]

    def is_streamed(self, tensor: int) -> bool:
        return self.strides[tensor][-1] == STREAMED

    def has_dense_columns(self, tensor: int) -> bool:
        """Whether it steps through all axes of a row's columns as through one."""
        own = self.strides[tensor][self.rows :]
        return all(a == CONTINUED or a == b == BROADCAST for a, b in zip(own, own[1:], strict=False))

    @property
    def turned(self) -> int | None:
        """The axis along which tensors lie side by side whose neighbours are not those along the innermost axis."""
        across = [strides for strides in self.strides if strides[-1] == STRIDED]
        found = [axis for axis in range(self.axes - 1) if any(strides[axis] == UNIT for strides in across)]
        return found[-1] if found else None

    @property
    def axes(self) -> int:
        return len(self.strides[0])
