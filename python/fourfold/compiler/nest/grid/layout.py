"""The layout of a call on a device that runs grids of threads, as cpp/program/grid.h writes it."""

from __future__ import annotations

from dataclasses import dataclass

from fourfold.compiler.nest.layout import BROADCAST, CONTINUED, UNIT, Steps

# What the threads of a grid share: elements; rows, each by some threads that lie along its columns; rows that lie side
# by side, along which the threads lie; or columns, which are summed over the rows.
ELEMENTS, ROWS, SIDE_BY_SIDE, COLUMNS = "elements", "rows", "side", "columns"
ALIGNED = "v"  # 1, of a tensor whose vectors begin at multiples of their size


@dataclass(frozen=True, slots=True)
class GridLayout:
    """rows: how many of the axes number the rows. lanes: elements that a thread has side by side. copies: such vectors
    that it has in flight. group: the threads of a row; of rows side by side and of columns, the threads that share one.
    each: how many vectors of its row a thread keeps in registers, 0 for rows that are too long. is_split: whether
    several blocks share a row. is_wide: whether indices take 64 bits. strides: for each tensor, inputs first, the class
    of its stride along each axis."""

    split: str
    rows: int
    lanes: int
    copies: int
    group: int
    each: int
    is_split: bool
    is_wide: bool
    strides: tuple[str, ...]
    steps: Steps | None = None

    @classmethod
    def of(cls, text: str) -> GridLayout:
        steps, _, text = text.rpartition("/")
        head, tensors = text.split(":")
        split, *words = head.split()[1:]
        given = {name: int(number) for name, number in (word.split("=") for word in words)}
        names = ("rows", "lanes", "copies", "group", "each")
        flags = (bool(given["split"]), bool(given["wide"]))
        strides = tuple(tensors.split(","))
        return cls(split, *(given[name] for name in names), *flags, strides, Steps.of(steps) if steps else None)

    def stride(self, tensor: int, axis: int) -> str:
        """Its class: 0, 1, or another."""
        found = self.strides[tensor][axis]
        return UNIT if found == ALIGNED else found

    def is_aligned(self, tensor: int) -> bool:
        return self.strides[tensor][-1] == ALIGNED

    def has_dense_columns(self, tensor: int) -> bool:
        """Whether it steps through all axes of the columns as through one."""
        own = self.strides[tensor][self.rows :]
        return all(a == CONTINUED or a == b == BROADCAST for a, b in zip(own, own[1:], strict=False))

    @property
    def axes(self) -> int:
        return len(self.strides[0])


def is_grid(layout: str) -> bool:
    return layout.rpartition("/")[2].startswith("grid ")
