"""Makes a formula the lowering of an operator, and converts arguments to values."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from fourfold.compiler.ir.dtypes import BOOLEAN, NARROW, ROUNDED, TYPES
from fourfold.compiler.ir.values import Number, Program, Value


class NotFusable(Exception):
    """This call can't be part of a program; ``str()`` gives the reason."""


@dataclass(frozen=True)
class Operand:
    """A tensor among a call's arguments, or a number that each call provides. fake: the traced tensor or number."""

    value: Value
    fake: object

    @property
    def dtype(self) -> torch.dtype:
        if isinstance(self.fake, torch.Tensor):
            return self.fake.dtype
        return torch.int64 if isinstance(self.fake, (int, torch.SymInt)) else torch.float64

    @property
    def is_number(self) -> bool:
        """Whether it holds one number, which some of torch's kernels for CPUs read before it is converted."""
        return not isinstance(self.fake, torch.Tensor) or all(isinstance(n, int) and n == 1 for n in self.fake.shape)


Argument = Operand | Number
# Annotations of a formula's parameters. Rounded: rounded to the result's dtype, for discontinuous functions. Truth:
# whether the argument differs from zero. Scalar: a number that torch's kernels don't round to low precision.
Rounded = Truth = Scalar = Value


def wrapped(number: Argument | Value, dtype: torch.dtype) -> Argument | Value:
    """An integer wrapped to the range of a dtype: torch compares 300 with uint8 as 44."""
    if not isinstance(number, int) or dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
        return number
    range_of = torch.iinfo(dtype)
    return (number - range_of.min) % (range_of.max - range_of.min + 1) + range_of.min


def fits(number: Number, dtype: torch.dtype) -> bool:
    """Whether torch converts the number to the dtype without an error. Infinities and NaN are floats."""
    if dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not abs(number) > torch.finfo(dtype).max or abs(number) == math.inf
    return math.isfinite(number) and wrapped(int(number), dtype) == int(number)


def beyond(dtype: torch.dtype, /, *arguments: object, **settings: object) -> str | None:
    """Refuses numbers that the dtype can't hold, for which torch raises an error."""
    numbers = (each for each in (*arguments, *settings.values()) if isinstance(each, (int, float)))
    return None if all(fits(number, dtype) for number in numbers) else "a number that the dtype can't hold"


@dataclass
class Call:
    """One call of an operator with a lowering: its program, the dtype of its result, and its device's type."""

    program: Program
    dtype: torch.dtype
    device: str = "cpu"

    def __call__(self, argument: Argument | Value, type: str | None = None) -> Value:
        """The argument converted to the result's dtype, or to a type in which programs compute."""
        return self.held(argument, self.dtype) if type is None else self.of_type(argument, type)

    def held(self, argument: Argument | Value, dtype: torch.dtype) -> Value:
        """The argument converted to a dtype as in torch: wider integers wrap around; numbers, and tensors of other
        dtypes, are rounded to low precision."""
        value = self.of_type(wrapped(argument, dtype), TYPES[dtype])
        given = argument.dtype if isinstance(argument, Operand) else None
        if dtype in ROUNDED:
            return value if isinstance(argument, Value) or given == dtype else self.program.apply(ROUNDED[dtype], value)
        is_wide = given is not None and torch.promote_types(given, dtype) != dtype
        return self.program.apply(NARROW[dtype], value) if is_wide and dtype in NARROW else value

    def rounded(self, argument: Argument | Value, dtype: torch.dtype | None = None) -> Value:
        """The argument rounded as in torch; programs compute low precision unrounded. dtype: if not the result's."""
        dtype = dtype or self.dtype
        value = self.held(argument, dtype)
        return self.program.apply(ROUNDED[dtype], value) if dtype in ROUNDED else value

    def unrounded(self, argument: Argument) -> Value:
        """The argument converted to the result's dtype, but not rounded to low precision."""
        return self.of_type(argument, TYPES[self.dtype]) if self.dtype in ROUNDED else self(argument)

    def scalar(self, argument: Argument) -> Value:
        """The argument, not rounded if it is a number."""
        is_tensor = isinstance(argument, Operand) and isinstance(argument.fake, torch.Tensor)
        return self(argument) if is_tensor else self.unrounded(argument)

    def term(self, argument: Argument) -> Value:
        """An operand of arithmetic: torch's kernels for GPUs don't round numbers, nor tensors with one number on the
        CPU."""
        is_number = not isinstance(argument, Operand) or argument.value.op == "number"
        return self.unrounded(argument) if is_number and self.device != "cpu" else self(argument)

    def factor(self, argument: Argument) -> Value:
        """The second operand of a product or quotient, which torch's kernels for CPUs don't round if it is a number."""
        is_number = not isinstance(argument, Operand) or argument.is_number
        return self.unrounded(argument) if is_number and self.device == "cpu" else self.term(argument)

    def truth(self, argument: Argument) -> Value:
        return self(self.rounded(argument, argument.dtype) if isinstance(argument, Operand) else argument, BOOLEAN)

    def of_type(self, argument: Argument | Value, type: str) -> Value:
        return self.program.cast(argument.value if isinstance(argument, Operand) else argument, type)

    def common(self, *arguments: Argument) -> torch.dtype:
        """The dtype in which torch compares these."""
        fakes = [a.fake if isinstance(a, Operand) else a for a in arguments]
        _, dtype = elementwise_dtypes(*fakes, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        if dtype not in TYPES:
            raise NotFusable(f"programs don't support {dtype}")
        return dtype

    def finished(self, value: Value) -> Value:
        """A result of the formula, with integers wrapped to the result's dtype."""
        narrow = NARROW.get(self.dtype)
        return self.program.apply(narrow, value) if narrow else value

    def converted(self, argument: object, annotation: str, converts: Callable[..., Value]) -> object:
        """An argument converted for a formula's parameter. Numbers that each call provides become values unless raw."""
        if argument is None or annotation in RAW:
            return argument
        if annotation == "Rounded":
            return self.rounded(argument)
        if annotation == "Truth":
            return self.truth(argument)
        if annotation in VALUES:
            return converts(self, argument)
        return self.scalar(argument) if annotation == "Scalar" or isinstance(argument, Operand) else argument


VALUES = ("Value", "Value | None")
RAW = ("Argument", "Argument | None", "Operand")

Formula = Lowering = Callable[..., Value | tuple[Value | None, ...]]
Refusal = Callable[..., str | None]
POINTWISE: dict[object, Lowering] = {}
CONSTANT: dict[object, Callable[..., Number]] = {}
REFUSALS: dict[object, Refusal] = {}
STEPWISE: dict[object, Callable[..., bool]] = {}  # by operator, see pointwise


@dataclass(frozen=True)
class Rows:
    """A lowering that reduces its first argument, the reduced dimensions, and the kinds of its results."""

    lower: Lowering
    dims: Callable[..., Iterable[int] | None]  # the reduced dimensions, from the node's arguments; None for all
    # The kind of each result: "row", one per row; "keep", likewise, reduced dimensions kept with size 1; "element".
    results: tuple[str, ...] | Callable[..., tuple[str, ...]]


ROWS: dict[object, Rows] = {}


def pointwise(
    *targets: object,
    unless: Refusal | None = None,
    of: str = "Value",
    stepwise: Callable[..., bool] | None = None,
) -> Callable[[Formula], Formula]:
    """Registers a formula for these operators. unless: takes the result's dtype and the node's arguments, and returns
    why torch has to compute the call, or None. of: the annotation of parameters that have none. stepwise: takes the
    same, and returns whether torch's kernel rounds each step of the formula to low precision."""

    def register(formula: Formula) -> Formula:
        POINTWISE.update({target: lowered(formula, target, of) for target in targets})
        STEPWISE.update(dict.fromkeys(targets, stepwise) if stepwise else {})
        REFUSALS.update(dict.fromkeys(targets, unless) if unless else {})
        return formula

    return register


def rows(
    *targets: object, results: tuple[str, ...] | None = None, unless: Refusal | None = None, of: str = "Value"
) -> Callable[[Formula], Formula]:
    """Registers a reduction, like ``pointwise``. results: as in Rows; by default from the operator's keepdim."""

    def register(formula: Formula) -> Formula:
        for target in targets:
            own = results or functools.partial(kept, target)
            ROWS[target] = Rows(
                lowered(formula, target, of, converts=Call.unrounded), functools.partial(reduced, target), own
            )
        REFUSALS.update(dict.fromkeys(targets, unless) if unless else {})
        return formula

    return register


def lowered(formula: Formula, target: object, of: str, converts: Callable[..., Value] = Call.__call__) -> Lowering:
    """The formula as a lowering. It receives the operator's arguments for which it has parameters, converted by their
    annotations: ``Value`` to the result's dtype, ``Rounded``, ``Truth``, ``Scalar``; ``Operand``, ``Argument``, numbers
    and settings unchanged. A parameter ``call`` receives the Call. converts: what ``Value`` does; torch's reductions
    read operands of several dtypes, such as a norm's, unrounded."""
    parameters = parameters_of(formula, target, of)
    takes_call = "call" in inspect.signature(formula).parameters

    def lower(call: Call, *args: object, **kwargs: object) -> Value | tuple[Value | None, ...]:
        given = named(target, args, kwargs)
        own = [call.converted(given.get(name), annotation, converts) for name, annotation in parameters]
        result = formula(call, *own) if takes_call else formula(*own)
        return result if isinstance(result, tuple) else call(result)

    return lower


def parameters_of(formula: Formula, target: object, of: str) -> list[tuple[str | None, str]]:
    """For each of the formula's parameters, the operator's argument (by name, else by position, else None) and the
    annotation."""
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
    """A call's arguments by their names in the operator's schema, including defaults."""
    known = target._schema.arguments
    return {a.name: a.default_value for a in known} | dict(zip((a.name for a in known), args, strict=False)) | kwargs


def reduced(target: object, *args: object, **kwargs: object) -> object:
    given = named(target, args, kwargs)
    return range(-len(given["normalized_shape"]), 0) if "normalized_shape" in given else given.get("dim")


def kept(target: object, *args: object, **kwargs: object) -> tuple[str, ...]:
    is_kept = named(target, args, kwargs).get("keepdim")
    return ("keep" if is_kept else "row",) * len(target._schema.returns)


def refusal(target: object, dtype: torch.dtype, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """Why this call of an operator with a lowering is left to torch, or None. Any object but a number stands for a
    tensor."""
    rule = REFUSALS.get(target)
    reason = rule(dtype, *args, **kwargs) if rule else None
    # Some of torch's kernels convert numbers to float32, others to the dtype, some without a check.
    return reason or (beyond(dtype, *args, **kwargs) if dtype.is_floating_point else None)


def is_stepwise(target: object, dtype: torch.dtype, args: tuple[object, ...]) -> bool:
    """Whether torch's kernel for CPUs rounds each step of an operator's formula to low precision."""
    return target in STEPWISE and STEPWISE[target](dtype, *args)


def always(*given: object) -> bool:
    return True


def overloads(packet: object) -> list[object]:
    """The overloads that return a new tensor."""
    found = [getattr(packet, name) for name in packet.overloads() if "out" not in name.split("_")]
    return [target for target in found if str(target._schema.returns[0].type) == "Tensor"]
