"""A pointwise program while it is built: values that are never written twice, and how they are spelled.

cpp/program/parse.cpp has the grammar, cpp/program/operations.h the operations and what they take."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

BOOLEAN, INT32, INT64, FLOAT32, FLOAT64 = "boolean", "int32", "int64", "float32", "float64"
FLOATING, INTEGERS = (FLOAT32, FLOAT64), (INT32, INT64)
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
REDUCTIONS = frozenset({"sum", "prod", "amax", "amin", "all", "any"})
COMMUTATIVE = frozenset({"add", "mul", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor"})

KINDS = {
    torch.bool: "boolean",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
# What values of a dtype are computed in.
TYPES = {
    torch.bool: BOOLEAN,
    torch.uint8: INT32,
    torch.int8: INT32,
    torch.int16: INT32,
    torch.int32: INT32,
    torch.int64: INT64,
    torch.float16: FLOAT32,
    torch.bfloat16: FLOAT32,
    torch.float32: FLOAT32,
    torch.float64: FLOAT64,
}
NARROW = {torch.int8: "to_int8", torch.uint8: "to_uint8", torch.int16: "to_int16"}
ROUNDED = {torch.bfloat16: "to_bfloat16", torch.float16: "to_float16"}

Dims = tuple[tuple[int, ...], ...]  # of each dimension, the axes that it runs along


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One line of a program. Two that compute the same are the same object."""

    op: str  # an operation's name, or input, number, constant, columns
    type: str
    operands: tuple[Value, ...] = ()
    attribute: object = None  # a constant's value; an input's place

    @property
    def is_constant(self) -> bool:
        return self.op == "constant"


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    kind: str
    dims: Dims


@dataclass(frozen=True, slots=True)
class Output:
    """join: the dimension along which the values, of these dims each, lie behind each other; -1 of one value. total:
    whether it is summed over the rows."""

    values: tuple[Value, ...]
    kind: str
    dims: Dims
    order: tuple[int, ...]
    join: int = -1
    total: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: str  # a number, or an input's dimension: x.0


@dataclass
class Program:
    """Builds a program, each value once: what is the same, or a constant, is not computed again."""

    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    outer: int | None = None  # how many of them number the rows, where there are rows
    _known: dict[tuple, Value] = field(default_factory=dict)

    def _value(self, op: str, type: str, operands: tuple[Value, ...] = (), attribute: object = None) -> Value:
        # Zero and minus zero are equal, and so are True, 1 and 1.0.
        key = (op, type, tuple(map(id, operands)), repr(attribute))
        if key not in self._known:
            self._known[key] = Value(op, type, operands, attribute)
        return self._known[key]

    def input(self, name: str, dtype: torch.dtype, dims: Dims) -> Value:
        place = len(self.inputs)
        self.inputs.append(Input(name, KINDS[dtype], dims))
        return self._value("input", TYPES[dtype], (), place)

    def number(self, name: str, type: str) -> Value:
        """A number that is given with each call."""
        place = len(self.inputs)
        self.inputs.append(Input(name, "number", ()))
        return self._value("number", type, (), place)

    def constant(self, type: str, value: bool | int | float) -> Value:
        if type == BOOLEAN:
            return self._value("constant", type, (), bool(value))
        if type in INTEGERS:
            bits = 32 if type == INT32 else 64
            wrapped = (int(value) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            return self._value("constant", type, (), wrapped)
        number = float(value)
        return self._value("constant", type, (), single(number) if type == FLOAT32 else number)

    def columns(self, type: str) -> Value:
        """How many elements a reduction goes over."""
        return self._value("columns", type)

    def output(
        self,
        values: Sequence[Value],
        dtype: torch.dtype,
        dims: Dims,
        order: Sequence[int],
        join: int = -1,
        total: bool = False,
    ) -> None:
        self.outputs.append(Output(tuple(values), KINDS[dtype], dims, tuple(order), join, total))

    def cast(self, value: Value, type: str) -> Value:
        if value.type == type:
            return value
        if value.is_constant:
            return self.constant_cast(value, type)
        return self._value(f"to_{type}", type, (value,))

    def constant_cast(self, value: Value, type: str) -> Value:
        number = value.attribute
        if isinstance(number, float) and type in INTEGERS and not (math.isfinite(number) and abs(number) < 2**31):
            return self._value(f"to_{type}", type, (value,))  # the machine's own answer
        return self.constant(type, number != 0 if type == BOOLEAN else number)

    def apply(self, op: str, *operands: Value) -> Value:
        """The value of an operation on values, or one that is the same and cheaper."""
        from fourfold.compiler.simplify import simplified

        found = simplified(self, op, operands)
        if found is not None:
            return found
        if op in COMMUTATIVE and operands[0].is_constant:
            operands = operands[::-1]
        result = BOOLEAN if op in COMPARISONS else operands[-1].type
        if op.startswith("to_") and op[3:] in (BOOLEAN, *INTEGERS, *FLOATING):
            result = op[3:]
        return self._value(op, result, operands)

    def values(self) -> list[Value]:
        """What the outputs need, each after its operands; inputs always."""
        ordered: list[Value] = [v for v in self._known.values() if v.op in ("input", "number")]
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
        """The program, as cpp/program/parse.cpp reads it."""
        names: dict[int, str] = {}
        lines = ["fourfold program 1", self._axes_text()]
        for value in self.values():
            given = value.op in ("input", "number")
            names[id(value)] = self.inputs[value.attribute].name if given else f"v{len(names)}"
            lines.append(f"{names[id(value)]}: {value.type} = {self._right_side(value, names)}")
        lines += [self._output_text(output, names) for output in self.outputs]
        return "\n".join(lines) + "\n"

    def _right_side(self, value: Value, names: dict[int, str]) -> str:
        if value.op == "input":
            given = self.inputs[value.attribute]
            return f"input {given.kind} {self._dims_text(given.dims)}"
        if value.op == "constant":
            return f"constant {spelled(value.attribute)}"
        return " ".join([value.op, *(names[id(operand)] for operand in value.operands)])

    def _axes_text(self) -> str:
        words = [f"{axis.name}={axis.size}" for axis in self.axes]
        if self.outer is not None:
            words.insert(self.outer, "|")
        return " ".join(["axes", *words])

    def _dims_text(self, dims: Dims) -> str:
        return f"[{' '.join('*'.join(self.axes[a].name for a in dim) or '1' for dim in dims)}]"

    def _output_text(self, output: Output, names: dict[int, str]) -> str:
        parts = " ".join(names[id(value)] for value in output.values)
        joins = output.join >= 0
        statement = "column_sum" if output.total else "output"
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


def spelled(number: object) -> str:
    return str(number).lower() if isinstance(number, bool) else repr(number)


def is_floating(values: Iterable[Value]) -> bool:
    return all(value.type in FLOATING for value in values)
