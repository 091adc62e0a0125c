"""Prints a grid as CUDA C, which HIP compiles too: ``cuda/nest.cuh`` has the differences between the two, and all that
kernels call."""

from __future__ import annotations

import re

from fourfold.compiler.nest.ir.loops import Grid, Kernel
from fourfold.compiler.nest.print import kernels
from fourfold.compiler.nest.print.dialect import UNARY, Expression, called_names
from fourfold.devices import text

KEYWORDS = frozenset(re.findall(r"\w+", """
    alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do
    double else enum explicit export extern false final float for friend goto if inline int long mutable namespace new
    noexcept not nullptr operator or private protected public register return short signed sizeof static struct switch
    template this throw true try typedef typename union unsigned using virtual void volatile while xor
    arguments index Vec shared numbers half device constant threadgroup kernel thread_index block_index block_count
"""))  # fmt: skip


def print_grid(grid: Grid) -> str:
    """The kernels alone, to read."""
    return kernels.print_grid(grid, Dialect(grid))


def print_file(grid: Grid) -> str:
    """The source for the run-time compiler."""
    return kernels.print_file(grid, Dialect(grid))


def prelude() -> str:
    """The definitions that kernels call."""
    return text.cuda()


class Dialect(kernels.GridDialect):
    @property
    def reserved(self) -> frozenset[str]:
        return KEYWORDS | called_names(self.prelude() + self.head_of_file())

    def prelude(self) -> str:
        return prelude()

    def head_of_file(self) -> str:
        sizes = f"int64 numbers[{self.grid.numbers}]; void* tensors[{len(self.grid.tensors)}];"
        return f"{super().head_of_file()}struct Arguments {{ {sizes} }};\n"

    def head(self, function: Kernel) -> str:
        bounds = f"__launch_bounds__({function.threads})"
        return f'extern "C" __global__ void {bounds} fourfold_{function.name}(Arguments arguments) {{'

    def loop(self, index: str, begin: str, end: str, step: str | None) -> str:
        """Not unrolled: the layout sets how many vectors a body has in flight."""
        return f'_Pragma("unroll 1") {super().loop(index, begin, end, step)}'

    def argument(self, index: int) -> Expression:
        return Expression(f"(index)arguments.numbers[{index}]", UNARY)

    def address(self, index: int) -> Expression:
        return Expression(f"({self.grid.tensors[index]}*)arguments.tensors[{index}]", UNARY)

    def given(self, type: str, index: int) -> Expression:
        return Expression(f"number<{self.type(type, 0)}>(arguments.numbers[{index}])")

    def of_thread(self, what: str) -> Expression:
        return Expression({"thread": "thread_index()", "block": "block_index()", "blocks": "block_count()"}[what])

    def shared(self, kind: str, offset: int) -> Expression:
        return Expression(f"({kind}*)(shared_memory() + {offset})", UNARY)

    def not_finite(self, value: float) -> str:
        return "not_a_number()" if value != value else "infinity()" if value > 0 else "-infinity()"
