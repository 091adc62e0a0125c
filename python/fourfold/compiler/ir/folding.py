"""Constant folding and algebraic simplification, bit-exact except for powers. Rules take and return IR values."""

from __future__ import annotations

import math
import operator
from typing import Any

from fourfold.compiler.ir import powers
from fourfold.compiler.ir.dtypes import BOOLEAN, FLOATING, INTEGERS, NARROW, ROUNDED, rounded

Value = Any  # fourfold.compiler.ir.values.Value, whose module imports this one; Python operators on it write operations
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
REDUCTIONS = frozenset({"sum", "prod", "amax", "amin", "all", "any", "sum_float64"})

# Folded in Python's float64 arithmetic: rounded to float32, each gives the same result as float32 arithmetic.
LOW = {op: dtype for dtype, op in ROUNDED.items()}
# Operations whose result every dtype holds that holds their operands, and dtypes whose numbers all of these hold.
CHOOSING = frozenset({"neg", "abs", "copysign", "minimum", "maximum", "amin", "amax", "where", "to_float32"})
CHOOSING |= {"floor", "ceil", "trunc", "round", "sign"}
HELD_BY_ALL = frozenset({"boolean", "int8", "uint8"})
EXACT = {name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "abs", *COMPARISONS)}


def folded(program: Any, op: str, operands: tuple[Value, ...]) -> Value | None:
    """An equal, cheaper value, or None if the operation has to be computed."""
    if op in REDUCTIONS:
        return None
    if all(value.is_constant for value in operands):
        found = of_constants(program, op, operands)
        if found is not None:
            return found
    rule = RULES.get(op)
    return rule(*operands) if rule else None


def of_constants(program: Any, op: str, operands: tuple[Value, ...]) -> Value | None:
    numbers = [value.attribute for value in operands]
    type = operands[-1].type
    if op == "div" and type in FLOATING and numbers[1] != 0:
        return program.constant(type, numbers[0] / numbers[1])
    if op in LOW:
        return program.constant(type, rounded(numbers[0], LOW[op]))
    if op == "sqrt" and numbers[0] >= 0:
        return program.constant(type, math.sqrt(numbers[0]))
    if op not in EXACT or type == BOOLEAN and op not in COMPARISONS:
        return None
    return program.constant(BOOLEAN if op in COMPARISONS else type, EXACT[op](*numbers))


def is_number(value: Value, number: float) -> bool:
    return value.is_constant and value.type != BOOLEAN and value.attribute == number


def multiply(a: Value, b: Value) -> Value | None:
    return b if is_number(a, 1) else a if is_number(b, 1) else None


def conjunction(a: Value, b: Value) -> Value | None:
    return b if a.attribute is True else a if b.attribute is True else None


def add(a: Value, b: Value) -> Value | None:
    if a.type not in INTEGERS:  # -0.0 + 0 is 0
        return None
    return b if is_number(a, 0) else a if is_number(b, 0) else None


def subtract(a: Value, b: Value) -> Value | None:
    return a if is_number(b, 0) and not math.copysign(1, b.attribute) < 0 else None


def divide(a: Value, b: Value) -> Value | None:
    if is_number(b, 1):
        return a
    # Dividing by a power of two equals multiplying by its reciprocal, to the bit.
    if b.is_constant and b.attribute and math.isfinite(b.attribute) and abs(math.frexp(b.attribute)[0]) == 0.5:
        reciprocal = 1 / b.attribute
        if 1e-30 < abs(reciprocal) < 1e30:
            return a * reciprocal
    return None


def power(a: Value, b: Value) -> Value | None:
    return powers.power(a, b.attribute) if b.is_constant else None


def choose(mask: Value, yes: Value, no: Value) -> Value | None:
    if mask.is_constant:
        return yes if mask.attribute else no
    return yes if yes is no else None


def inverse(op: str):
    """The rule for an operation that is its own inverse."""
    return lambda a: a.operands[0] if a.op == op else None


def idempotent(op: str):
    return lambda a: a if a.op == op else None


def to_low(op: str):
    return lambda a: a if is_held(a, op) else None


def is_held(value: Value, op: str) -> bool:
    """Whether rounding by this operation changes nothing."""
    known = value.program.held
    if (value, op) not in known:
        known[value, op] = value.op == op or is_read(value, op) or value.op in CHOOSING and has_held_operands(value, op)
    return known[value, op]


def is_read(value: Value, op: str) -> bool:
    """Whether it is a boolean, or a constant or input that the dtype holds."""
    if value.is_constant:
        return value.attribute != value.attribute or rounded(value.attribute, LOW[op]) == value.attribute
    kind = value.program.inputs[value.attribute].kind if value.op == "input" else value.op.removeprefix("to_")
    return value.type == BOOLEAN or kind in HELD_BY_ALL or value.op == "input" and f"to_{kind}" == op


def has_held_operands(value: Value, op: str) -> bool:
    return all(is_held(operand, op) for operand in value.operands)


def to_whole(op: str):
    return lambda a: a if a.op == op or a.type not in FLOATING else None


RULES = {
    "mul": multiply,
    "add": add,
    "sub": subtract,
    "div": divide,
    "pow": power,
    "neg": inverse("neg"),
    "bitwise_not": inverse("bitwise_not"),
    "where": choose,
    "bitwise_and": conjunction,
    "sign": lambda a: a if a.type == BOOLEAN else None,
    **{op: idempotent(op) for op in (*NARROW.values(), "abs")},
    **{op: to_low(op) for op in LOW},
    **{op: to_whole(op) for op in ("floor", "ceil", "trunc", "round")},
}
