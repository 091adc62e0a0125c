"""Prints a grid in Metal's language: ``metal/nest.h`` has what kernels call."""

from __future__ import annotations

import re

from fourfold.compiler.ir.dtypes import FLOAT64
from fourfold.compiler.nest.ir.loops import Grid, Kernel, Let, Loop, Statement, Variable, When
from fourfold.compiler.nest.ir.schedule import NotCompiled
from fourfold.compiler.nest.print import cuda, kernels
from fourfold.compiler.nest.print.dialect import UNARY, Expression
from fourfold.devices import text

MOST_BUFFERS = 31  # of a kernel, including the one for numbers
MOST_CONSTANTS = 4096  # bytes that a call passes without a buffer
MOST_SHARED = 32 * 1024
# Metal's reserved words, besides those of C++.
KEYWORDS = frozenset(re.findall(r"\w+", """
    as_type bfloat char2 char4 constant device float2 float4 fragment half intersection kernel long2 long4 mesh metal
    object object_data ray_data sampler short2 short4 stitchable texture thread threadgroup threadgroup_imageblock uchar
    uint uint2 uint4 ulong ushort ushort2 vertex visible
"""))  # fmt: skip


def print_grid(grid: Grid) -> str:
    """The kernels alone, to read."""
    return kernels.print_grid(grid, Dialect(grid))


def print_file(grid: Grid) -> str:
    """The source that the system compiles."""
    return kernels.print_file(grid, Dialect(grid))


def prelude() -> str:
    """The definitions that kernels call."""
    return text.metal()


class Dialect(cuda.Dialect):
    """Inherits from CUDA C what both languages have in common."""

    def __init__(self, grid: Grid):
        super().__init__(grid)
        if FLOAT64 in grid.tensors or any(computes_float64(kernel.body) for kernel in grid.kernels):
            raise NotCompiled("float64, which Apple's GPUs don't have")
        if len(grid.tensors) >= MOST_BUFFERS:
            raise NotCompiled(f"more than {MOST_BUFFERS - 2} tensors, the limit of a Metal kernel")
        if 8 * grid.numbers > MOST_CONSTANTS:
            raise NotCompiled(
                f"axes whose sizes and strides take more than the {MOST_CONSTANTS} bytes of a call of Metal"
            )
        if any(kernel.shared > MOST_SHARED for kernel in grid.kernels):
            raise NotCompiled(f"reductions that need more than the {MOST_SHARED // 1024} KB of a threadgroup's memory")

    @property
    def reserved(self) -> frozenset[str]:
        return super().reserved | KEYWORDS

    def prelude(self) -> str:
        return prelude()

    def head_of_file(self) -> str:
        return kernels.GridDialect.head_of_file(self)

    def head(self, function: Kernel) -> str:
        parameters = [f"device {kind}* tensor_{k} [[buffer({k})]]" for k, kind in enumerate(self.grid.tensors)]
        parameters += [
            f"constant int64* numbers [[buffer({len(self.grid.tensors)})]]",
            *(["threadgroup uint8* shared [[threadgroup(0)]]"] if function.shared else []),
            "uint thread_index [[thread_index_in_threadgroup]]",
            "uint block_index [[threadgroup_position_in_grid]]",
            "uint block_count [[threadgroups_per_grid]]",
        ]
        name = f"fourfold_{function.name}"  # also the host's, which would otherwise have the namespace's name before it
        attributes = f'kernel, host_name("{name}"), max_total_threads_per_threadgroup({function.threads})'
        return f"[[{attributes}]] void {name}(\n    {', '.join(parameters)}) {{"

    def loop(self, index: str, begin: str, end: str, step: str | None) -> str:
        return kernels.GridDialect.loop(self, index, begin, end, step)

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


def computes_float64(body: list[Statement]) -> bool:
    """Whether any value is computed in float64, whatever the tensors' types."""
    for statement in body:
        if isinstance(statement, (Let, Variable)) and statement.result.type == FLOAT64:
            return True
        if isinstance(statement, (Loop, When)) and computes_float64(statement.body):
            return True
    return False
