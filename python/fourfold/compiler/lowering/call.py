"""How a formula becomes the lowering of an operator, and how arguments become values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from fourfold.compiler.dtypes import BOOLEAN, NARROW, ROUNDED, TYPES
from fourfold.compiler.ir import Number, Program, Value


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


Argument = Operand | Number
# Values that a formula takes of arguments: rounded to the result's dtype, where a step of the function depends on that;
# whether an argument is anything but zero.
Rounded = Truth = Value


def wrapped(number: Argument | Value, dtype: torch.dtype) -> Argument | Value:
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

    def __call__(self, argument: Argument | Value, type: str | None = None) -> Value:
        """The argument as the result's dtype holds it, or in a type that a program computes in."""
        return self.held(argument, self.dtype) if type is None else self.of_type(argument, type)

    def held(self, argument: Argument | Value, dtype: torch.dtype) -> Value:
        """As torch converts it: what has more bits than the dtype wraps around."""
        value = self.of_type(wrapped(argument, dtype), TYPES[dtype])
        is_wide = isinstance(argument, Operand) and torch.promote_types(argument.dtype, dtype) != dtype
        return self.program.apply(NARROW[dtype], value) if is_wide and dtype in NARROW else value

    def rounded(self, argument: Argument | Value, dtype: torch.dtype | None = None) -> Value:
        """As torch has it in low precision; what a program computes is not rounded yet. dtype: if not the result's."""
        dtype = dtype or self.dtype
        if dtype not in ROUNDED:
            return self.held(argument, dtype)
        if not isinstance(argument, (Value, Operand)):
            return self.held(torch.tensor(argument, dtype=dtype).item(), dtype)
        value = self.held(argument, dtype)
        is_read = isinstance(argument, Operand) and value.op == "input" and argument.dtype == dtype
        return value if is_read else self.program.apply(ROUNDED[dtype], value)

    def truth(self, argument: Argument) -> Value:
        return self(self.rounded(argument, argument.dtype) if isinstance(argument, Operand) else argument, BOOLEAN)

    def of_type(self, argument: Argument | Value, type: str) -> Value:
        return self.program.cast(argument.value if isinstance(argument, Operand) else argument, type)

    def common(self, *arguments: Argument) -> torch.dtype:
        """The dtype that torch compares these in."""
        fakes = [a.fake if isinstance(a, Operand) else a for a in arguments]
        _, dtype = elementwise_dtypes(*fakes, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        if dtype not in TYPES:
            raise NotFusable(f"programs know no {dtype}")
        return dtype

    def finished(self, value: Value) -> Value:
        """As the result's dtype holds it, where integers wrap around."""
        narrow = NARROW.get(self.dtype)
        return self.program.apply(narrow, value) if narrow else value

    def converted(self, argument: object, annotation: str) -> object:
        """As a formula's parameter takes it. A number that comes with each call is a value for any but raw ones."""
        if argument is None or annotation in RAW:
            return argument
        if annotation == "Rounded":
            return self.rounded(argument)
        if annotation == "Truth":
            return self.truth(argument)
        return self(argument) if annotation in VALUES or isinstance(argument, Operand) else argument


VALUES = ("Value", "Value | None")
RAW = ("Argument", "Argument | None", "Operand")

Formula = Lowering = Callable[..., Value | tuple[Value | None, ...]]
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


def pointwise(*targets: object, unless: Refusal | None = None, of: str = "Value") -> Callable[[Formula], Formula]:
    """Registers a formula of these operators. unless: given the result's dtype and the node's arguments,
    says why torch has to compute it, or None. of: the annotation of parameters that have none."""

    def register(formula: Formula) -> Formula:
        POINTWISE.update({target: lowered(formula, target, of) for target in targets})
        REFUSALS.update(dict.fromkeys(targets, unless) if unless else {})
        return formula

    return register


def rows(
    *targets: object, results: tuple[str, ...] | None = None, unless: Refusal | None = None, of: str = "Value"
) -> Callable[[Formula], Formula]:
    """results: as Rows has them; by the operator's keepdim if not given."""

    def register(formula: Formula) -> Formula:
        for target in targets:
            own = results or functools.partial(kept, target)
            ROWS[target] = Rows(lowered(formula, target, of), functools.partial(reduced, target), own)
        REFUSALS.update(dict.fromkeys(targets, unless) if unless else {})
        return formula

    return register


def lowered(formula: Formula, target: object, of: str) -> Lowering:
    """The formula as a lowering: it gets the operator's arguments that it has parameters for, converted as these are
    annotated: ``Value`` to the result's dtype, ``Rounded``, ``Truth``; ``Operand`` and ``Argument`` as they are, and so
    numbers and settings. The Call too, if its first parameter is ``call``."""
    parameters = parameters_of(formula, target, of)
    takes_call = "call" in inspect.signature(formula).parameters

    def lower(call: Call, *args: object, **kwargs: object) -> Value | tuple[Value | None, ...]:
        given = named(target, args, kwargs)
        own = [call.converted(given.get(name), annotation) for name, annotation in parameters]
        result = formula(call, *own) if takes_call else formula(*own)
        return result if isinstance(result, tuple) else call(result)

    return lower


def parameters_of(formula: Formula, target: object, of: str) -> list[tuple[str | None, str]]:
    """Of each of the formula's parameters, the name of the operator's argument (that of its own name, or else of its
    position, or else none) and the annotation."""
    own = [p for p in inspect.signature(formula).parameters.values() if p.name != "call"]
    names = [argument.name for argument in target._schema.arguments]
    if own[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return [(name, of) for name in names]
    taken = {p.name for p in own}
    found = []
    for k, p in enumerate(own):
        name = p.name if p.name in names else names[k] if k < len(names) and names[k] not in taken else None
        if name is None and p.default is not None:
            raise TypeError(f"{formula.__name__}: expected an argument {p.name} of {target}, but got {names}")
        found.append((name, of if p.annotation is p.empty else p.annotation))
    return found


def named(target: object, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """A call's arguments by the names in the operator's schema, defaults too."""
    known = target._schema.arguments
    return {a.name: a.default_value for a in known} | dict(zip((a.name for a in known), args, strict=False)) | kwargs


def reduced(target: object, *args: object, **kwargs: object) -> object:
    given = named(target, args, kwargs)
    return range(-len(given["normalized_shape"]), 0) if "normalized_shape" in given else given.get("dim")


def kept(target: object, *args: object, **kwargs: object) -> tuple[str, ...]:
    is_kept = named(target, args, kwargs).get("keepdim")
    return ("keep" if is_kept else "row",) * len(target._schema.returns)


def refusal(target: object, dtype: torch.dtype, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """Why this call of an operator that is lowered is left to torch, or None. Tensors may be given as anything but
    numbers."""
    rule = REFUSALS.get(target)
    return rule(dtype, *args, **kwargs) if rule else None


def overloads(packet: object) -> list[object]:
    """Those that give a new tensor."""
    found = [getattr(packet, name) for name in packet.overloads() if "out" not in name.split("_")]
    return [target for target in found if str(target._schema.returns[0].type) == "Tensor"]
