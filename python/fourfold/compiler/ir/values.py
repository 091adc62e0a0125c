"""The IR: a program's values, hash-consed and constant-folded as they are written.

``x * (x + 3)`` on values writes the two operations. cpp/program/parse.cpp defines the grammar of a program's text,
cpp/program/operations.h the operations and the types that they take."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from fourfold.compiler.ir import folding
from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64, INT32, INTEGERS, KINDS, TYPES

COMMUTATIVE = frozenset({"add", "mul", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor"})
OPERATORS = {
    **{name: name for name in ("add", "sub", "mul", "pow", "neg", "abs", "lt", "le", "gt", "ge")},
    "truediv": "div",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
}
GIVEN = ("input", "number")  # what a call provides
# Operations that have another name for booleans, or for integers.
OF_BOOLEANS = {
    **dict.fromkeys(("add", "maximum"), "bitwise_or"),
    **dict.fromkeys(("mul", "minimum"), "bitwise_and"),
    "amax": "any",
    "amin": "all",
}
OF_INTEGERS = {name: f"integer_{name}" for name in ("floor_divide", "trunc_divide", "fmod", "remainder")}
# The types of results that don't have their operands'.
RESULTS = {**dict.fromkeys(folding.COMPARISONS, BOOLEAN), "sum_float64": FLOAT64}

Dims = tuple[tuple[int, ...], ...]  # for each dimension, the axes along which it runs
Starts = tuple[int | None, ...]  # empty if no dimension has a start
Number = bool | int | float


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Value:
    """One line of a program. Equal values are the same object."""

    program: Program
    op: str  # an operation's name, or input, number, constant, columns
    type: str
    operands: tuple[Value, ...] = ()
    attribute: object = None  # a constant's value; an input's index

    @property
    def is_constant(self) -> bool:
        return self.op == "constant"

    def to(self, type: str) -> Value:
        return self.program.cast(self, type)


def infix(name: str, swaps: bool = False) -> Callable[[Value, Value | Number], Value]:
    def apply(self: Value, *other: Value | Number) -> Value:
        return self.program.apply(name, *((*other, self) if swaps else (self, *other)))

    return apply


# Python's operators, except ==, with which Python looks values up in lists and dictionaries; use x.eq(y).
for _name, _operation in OPERATORS.items():
    setattr(Value, f"__{_name}__", infix(_operation))
    if _operation in ("add", "sub", "mul", "div", "pow"):
        setattr(Value, f"__r{_name}__", infix(_operation, swaps=True))
Value.eq, Value.ne = infix("eq"), infix("ne")


def operation(name: str) -> Callable[..., Value]:
    """The operation as a function of values and numbers."""

    def apply(*operands: Value | Number) -> Value:
        program = next(value.program for value in operands if isinstance(value, Value))
        return program.apply(name, *operands)

    apply.__name__ = name
    return apply


where, minimum, maximum, copysign = map(operation, ("where", "minimum", "maximum", "copysign"))
exp, exp2, expm1, log, log1p = map(operation, ("exp", "exp2", "expm1", "log", "log1p"))
sqrt, rsqrt, sin, tanh, sigmoid, erf = map(operation, ("sqrt", "rsqrt", "sin", "tanh", "sigmoid", "erf"))
sum_, prod, amax, amin, all_, any_ = map(operation, ("sum", "prod", "amax", "amin", "all", "any"))  # along the columns
sum_float64 = operation("sum_float64")


def is_nan(value: Value) -> Value:
    return value.ne(value)


@dataclass(frozen=True, slots=True)
class Input:
    """starts: for each dimension of which the program reads a part, where that begins; otherwise None."""

    name: str
    kind: str
    dims: Dims
    starts: Starts = ()


@dataclass(frozen=True, slots=True)
class Output:
    """join: the dimension along which the values, each with these dims, are concatenated; -1 for one value. column_sum:
    whether the value is summed over the rows."""

    values: Sequence[Value]
    kind: str
    dims: Dims
    order: Sequence[int]  # the dimensions in memory order, outermost first
    join: int = -1
    column_sum: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: str  # a number, or an input's dimension: x.0


@dataclass(eq=False, repr=False)
class Program:
    """Builds a program: shares common subexpressions and folds constants; text() omits dead code. has_float64: whether
    the device computes in it; is_on_cpu: where it costs little."""

    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    outer: int | None = None  # how many leading axes are rows; None without columns
    names: dict[Value, str] = field(default_factory=dict)  # of a program that was read from text
    has_float64: bool = True
    rounding: str | None = None  # the operation that rounds each new value of float32; see lowering.STEPWISE
    held: dict[tuple[Value, str], bool] = field(default_factory=dict)  # a cache of folding.is_held
    is_on_cpu: bool = False
    _known: dict[tuple, Value] = field(default_factory=dict)

    def _value(self, op: str, type: str, operands: tuple[Value, ...] = (), attribute: object = None) -> Value:
        # The key has the repr, since 0.0 == -0.0 and True == 1 == 1.0.
        key = (op, type, tuple(map(id, operands)), repr(attribute))
        if key not in self._known:
            self._known[key] = Value(self, op, type, operands, attribute)
        return self._known[key]

    def input(self, name: str, dtype: torch.dtype, dims: Dims, starts: Starts = ()) -> Value:
        self.inputs.append(Input(name, KINDS[dtype], dims, starts))
        return self._value("input", TYPES[dtype], (), len(self.inputs) - 1)

    def number(self, name: str, type: str) -> Value:
        """A number that each call provides."""
        self.inputs.append(Input(name, "number", ()))
        return self._value("number", type, (), len(self.inputs) - 1)

    def constant(self, type: str, value: Number) -> Value:
        if type == BOOLEAN:
            value = bool(value)
        elif type in INTEGERS:
            most = 1 << (31 if type == INT32 else 63)
            value = (int(value) + most) % (2 * most) - most
        else:
            value = single(float(value)) if type == FLOAT32 else float(value)
        return self._value("constant", type, (), value)

    def columns(self, type: str) -> Value:
        """The number of elements that a reduction covers."""
        return self._value("columns", type)

    def cast(self, value: Value | Number, type: str) -> Value:
        """The value converted to a type; a number becomes a constant."""
        if not isinstance(value, Value):
            return self.constant(type, value)
        if value.type == type:
            return value
        number = value.attribute
        is_finite = not isinstance(number, float) or math.isfinite(number) and abs(number) < 2**31
        if value.is_constant and (is_finite or type not in INTEGERS):  # otherwise the result depends on the processor
            return self.constant(type, number)
        return self._value(f"to_{type}", type, (value,))

    def apply(self, op: str, *operands: Value | Number) -> Value:
        """The value of an operation, or an equal and cheaper one. Operands are cast to the type of the first value."""
        mask = operands[:1] if op == "where" else ()
        given = operands[len(mask) :]
        type = next(value.type for value in given if isinstance(value, Value))
        given = (*mask, *(self.cast(value, type) for value in given))
        op = OF_BOOLEANS.get(op, op) if type == BOOLEAN else OF_INTEGERS.get(op, op) if type in INTEGERS else op
        value = folding.folded(self, op, given)
        if value is None:
            if op in COMMUTATIVE and given[0].is_constant:
                given = given[::-1]
            value = self._value(op, RESULTS.get(op, type), given)
        is_step = self.rounding not in (None, op) and value.type == FLOAT32
        return self.apply(self.rounding, value) if is_step else value

    def values(self) -> list[Value]:
        """All inputs, and the live values, each after its operands."""
        ordered: list[Value] = [v for v in self._known.values() if v.op in GIVEN]
        seen = set(map(id, ordered))
        for output in self.outputs:
            stack = [(value, False) for value in reversed(output.values)]
            while stack:
                value, entered = stack.pop()
                if entered:
                    ordered.append(value)
                elif id(value) not in seen:
                    seen.add(id(value))
                    stack.append((value, True))
                    stack.extend((operand, False) for operand in reversed(value.operands))
        return ordered

    def text(self) -> str:
        """The program in the grammar of cpp/program/parse.cpp."""
        names: dict[int, str] = {}
        taken = {given.name for given in self.inputs}
        lines = ["fourfold program 1", self._axes_text()]
        for value in self.values():
            name = self.inputs[value.attribute].name if value.op in GIVEN else f"v{len(names)}"
            while value.op not in GIVEN and name in taken:
                name += "_"
            names[id(value)] = name
            lines.append(f"{names[id(value)]}: {value.type} = {self._right_side(value, names)}")
        lines += [self._output_text(output, names) for output in self.outputs]
        return "\n".join(lines) + "\n"

    def _right_side(self, value: Value, names: dict[int, str]) -> str:
        if value.op == "input":
            given = self.inputs[value.attribute]
            return f"input {given.kind} {self._dims_text(given.dims, given.starts)}"
        if value.is_constant:
            number = value.attribute
            return f"constant {str(number).lower() if isinstance(number, bool) else repr(number)}"
        return " ".join([value.op, *(names[id(operand)] for operand in value.operands)])

    def _axes_text(self) -> str:
        words = [f"{axis.name}={axis.size}" for axis in self.axes]
        if self.outer is not None:
            words.insert(self.outer, "|")
        return " ".join(["axes", *words])

    def _dims_text(self, dims: Dims, starts: Starts = ()) -> str:
        words = ["*".join(self.axes[a].name for a in dim) for dim in dims]
        for d, start in enumerate(starts):
            if start is not None:
                words[d] = f"{words[d]}+{start}" if words[d] else f"@{start}"
        return f"[{' '.join(word or '1' for word in words)}]"

    def _output_text(self, output: Output, names: dict[int, str]) -> str:
        parts = " ".join(names[id(value)] for value in output.values)
        joins = output.join >= 0
        statement = "column_sum" if output.column_sum else "output"
        text = f"{statement} {f'[{parts}]' if joins else parts} {output.kind} {self._dims_text(output.dims)}"
        if joins:
            text += f" join {output.join}"
        if list(output.order) != sorted(output.order):
            text += f" order [{' '.join(map(str, output.order))}]"
        return text


def single(number: float) -> float:
    """The nearest float32."""
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
