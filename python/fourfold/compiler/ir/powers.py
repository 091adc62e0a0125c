"""Powers with a small constant exponent as products, a square root and a reciprocal, at a fraction of the cost of the
general power. Special values are those of C's pow, except for the exponents 0.5 and -0.5, which torch computes by sqrt
and rsqrt."""

from __future__ import annotations

import math
from typing import Any

from fourfold.compiler.ir.dtypes import FLOAT32, FLOAT64

Value = Any  # fourfold.compiler.ir.values.Value, whose module imports folding, which imports this one

SPECIAL_EXPONENTS = (0, 0.5, -0.5, 1, -1, 2, -2, 3)  # exponents for which torch's kernel avoids the general power
MOST = 16
# The largest whole and half exponents whose float32 rounding errors add up to at most 4 units in the last place,
# measured with every mantissa.
MOST_SINGLE, MOST_SINGLE_HALF = 5, 3.5


def power(x: Value, exponent: float) -> Value | None:
    """The power; None for an exponent that is neither whole nor half of a whole number, or that is too large."""
    apply = x.program.apply
    if abs(exponent) == 0.5:
        return apply("sqrt" if exponent > 0 else "rsqrt", x)
    if not abs(exponent) <= MOST or exponent * 2 % 1:
        return None
    count = math.floor(abs(exponent))
    most = MOST_SINGLE if count == abs(exponent) else MOST_SINGLE_HALF
    if x.type == FLOAT32 and abs(exponent) > most:
        return power(x.to(FLOAT64), exponent).to(FLOAT32) if x.program.has_float64 else None
    if count == abs(exponent):
        result = product(x, count)
    else:
        x = apply("where", x.eq(-math.inf), math.inf, x) + 0.0  # pow(-inf, 1.5) is inf, and pow(-0, 1.5) is 0
        result = product(x, count) * apply("sqrt", x)
    return apply("reciprocal", result) if exponent < 0 else result


def avoids_general_power(exponent: object) -> bool:
    """Whether ``power`` computes a product for this exponent, and torch the general power."""
    if not isinstance(exponent, (int, float)) or exponent in SPECIAL_EXPONENTS:
        return False
    return abs(exponent) <= MOST and exponent * 2 % 1 == 0


def product(x: Value, count: int) -> Value:
    """x to the power of a whole number, by squaring."""
    result = x.program.constant(x.type, 1)
    for bit in reversed(f"{count:b}"):
        result, x = (result * x if bit == "1" else result), x * x
    return result
