"""What an operation on values comes to without computing it: the same bits, from less work."""

from __future__ import annotations

import math
import operator

from fourfold.compiler.program import (
    BOOLEAN,
    COMPARISONS,
    FLOATING,
    INTEGERS,
    NARROW,
    REDUCTIONS,
    ROUNDED,
    Program,
    Value,
)

# Of constants, in Python's own arithmetic, which is float64's: what float32 rounds again is the same bits for these.
EXACT = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "abs": abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def simplified(program: Program, op: str, operands: tuple[Value, ...]) -> Value | None:
    """None where it has to be computed."""
    if op in REDUCTIONS:
        return None
    if all(value.is_constant for value in operands):
        found = folded(program, op, operands)
        if found is not None:
            return found
    rule = RULES.get(op)
    return rule(program, *operands) if rule else None


def folded(program: Program, op: str, operands: tuple[Value, ...]) -> Value | None:
    numbers = [value.attribute for value in operands]
    type = operands[-1].type
    if op == "div" and type in FLOATING and numbers[1] != 0:
        return program.constant(type, numbers[0] / numbers[1])
    if op == "sqrt" and numbers[0] >= 0:
        return program.constant(type, math.sqrt(numbers[0]))
    if op not in EXACT or type == BOOLEAN and op not in COMPARISONS:
        return None
    return program.constant(BOOLEAN if op in COMPARISONS else type, EXACT[op](*numbers))


def is_number(value: Value, number: float) -> bool:
    return value.is_constant and value.type != BOOLEAN and value.attribute == number


def multiply(program: Program, a: Value, b: Value) -> Value | None:
    if is_number(a, 1):
        return b
    if is_number(b, 1):
        return a
    return None


def add(program: Program, a: Value, b: Value) -> Value | None:
    if a.type not in INTEGERS:  # -0.0 + 0 is 0
        return None
    return b if is_number(a, 0) else a if is_number(b, 0) else None


def subtract(program: Program, a: Value, b: Value) -> Value | None:
    return a if is_number(b, 0) and not math.copysign(1, b.attribute) < 0 else None


def divide(program: Program, a: Value, b: Value) -> Value | None:
    if is_number(b, 1):
        return a
    # By a power of two is the same as times its reciprocal, to the bit.
    if b.is_constant and b.attribute and math.isfinite(b.attribute) and abs(math.frexp(b.attribute)[0]) == 0.5:
        reciprocal = 1 / b.attribute
        if 1e-30 < abs(reciprocal) < 1e30:
            return program.apply("mul", a, program.constant(b.type, reciprocal))
    return None


def power(program: Program, a: Value, b: Value) -> Value | None:
    if not b.is_constant:
        return None
    exponent = b.attribute
    if exponent == 1:
        return a
    if exponent == 2:
        return program.apply("mul", a, a)
    if exponent == 3:
        return program.apply("mul", program.apply("mul", a, a), a)
    if exponent == 0.5:
        return program.apply("sqrt", a)
    if exponent == -0.5:
        return program.apply("rsqrt", a)
    if exponent == -1:
        return program.apply("reciprocal", a)
    if exponent == -2:
        return program.apply("reciprocal", program.apply("mul", a, a))
    return None


def negate(program: Program, a: Value) -> Value | None:
    return a.operands[0] if a.op == "neg" else None


def invert(program: Program, a: Value) -> Value | None:
    return a.operands[0] if a.op == "bitwise_not" else None


def choose(program: Program, mask: Value, yes: Value, no: Value) -> Value | None:
    if mask.is_constant:
        return yes if mask.attribute else no
    return yes if yes is no else None


def hold(op: str):
    def rule(program: Program, a: Value) -> Value | None:
        return a if a.op == op else None

    return rule


RULES = {
    "mul": multiply,
    "add": add,
    "sub": subtract,
    "div": divide,
    "pow": power,
    "neg": negate,
    "bitwise_not": invert,
    "where": choose,
    **{op: hold(op) for op in (*NARROW.values(), *ROUNDED.values(), "abs", "floor", "trunc")},
}
