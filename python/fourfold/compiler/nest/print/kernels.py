"""Prints the kernels of a grid in a language of the C family. A ``GridDialect`` has the syntax that differs between
them."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from fourfold.compiler.ir.dtypes import BOOLEAN, INTEGERS
from fourfold.compiler.nest.ir.loops import (
    INDEX,
    POINTER,
    Barrier,
    Constant,
    Grid,
    Kernel,
    Let,
    Operand,
    Ref,
    Statement,
    Store,
)
from fourfold.compiler.nest.print.c import Printer
from fourfold.compiler.nest.print.dialect import ATOM, UNARY, Address, Dialect, Expression, call, reads

WRAPS = ("add", "sub", "mul")  # of integers: the language leaves an overflow undefined
# Of booleans, which the language converts to integers.
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
HEAD = """\
typedef WIDTH index;
FOURFOLD_FN index least(index a, index b) { return b < a ? b : a; }
FOURFOLD_FN float32 infinity() { return number<float32>(0x7f800000); }
FOURFOLD_FN float32 not_a_number() { return number<float32>(0x7fc00000); }
"""
ABOUT = {
    "elements": "Each thread takes some vectors of each tile of its block.",
    "rows": "The threads of a row reduce its columns together.",
    "stage": "The columns of a row by several blocks, up to the next reduction.",
    "columns": "Sums of columns over a chunk of rows.",
    "finish": "Sums of columns over all chunks.",
}


class GridDialect(Dialect, abc.ABC):
    def __init__(self, grid: Grid):
        super().__init__(grid.lanes)
        self.grid = grid

    @abc.abstractmethod
    def argument(self, index: int) -> Expression:
        """A number of the call, as an index."""

    @abc.abstractmethod
    def address(self, index: int) -> Expression:
        """A tensor of the call."""

    @abc.abstractmethod
    def given(self, type: str, index: int) -> Expression:
        """A number of the call, of a type."""

    @abc.abstractmethod
    def of_thread(self, what: str) -> Expression:
        """The thread's index, its block's, or how many blocks there are."""

    @abc.abstractmethod
    def shared(self, kind: str, offset: int) -> Expression:
        """The address in shared memory at this offset in bytes."""

    def head_of_file(self) -> str:
        """Definitions for all kernels."""
        return HEAD.replace("WIDTH", "int64" if self.grid.is_wide else "int32")

    def called(self, op: str, type: str) -> str:
        return op

    def loop(self, index: str, begin: str, end: str, step: str | None) -> str:
        return super().loop(index, begin, end, step).replace("int64", "index", 1)

    def type(self, type: str, lanes: int) -> str:
        own = "bool" if type == BOOLEAN else type
        return f"Vec<{own}, {lanes}>" if lanes else own

    def splat(self, number: str) -> str:
        return f"splat<{self.lanes}>({number})"

    def load(self, place: Address, lanes: int, mask: str | None, stride: str | None) -> Expression:
        if not lanes:
            return Expression(call("load", place.address.code, mask))
        if stride is not None:
            return Expression(call(f"load_strided<{lanes}>", place.address.code, stride, mask))
        return Expression(call(f"load<{lanes}>", place.address.code, mask))

    def store(self, place: Address, value: str, lanes: int, mask: str | None, stride: str | None) -> str:
        if lanes and stride is not None:
            return f"{call('store_strided', place.address.code, stride, value, mask)};"
        return f"{call('store', place.address.code, value, mask if lanes else None)};"


def print_grid(grid: Grid, dialect: GridDialect) -> str:
    """The kernels, without the prelude."""
    texts = []
    for kernel in grid.kernels:
        printer = GridPrinter(kernel, dialect)
        printer.print_all()
        texts.append(printer.text())
    return "\n".join(texts)


def print_file(grid: Grid, dialect: GridDialect) -> str:
    """A whole source file."""
    text = print_grid(grid, dialect)
    return (
        f"{dialect.prelude()}\nnamespace fourfold {{\n\n{dialect.head_of_file()}\n{text}\n}}  // namespace fourfold\n"
    )


class GridPrinter(Printer):
    function: Kernel

    def text(self) -> str:
        about = ABOUT[self.function.name.partition("_")[0]]
        return "\n".join([f"// {about}", self.dialect.head(self.function), *self.lines, "}", ""])

    def declare(self, ref: Ref, value: Expression) -> None:
        type = "auto" if ref.type == POINTER else self.dialect.type(ref.type, ref.lanes)
        self.emit(f"{type} {self.name(ref)} = {value.code};")

    def print_barrier(self, statement: Barrier, body: list[Statement]) -> None:
        self.emit("barrier();")

    def print_store(self, store: Store, body: list[Statement]) -> None:
        """A mask is a condition for the whole store."""
        value = self.value(store.value).code
        condition = "" if store.mask is None else f"if ({self.value(store.mask).code}) "
        stride = None if store.stride is None else self.index(store.stride)
        place = self.place(store.pointer, store.offset, store.kind)
        steps = None if stride is None else stride.code
        self.emit(condition + self.dialect.store(place, value, store.value.lanes, None, steps))

    def let_argument(self, let: Let) -> Expression:
        index, kind = let.attribute
        if let.result.type != POINTER:
            return self.dialect.argument(index)
        self.kinds[let.result.name] = kind
        return self.dialect.address(index)

    def let_number(self, let: Let) -> Expression:
        return self.dialect.given(let.result.type, let.attribute)

    def let_thread(self, let: Let) -> Expression:
        return self.dialect.of_thread("thread")

    def let_block(self, let: Let) -> Expression:
        return self.dialect.of_thread("block")

    def let_blocks(self, let: Let) -> Expression:
        return self.dialect.of_thread("blocks")

    def let_shared(self, let: Let) -> Expression:
        kind, offset = let.attribute
        self.kinds[let.result.name] = kind
        return self.dialect.shared(kind, offset)

    def let_exchange(self, let: Let) -> Expression:
        value = self.value(let.operands[0])
        return Expression(f"exchange({value.code}, {let.attribute})", ATOM, value.reads)

    def let_min(self, let: Let) -> Expression:
        parts = [self.index(operand) for operand in let.operands]
        return Expression(call("least", *(part.code for part in parts)), ATOM, reads(parts))

    def let_splat(self, let: Let) -> Expression:
        value = self.value(let.operands[0])
        return Expression(f"splat<{let.result.lanes}>({value.code})", ATOM, value.reads)

    def value(self, operand: Operand) -> Expression:
        if isinstance(operand, Constant) and operand.lanes:
            return Expression(f"splat<{operand.lanes}>({self.dialect.number(operand)})")
        return super().value(operand)

    def operation(self, op: str, given: Sequence[Operand]) -> Expression:
        first = given[0]
        has_own_type = op in WRAPS and first.type in INTEGERS or op in BITWISE and first.type == BOOLEAN
        if has_own_type and not any(operand.lanes for operand in given):
            return self.call(op, given)
        if op.startswith("to_") and first.type == INDEX:
            value = self.value(first)
            return Expression(f"({op[3:]}){value.within(UNARY)}", UNARY, value.reads)
        if op == "neg" and first.type in INTEGERS:
            return self.call(op, given)
        return super().operation(op, given)
