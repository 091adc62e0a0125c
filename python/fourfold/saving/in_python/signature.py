"""The arguments of a loaded model: dtypes, shapes and bounds, checked at each call as cpp/model/signature.h does."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.saving.in_python.values import Refused, constant_of, dtype_of, expect, member, shown
from fourfold.saving.text import size_of as text_of_size

MOST = 2**63 - 1
DEEPEST_SIZE = 30
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}
Size = Any  # as in the file: a number, a symbol's name, or [operation, size, size]


@dataclass
class Argument:
    """A tensor of a dtype and shape; a number of a kind (int, float), maybe with a size; or the only value allowed."""

    name: str
    dtype: torch.dtype | None = None
    shape: Sequence[Size] = ()
    number: type | None = None
    size: Size = None
    expected: Any = None


class Signature:
    def __init__(self, symbols: Any, arguments: Any, device: torch.device):
        self.device = device
        self.symbols: dict[str, tuple[int, int]] = {}
        for name, bounds in expect(symbols, dict, "symbols").items():
            maximum = member(bounds, "maximum", "a symbol")
            least = expect(member(bounds, "minimum", "a symbol"), int, "a minimum")
            self.symbols[name] = least, MOST if maximum is None else expect(maximum, int, "a maximum")
        self.arguments = [self.argument_of(each) for each in expect(arguments, list, "arguments")]

    def size_of(self, given: Any, depth: int = 0) -> Size:
        if type(given) is int:
            return given
        if isinstance(given, str):
            if given not in self.symbols:
                raise Refused(f"expected a size to be a symbol, but got {shown(given)}")
            return given
        parts = expect(given, list, "a size")
        known = len(parts) == 3 and expect(parts[0], str, "the operation of a size") in OPERATIONS
        if not known or depth > DEEPEST_SIZE:
            raise Refused("expected a size to be an operation of two sizes")
        return [parts[0], self.size_of(parts[1], depth + 1), self.size_of(parts[2], depth + 1)]

    def argument_of(self, given: Any) -> Argument:
        made = Argument(expect(member(given, "name", "an argument"), str, "a name"))
        if "dtype" in given:
            made.dtype = dtype_of(given["dtype"])
            shape = expect(member(given, "shape", "an argument"), list, "a shape")
            made.shape = [self.size_of(size) for size in shape]
        elif "number" in given:
            name = expect(given["number"], str, "a kind of number")
            if name not in ("integer", "float"):
                raise Refused(f"expected a number to be integer or float, but got {shown(name)}")
            made.number = int if name == "integer" else float
            made.size = self.size_of(given["size"]) if "size" in given else None
        else:
            made.expected = constant_of(member(given, "constant", "an argument"))
        return made

    def check(self, given: Sequence[Any]) -> None:
        """Raises ValueError that names the argument and the dimension."""
        if len(given) != len(self.arguments):
            raise ValueError(f"model: expected {len(self.arguments)} arguments, but got {len(given)}")
        known: dict[str, int] = {}
        for argument, value in zip(self.arguments, given, strict=True):
            if argument.dtype is not None:
                self.check_tensor(argument, value, known)
            elif argument.number is not None:
                if type(value) is not argument.number:
                    refuse(argument.name, "an integer" if argument.number is int else "a float", text_of(value))
                if argument.size is not None:
                    self.check_size(argument.size, value, argument.name, known)
            elif not is_same(value, argument.expected):
                expected = f"{text_of(argument.expected)}, as the model was exported with"
                refuse(argument.name, expected, text_of(value))

    def check_tensor(self, argument: Argument, given: Any, known: dict[str, int]) -> None:
        name = argument.name
        if not isinstance(given, Tensor):
            refuse(name, "a tensor", text_of(given))
        if given.layout is not torch.strided:
            refuse(name, "a strided tensor", "Sparse" if given.is_sparse else str(given.layout))
        if given.dtype is not argument.dtype:
            refuse(name, plain(argument.dtype), plain(given.dtype))
        own, there = self.device, given.device
        if there.type != own.type or own.index not in (None, there.index):
            instead = f"{there}; move the tensor, or load the file with that device"
            refuse(name, f"on {own}, where the model is", instead)
        if given.dim() != len(argument.shape):
            refuse(name, f"of {len(argument.shape)} dimensions", f"a shape of {given.dim()}")
        for d, (size, found) in enumerate(zip(argument.shape, given.shape, strict=True)):
            self.check_size(size, found, f"dimension {d} of {name}", known)

    def evaluate(self, size: Size, known: dict[str, int]) -> int | None:
        """None if it contains an unknown symbol, or on overflow."""
        if not isinstance(size, list):
            return known.get(size) if isinstance(size, str) else size
        a, b = self.evaluate(size[1], known), self.evaluate(size[2], known)
        if a is None or b is None or (size[0] in "/%" and b <= 0):
            return None
        found = OPERATIONS[size[0]](a, b)
        return found if -MOST <= found <= MOST else None

    def check_size(self, size: Size, given: int, what: str, known: dict[str, int]) -> None:
        found = self.evaluate(size, known)
        if found is not None:
            if found != given:
                place = self.place_of(size) if isinstance(size, str) else ""
                which = text_of_size(size) if place in ("", what) else place
                refuse(what, f"{'' if isinstance(size, int) else f'{which} = '}{found}", str(given))
            return
        # Solves for one unknown symbol in sums, differences and products.
        rest, value = size, given
        while isinstance(rest, list) and rest[0] in "+-*":
            a, b = self.evaluate(rest[1], known), self.evaluate(rest[2], known)
            if (a is None) == (b is None):
                return  # two unknown symbols: left to the checks of the graph's operators
            other = a if a is not None else b
            if rest[0] == "*":
                if other == 0 or value % other:
                    refuse(what, f"{text_of_size(size)}, a multiple of {other}", str(given))
                value //= other
            elif rest[0] == "+":
                value -= other
            else:
                value = other - value if a is not None else value + other
            rest = rest[2 if a is not None else 1]
        if not isinstance(rest, str):
            return
        minimum, maximum = self.symbols[rest]
        if not minimum <= value <= maximum:
            bounds = f"at least {minimum}" if maximum == MOST else f"between {minimum} and {maximum}"
            which = f"{rest} in {what} = {text_of_size(size)}" if isinstance(size, list) else what
            refuse(which, bounds, str(value))
        known[rest] = value

    def place_of(self, symbol: str) -> str:
        """The first dimension of an argument that is this symbol, or an empty string."""
        places = ((argument.name, list(argument.shape)) for argument in self.arguments)
        return next((f"dimension {shape.index(symbol)} of {name}" for name, shape in places if symbol in shape), "")

    def zeros(self, argument: int, given: Sequence[Any]) -> Tensor:
        """Zeros for an argument, whose sizes follow from the others; those that are None are not known."""
        known: dict[str, int] = {}
        for own, value in zip(self.arguments, given, strict=True):
            if own.dtype is not None and value is not None:
                self.check_tensor(own, value, known)
        made = self.arguments[argument]
        shape = [self.evaluate(size, known) for size in made.shape]
        if None in shape:
            what = f"the size {text_of_size(made.shape[shape.index(None)])} of {made.name}"
            refuse(what, "known from the other arguments", "no size; begin the stream with this state")
        return torch.zeros(shape, dtype=made.dtype, device=self.device)

    def dimensions_of_streams(self, arguments: Sequence[int]) -> list[int] | None:
        """For each of these arguments the dimension of a dynamic size that all have once; None if there is not exactly
        one such size."""
        shapes = [list(self.arguments[argument].shape) for argument in arguments]
        found = [symbol for symbol in self.symbols if all(shape.count(symbol) == 1 for shape in shapes)]
        return [shape.index(found[0]) for shape in shapes] if len(found) == 1 else None


def refuse(what: str, expected: str, given: str) -> None:
    raise ValueError(f"model: expected {what} to be {expected}, but got {given}")


def plain(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def text_of(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)


def is_same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    return a == b or isinstance(a, float) and math.isnan(a) and math.isnan(b)
