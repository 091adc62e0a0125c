"""Lines of LLVM IR, and its syntax of values and types."""

from __future__ import annotations

import math
import struct

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64, FLOATING, INT32, INT64
from fourfold.compiler.nest.ir.levels import Level
from fourfold.compiler.nest.ir.loops import POINTER, Constant, Function, Operand, Ref

TYPES = {BOOLEAN: "i1", INT32: "i32", INT64: "i64", FLOAT32: "float", FLOAT64: "double", POINTER: "ptr"}
# The type of each kind in memory.
MEMORY = {
    "boolean": "i8", "uint8": "i8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double",
}  # fmt: skip

INDEX = {"+": "add nsw", "-": "sub nsw", "*": "mul nsw", "/": "sdiv", "%": "srem"}


class Lines:
    """A function's lines."""

    def __init__(self, function: Function, target: Level):
        self.function, self.target = function, target
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declared: set[str] = set()
        self.left: dict[str, Operand] = {}  # by mask: how many lanes are set
        self.streams = False  # whether there are non-temporal stores
        self.rows_loaded: dict[tuple, list[str]] = {}
        self.count = 0

    def emit(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def temporary(self, text: str) -> str:
        self.count += 1
        self.emit(f"%u{self.count} = {text}")
        return f"%u{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"l{self.count}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def alloca(self, type: str, align: int) -> str:
        self.count += 1
        self.allocas.append(f"  %a{self.count} = alloca {type}, align {align}")
        return f"%a{self.count}"

    def call(self, name: str, result: str, *operands: tuple[str, str], attributes: str = "") -> str:
        types = ", ".join(type.split(" align")[0] for type, _ in operands)
        self.declared.add(f"declare {result} @{name}({types}){attributes}")
        text = f"call {result} @{name}({', '.join(f'{type} {value}' for type, value in operands)})"
        if result != "void":
            return self.temporary(text)
        self.emit(text)
        return ""

    def value(self, operand: Operand) -> str:
        if isinstance(operand, Ref):
            return f"%{operand.name}"
        text = number(operand)
        return f"splat ({TYPES[operand.type]} {text})" if operand.lanes else text

    def constant(self, value: bool | int | float, like: Operand) -> str:
        return self.value(Constant(value, like.type, like.lanes))

    def splat(self, type: str, value: str, lanes: int) -> str:
        one = self.temporary(f"insertelement <{lanes} x {type}> poison, {type} {value}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.temporary(f"shufflevector <{lanes} x {type}> {one}, <{lanes} x {type}> poison, {zeros}")

    def index(self, op: str, a: str, b: str) -> str:
        if op == "min":
            return self.call("llvm.smin.i64", "i64", ("i64", a), ("i64", b))
        if op == "<":
            return self.temporary(f"icmp slt i64 {a}, {b}")
        if op == "equal":
            return self.temporary(f"icmp eq i64 {a}, {b}")
        return self.temporary(f"{INDEX[op]} i64 {a}, {b}")

    def select(self, operands: tuple[Operand, ...]) -> str:
        condition, yes, no = operands
        type = vector(yes.type, yes.lanes)
        mask = vector(BOOLEAN, condition.lanes)
        return self.temporary(
            f"select {mask} {self.value(condition)}, {type} {self.value(yes)}, {type} {self.value(no)}"
        )


def vector_of(type: str, lanes: int) -> str:
    return f"<{lanes} x {type}>" if lanes else type


def vector(type: str, lanes: int) -> str:
    return vector_of(TYPES[type], lanes)


def splatted(typed: str, lanes: int) -> str:
    return f"splat ({typed})" if lanes else typed.split()[1]


def splatted_number(value: int, type: str, lanes: int) -> str:
    own = "true" if type == BOOLEAN else str(value)
    return splatted(f"{TYPES[type]} {own}", lanes)


def mangled(type: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(type, type)


def number(constant: Constant) -> str:
    value = constant.value
    if constant.type == BOOLEAN:
        return "true" if value else "false"
    if constant.type in FLOATING:
        if constant.type == FLOAT32 and math.isfinite(value):
            value = struct.unpack("f", struct.pack("f", value))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(value)
