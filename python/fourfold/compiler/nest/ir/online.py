"""Reductions that need an earlier reduction of the same row, and can be computed in the same pass over it: the sum of a
softmax's exponentials, and a variance's sum of squared deviations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fourfold.compiler.ir.dtypes import FLOAT32, FLOAT64
from fourfold.compiler.ir.folding import REDUCTIONS
from fourfold.compiler.ir.values import Value


@dataclass(frozen=True, slots=True)
class OnlineSum:
    """total = sum(exp(x - shift)), where first = amax(x); or sum((x - shift)²), where first = sum(x).

    shift: a value of the row, computed from first. between: the values that it is computed through, each after its
    operands."""

    total: Value
    first: Value
    shift: Value
    between: tuple[Value, ...]


def find_online_sum(total: Value) -> OnlineSum | None:
    """None for a reduction that needs a pass of its own."""
    if total.op != "sum" or total.type not in (FLOAT32, FLOAT64):
        return None
    (summand,) = total.operands
    is_square = summand.op == "mul" and summand.operands[0] is summand.operands[1]
    if not is_square and summand.op != "exp":
        return None
    difference = summand.operands[0]
    if difference.op != "sub":
        return None
    x, shift = difference.operands
    if is_square and not sources(shift):  # (shift - x)²
        x, shift = shift, x
    through = sources(shift)
    firsts = [value for value in through if value.op in REDUCTIONS]
    if len(firsts) != 1 or firsts[0].op != ("sum" if is_square else "amax") or firsts[0].operands[0] is not x:
        return None
    (first,) = firsts
    if not (is_mean if is_square else is_maximum)(shift, first):
        return None
    between = tuple(value for value in through if value is not first and not value.is_constant)
    return OnlineSum(total, first, shift, between)


def sources(value: Value) -> list[Value]:
    """The value and those that it is computed from, back to reductions, each after its operands; empty if an input is
    among them."""
    found: dict[Value, None] = {}
    stack = [(value, False)]
    while stack:
        value, has_operands = stack.pop()
        if value.op == "input":
            return []
        if value in found:
            continue
        if has_operands or value.op in REDUCTIONS:
            found[value] = None
        else:
            stack.append((value, True))
            stack += [(operand, False) for operand in reversed(value.operands)]
    return list(found)


def is_mean(shift: Value, total: Value) -> bool:
    """Whether it is a multiple of the total, and so infinite or NaN where that is."""
    while shift is not total:
        if shift.op not in ("mul", "div") or not (shift.operands[1].is_constant or shift.operands[1].op == "columns"):
            return False
        shift = shift.operands[0]
    return True


def is_maximum(shift: Value, maximum: Value) -> bool:
    """Whether a sum of exp(x - shift) neither overflows nor vanishes where one of exp(x - maximum) doesn't: the maximum
    itself, or a finite number in its place, such as for rows that are masked as a whole."""
    if shift.op != "where":
        return shift is maximum
    return all(v is maximum or v.is_constant and math.isfinite(v.attribute) for v in shift.operands[1:])
