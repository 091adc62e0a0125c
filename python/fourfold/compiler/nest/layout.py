"""The layout of a call's tensors, as cpp/cpu/program/loops.h writes it."""

from __future__ import annotations

from dataclasses import dataclass

from fourfold.compiler.ir import Value

# What threads share: elements, whole rows, the columns of each row, rows of few columns, or rows that lie side by side.
ELEMENTS, ROWS, COLUMNS, SHORT_ROWS, SIDE_BY_SIDE = "ercsb"
BROADCAST, UNIT, STRIDED, ROW_BY_ROW = "01nc"
CONTINUED = "d"  # an axis of a row's columns that a tensor steps through as through one with the next
STREAMED = "="  # 1, of an output that is stored past the caches


SERIES = "s"  # of a loop over steps: each step has a tensor of its own


@dataclass(frozen=True, slots=True)
class Steps:
    """Of a loop over steps whose body the program is. feeds: for each input the output whose value the next step reads
    there, or None. series: for each tensor, inputs first, whether each step has its own."""

    feeds: tuple[int | None, ...]
    series: tuple[bool, ...]

    @classmethod
    def of(cls, text: str) -> Steps:
        inputs, outputs = (part.split(",") for part in text[1:].split(";"))
        feeds = tuple(int(each[1:]) if each[0] == "c" else None for each in inputs)
        return cls(feeds, tuple(each == SERIES for each in (*inputs, *outputs)))

    def changes(self, value: Value) -> bool:
        """Whether it is an input that has another value in another step."""
        return value.op == "input" and (self.feeds[value.attribute] is not None or self.series[value.attribute])


@dataclass(frozen=True, slots=True)
class Layout:
    """split: what threads share. rows: how many of the axes number the rows. strides: for each tensor, inputs first,
    the class of its stride along each axis. columns: how many short rows have. steps: None without a loop over them."""

    split: str
    rows: int
    strides: tuple[str, ...]
    columns: int = 0
    steps: Steps | None = None

    @classmethod
    def of(cls, text: str) -> Layout:
        steps, _, text = text.rpartition("/")
        head, tensors = text.split(":")
        rows, _, columns = head[1:].partition("x")
        strides = tuple(tensors.split(","))
        return cls(head[0], int(rows), strides, int(columns or 0), Steps.of(steps) if steps else None)

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
