"""The layout of a call on a device that runs grids of threads, as cpp/program/grid.h writes it."""

from __future__ import annotations

from dataclasses import dataclass

from fourfold.compiler.nest.ir.layout import UNIT, Steps, are_mergeable

# How threads split the work: by elements; by rows, with a row's threads along its columns; by rows that are adjacent in
# memory, with the threads along the rows; or by columns, which are summed over the rows.
ELEMENTS, ROWS, SIDE_BY_SIDE, COLUMNS = "elements", "rows", "side", "columns"
ALIGNED = "v"  # stride 1, and vectors begin at multiples of their size


@dataclass(frozen=True, slots=True)
class GridLayout:
    """rows: how many leading axes number the rows. lanes: contiguous elements of a thread, one vector. copies: vectors
    that a thread has in flight, or rows, where rows are kept and columns summed. group: the threads of a row; for
    rows side by side and for columns, the threads that share one. each: how many vectors of its row a thread keeps
    in registers, 0 for rows that are too long. is_split: whether several blocks share a row. is_wide: whether
    indices have 64 bits. strides: for each tensor, inputs first, the class of its stride along each axis."""

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
        """The class of its stride: 0, 1, or another."""
        found = self.strides[tensor][axis]
        return UNIT if found == ALIGNED else found

    def is_aligned(self, tensor: int) -> bool:
        return self.strides[tensor][-1] == ALIGNED

    def has_dense_columns(self, tensor: int) -> bool:
        """Whether the axes of the columns act as one axis for it."""
        return are_mergeable(self.strides[tensor][self.rows :])

    @property
    def axes(self) -> int:
        return len(self.strides[0])


def is_grid(layout: str) -> bool:
    return layout.rpartition("/")[2].startswith("grid ")
