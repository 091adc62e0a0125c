"""Prints a grid in Metal's language: ``metal/nest.h`` has what kernels call."""

from __future__ import annotations

from fourfold.compiler.dtypes import FLOAT64
from fourfold.compiler.nest import cuda
from fourfold.compiler.nest.dialect import UNARY, Expression
from fourfold.compiler.nest.grid import printer
from fourfold.compiler.nest.loops import Grid, Kernel
from fourfold.compiler.nest.plan import NotCompiled

from fourfold.devices import text

MOST_BUFFERS = 31  # a kernel's, the numbers' among them


def print_grid(grid: Grid) -> str:
    """The kernels alone, to read."""
    return printer.print_grid(grid, Dialect(grid))


def print_file(grid: Grid) -> str:
    """What the system compiles."""
    return printer.print_file(grid, Dialect(grid))


def prelude() -> str:
    """What kernels call."""
    return text.metal()


class Dialect(cuda.Dialect):
    """Where it spells something as CUDA C does, it takes it from there."""

    def __init__(self, grid: Grid):
        super().__init__(grid)
        if FLOAT64 in grid.tensors:
            raise NotCompiled("float64, which Apple's GPUs don't have")
        if len(grid.tensors) >= MOST_BUFFERS:
            raise NotCompiled(f"more than {MOST_BUFFERS - 2} tensors, which a kernel of Metal can't take")

    def prelude(self) -> str:
        return prelude()

    def head_of_file(self) -> str:
        return printer.GridDialect.head_of_file(self)

    def head(self, function: Kernel) -> str:
        parameters = [f"device {kind}* tensor_{k} [[buffer({k})]]" for k, kind in enumerate(self.grid.tensors)]
        parameters += [
            f"constant int64* numbers [[buffer({len(self.grid.tensors)})]]",
            "threadgroup uint8* shared [[threadgroup(0)]]",
            "uint thread_index [[thread_index_in_threadgroup]]",
            "uint block_index [[threadgroup_position_in_grid]]",
            "uint block_count [[threadgroups_per_grid]]",
        ]
        bounds = f"max_total_threads_per_threadgroup({function.threads})"
        return f"[[kernel, {bounds}]] void fourfold_{function.name}(\n    {', '.join(parameters)}) {{"

    def loop(self, index: str, begin: str, end: str, step: str | None) -> str:
        return printer.GridDialect.loop(self, index, begin, end, step)

    def pointer(self, kind: str) -> str:
        return f"device {kind}*"

    def argument(self, index: int) -> Expression:
        return Expression(f"(index)numbers[{index}]", UNARY)

    def address(self, index: int) -> Expression:
        return Expression(f"tensor_{index}")

    def given(self, type: str, index: int) -> Expression:
        return Expression(f"number<{self.type(type, 0)}>(numbers[{index}])")

    def of_thread(self, what: str) -> Expression:
        return Expression(
            {"thread": "(index)thread_index", "block": "(index)block_index"}.get(what, "(index)block_count"), UNARY
        )

    def shared(self, kind: str, offset: int) -> Expression:
        return Expression(f"(threadgroup {kind}*)(shared + {offset})", UNARY)
