"""The layout of a call's tensors, as cpp/cpu/program/loops.h writes it."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENTS, ROWS, COLUMNS = "erc"  # what threads share: elements, whole rows, or the columns of each row
BROADCAST, UNIT, STRIDED = "01n"


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
