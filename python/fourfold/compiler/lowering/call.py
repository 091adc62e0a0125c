"""How a lowering is called and registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from fourfold.compiler.dtypes import BOOLEAN, NARROW, ROUNDED, TYPES
from fourfold.compiler.ir import Program, Value


class NotFusable(Exception):
    """This call can't be part of a program; ``str()`` of it says why."""


@dataclass(frozen=True)
class Operand:
    """A tensor among a call's arguments, or a number that comes with each call. fake: what torch traced it with."""

    value: Value
    fake: object

    @property
    def dtype(self) -> torch.dtype:
        if isinstance(self.fake, torch.Tensor):
            return self.fake.dtype
        return torch.int64 if isinstance(self.fake, (int, torch.SymInt)) else torch.float64


Number = bool | int | float
Argument = Operand | Number


def wrapped(number: Number, dtype: torch.dtype) -> Number:
    """An integer as a dtype of fewer bits holds it; torch compares 300 with uint8 as 44."""
    if not isinstance(number, int) or dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
        return number
    range_of = torch.iinfo(dtype)
    return (number - range_of.min) % (range_of.max - range_of.min + 1) + range_of.min


def fits(number: Number, dtype: torch.dtype) -> bool:
    return not isinstance(number, int) or wrapped(number, dtype) == number


@dataclass
class Call:
    """One call of an operator that is lowered: its program, and the dtype of its result."""

    program: Program
    dtype: torch.dtype

    @property
    def type(self) -> str:
        return TYPES[self.dtype]

    def __call__(self, argument: Argument | Value, type: str | None = None) -> Value:
        """The argument as the result's dtype holds it, or in a type that a program computes in."""
        return self.held(argument, self.dtype) if type is None else self.of_type(argument, type)

    def held(self, argument: Argument | Value, dtype: torch.dtype) -> Value:
        """As torch converts it: what has more bits than the dtype wraps around."""
        if not isinstance(argument, (Value, Operand)):
            argument = wrapped(argument, dtype)
        value = self.of_type(argument, TYPES[dtype])
        is_wide = isinstance(argument, Operand) and torch.promote_types(argument.dtype, dtype) != dtype
        return self.program.apply(NARROW[dtype], value) if is_wide and dtype in NARROW else value

    def rounded(self, argument: Argument | Value, dtype: torch.dtype | None = None) -> Value:
        """As torch has it in low precision, where a step of the function depends on it: what a program computes is not
        rounded yet. dtype: which one, if not the result's."""
        dtype = dtype or self.dtype
        if dtype not in ROUNDED:
            return self.held(argument, dtype)
        if not isinstance(argument, (Value, Operand)):
            return self.held(torch.tensor(argument, dtype=dtype).item(), dtype)
        value = self.held(argument, dtype)
        is_read = isinstance(argument, Operand) and value.op == "input" and argument.dtype == dtype
        return value if is_read else self.op(ROUNDED[dtype], value)

    def of_type(self, argument: Argument | Value, type: str) -> Value:
        if isinstance(argument, (Value, Operand)):
            return self.program.cast(argument.value if isinstance(argument, Operand) else argument, type)
        return self.program.constant(type, argument)

    def op(self, name: str, *arguments: Argument | Value) -> Value:
        """An operation on arguments of one type: that of those that are values already, or else the result's."""
        types = [a.type for a in arguments if isinstance(a, Value)]
        return self.program.apply(name, *(self(a, types[0] if types else None) for a in arguments))

    def common(self, *arguments: Argument) -> torch.dtype:
        """The dtype that torch compares these in."""
        fakes = [a.fake if isinstance(a, Operand) else a for a in arguments]
        _, dtype = elementwise_dtypes(*fakes, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        if dtype not in TYPES:
            raise NotFusable(f"programs know no {dtype}")
        return dtype

    def where(self, mask: Value, yes: Argument | Value, no: Argument | Value) -> Value:
        return self.program.apply("where", mask, self(yes), self(no))

    def both(self, a: Value, b: Value) -> Value:
        return self.program.apply("bitwise_and", a, b)

    def either(self, a: Value, b: Value) -> Value:
        return self.program.apply("bitwise_or", a, b)

    def lesser(self, a: Argument | Value, b: Argument | Value) -> Value:
        """NaN where either is. False comes before True."""
        a, b = self(a), self(b)
        return self.program.apply("bitwise_and" if a.type == BOOLEAN else "minimum", a, b)

    def greater(self, a: Argument | Value, b: Argument | Value) -> Value:
        a, b = self(a), self(b)
        return self.program.apply("bitwise_or" if a.type == BOOLEAN else "maximum", a, b)

    def finished(self, value: Value) -> Value:
        """As the result's dtype holds it, where integers wrap around."""
        narrow = NARROW.get(self.dtype)
        return self.program.apply(narrow, value) if narrow else value


Lowering = Callable[..., Value | tuple[Value | None, ...]]
Refusal = Callable[..., str | None]
POINTWISE: dict[object, Lowering] = {}
CONSTANT: dict[object, Callable[..., Number]] = {}
REFUSALS: dict[object, Refusal] = {}


@dataclass(frozen=True)
class Rows:
    """A lowering that reduces its first argument: along which dimensions, and what its results are like."""

    lower: Lowering
    dims: Callable[..., Iterable[int] | None]  # of its first argument, given the node's arguments; None for all
    # Of each result: "row", one for each row; "keep", the same with the reduced dimensions, of size 1; "element".
    results: tuple[str, ...] | Callable[..., tuple[str, ...]]


ROWS: dict[object, Rows] = {}


def pointwise(*targets: object, unless: Refusal | None = None) -> Callable[[Lowering], Lowering]:
    """unless: given the result's dtype and the node's arguments, says why torch has to compute it, or None."""

    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            POINTWISE[target] = lowering
            if unless is not None:
                REFUSALS[target] = unless
        return lowering

    return register


def rows(
    *targets: object, dims: Callable[..., object], results: object, unless: Refusal | None = None
) -> Callable[[Lowering], Lowering]:
    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            ROWS[target] = Rows(lowering, dims, results)
            if unless is not None:
                REFUSALS[target] = unless
        return lowering

    return register


def refusal(target: object, dtype: torch.dtype, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """Why this call of an operator that is lowered is left to torch, or None. Tensors may be given as anything but
    numbers."""
    rule = REFUSALS.get(target)
    return rule(dtype, *args, **kwargs) if rule else None


def overloads(packet: object) -> list[object]:
    """Those that give a new tensor."""
    names = [name for name in packet.overloads() if "out" not in name.split("_")]
    return [getattr(packet, name) for name in names if name not in ("complex", "int", "float", "Scalar_Scalar")]


def direct(operation: str) -> Lowering:
    return lambda call, *arguments: call.op(operation, *map(call, arguments))
