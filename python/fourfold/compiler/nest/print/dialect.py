"""The syntax of nests in a language of the C family: C++ with the vectors of GCC and Clang. Other languages override
what differs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOATING, INT64
from fourfold.compiler.ir.values import single
from fourfold.compiler.nest.ir.loops import (
    Constant,
    Function,
    Ref,
)

ATOM, UNARY, CHOICE = 16, 15, 3
# Binary operators and how tightly they bind, as in C++.
BINARY = {
    "mul": ("*", 13), "div": ("/", 13), "*": ("*", 13), "/": ("/", 13), "%": ("%", 13),
    "add": ("+", 12), "sub": ("-", 12), "+": ("+", 12), "-": ("-", 12),
    "lt": ("<", 9), "le": ("<=", 9), "gt": (">", 9), "ge": (">=", 9), "<": ("<", 9),
    "eq": ("==", 8), "ne": ("!=", 8), "equal": ("==", 8),
    "bitwise_and": ("&", 7), "bitwise_xor": ("^", 6), "bitwise_or": ("|", 5), "both": ("&&", 4),
}  # fmt: skip
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
PRELUDE_FLOATING = frozenset({"div", "copysign", "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "trunc", "round"})
RANGES = {
    "once": "The outputs of one number.",
    "elements": "Elements from begin to end, or pieces of the innermost axis.",
    "rows": "Rows from begin to end.",
    "groups": "Rows from begin to end, in groups.",
    "short": "Rows of few columns from begin to end, many at once.",
    "side": "Rows that lie side by side in memory, from begin to end, many at once.",
    "columns": "Blocks of one row's columns, from begin to end.",
    "combine": "What these blocks come to.",
}
KEYWORDS = frozenset(re.findall(r"\w+", """
    alignas alignof and asm auto bool break case catch char class concept const continue decltype default delete do
    double else enum explicit export extern false final float for friend goto if inline int long mutable namespace
    new noexcept not nullptr operator or override private protected public register requires return short signed
    sizeof static struct switch template this throw true try typedef typeid typename union unsigned using virtual
    void volatile while xor begin end arguments scratch
"""))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expression:
    """reads: the variables that it reads; it has to be written out before the next assignment to one of them."""

    code: str
    binding: int = ATOM
    reads: frozenset[str] = frozenset()

    def within(self, binding: int) -> str:
        return self.code if self.binding >= binding else f"({self.code})"


@dataclass(frozen=True, slots=True)
class Address:
    """An address, and the number of elements by which it is moved."""

    base: Expression
    index: Expression | None

    def moved(self, by: int) -> Address:
        if by == 0:
            return self
        if self.index is None:
            return Address(self.base, Expression(str(by)))
        return Address(self.base, Expression(f"{self.index.within(12)} + {by}", 12, self.index.reads))

    @property
    def address(self) -> Expression:
        if self.index is None:
            return self.base
        code = f"{self.base.within(12)} + {self.index.within(12)}"
        return Expression(code, 12, self.base.reads | self.index.reads)

    @property
    def element(self) -> str:
        return f"*{self.base.within(UNARY)}" if self.index is None else f"{self.base.within(ATOM)}[{self.index.code}]"


@dataclass(slots=True)
class Scope:
    """The names declared in a block, and expressions that wait to be inlined where they are used."""

    names: set[str]
    waiting: dict[str, tuple[Ref, Expression]] = field(default_factory=dict)
    arguments: list[tuple[object, str]] = field(default_factory=list)


class Dialect:
    """C++ with vectors of GCC and clang."""

    def __init__(self, lanes: int):
        self.lanes = lanes

    @property
    def reserved(self) -> frozenset[str]:
        return KEYWORDS | called_names(self.prelude())

    def prelude(self) -> str:
        """The definitions that functions call, once per file."""
        text = (Path(__file__).parent / "prelude.h").read_text(encoding="utf-8")
        text = re.sub(r"(?<=[a-z2468])N\b", str(self.lanes), text)
        text = text.replace("float64xH", f"float64x{self.lanes // 2}")
        return re.sub(r"\bN\b", str(self.lanes), text)

    def head(self, function: Function) -> str:
        return f"void {function.name}(int64 begin, int64 end, const int64* arguments, uint8* scratch) {{"

    def type(self, type: str, lanes: int) -> str:
        if type == BOOLEAN:
            return f"boolx{lanes}" if lanes else "bool"
        return f"{type}x{lanes}" if lanes else type

    def pointer(self, kind: str) -> str:
        return f"{kind}*"

    def loop(self, index: str, begin: str, end: str, step: str | None) -> str:
        """step: None if the body ends with the increment."""
        step = "" if step is None else f" ++{index}" if step == "1" else f" {index} += {step}"
        return f"for (int64 {index} = {begin}; {index} < {end};{step}) {{"

    def splat(self, number: str) -> str:
        return f"splat({number})"

    def load(self, place: Address, lanes: int, mask: str | None, stride: str | None) -> Expression:
        if not lanes:
            return Expression(place.element)
        if stride is not None:
            return Expression(call("load_strided", place.address.code, stride, mask))
        return Expression(call("load", place.address.code, mask))

    def store(self, place: Address, value: str, lanes: int, mask: str | None, stride: str | None) -> str:
        if not lanes:
            return f"{place.element} = {value};"
        if stride is not None:
            return f"{call('store_strided', place.address.code, stride, value, mask)};"
        return f"{call('store', place.address.code, value, mask)};"

    def stream(self, place: Address, value: str) -> str:
        return f"{call('stream', place.address.code, value)};"

    def transpose(self, *given: str) -> str:
        return f"{call('transpose', *given)};"

    def called(self, op: str, type: str) -> str:
        """An elementary function of the library."""
        return f"fourfold_{op}_{type}"

    def declaration(self, op: str, type: str) -> str:
        register = self.lanes if type == FLOAT32 else self.lanes // 2
        return f"VectorFunction<{type}x{register}> {self.called(op, type)};"

    def number(self, constant: Constant) -> str:
        value, type = constant.value, constant.type
        if type == BOOLEAN:
            return "true" if value else "false"
        if type not in FLOATING:
            least = value in (-(2**31), -(2**63))
            text = f"({value + 1} - 1)" if least else str(value)
            return f"int64({text})" if type == INT64 else text
        if not math.isfinite(value):
            text = self.not_finite(value)
            return text if type == FLOAT32 else f"float64({text})"
        return f"{shortest(value)}f" if type == FLOAT32 else repr(value)

    def not_finite(self, value: float) -> str:
        """The number as a float32."""
        return "nan" if value != value else "infinity" if value > 0 else "-infinity"


def call(name: str, *given: str | None) -> str:
    return f"{name}({', '.join(text for text in given if text is not None)})"


def shortest(value: float) -> str:
    """The fewest digits that round to the same float32."""
    text = next(text for digits in range(1, 18) if single(float(text := f"{value:.{digits}g}")) == single(value))
    return text if re.search(r"[.e]", text) else f"{text}.0"


@cache
def called_names(text: str) -> frozenset[str]:
    """The functions that a text defines or calls, which variables must not shadow."""
    return frozenset(re.findall(r"\b(\w+)\(", text))


def reads(parts: Sequence[Expression]) -> frozenset[str]:
    return frozenset().union(*(part.reads for part in parts))


@cache
def elementary() -> frozenset[str]:
    from fourfold import _C

    rules = {name: rule for name, _, rule, _ in _C.operations()}
    return frozenset(name for name, rule in rules.items() if rule == "floating") - PRELUDE_FLOATING
