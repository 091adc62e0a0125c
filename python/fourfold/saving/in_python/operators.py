"""The operators that a file calls: which ones it may, and their arguments, checked against the schemas of the running
torch as in cpp/model/operators.cpp."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fourfold import _C
from fourfold.saving.in_python.values import FLOATS, Refused, dtype_of, expect, index_of, shown

# The static kinds of values.
TENSOR, TENSORS = "a tensor", "a list of tensors"
INTEGER, FLOAT, BOOLEAN, NUMBER, OTHER = "an integer", "a float", "a boolean", "a number", "another value"
NUMBERS = (INTEGER, FLOAT, BOOLEAN, NUMBER)
FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
# The kinds of values and of constants that the types of schemas take.
TAKES = {
    "TensorType": (TENSOR,),
    "IntType": (INTEGER, NUMBER),
    "SymIntType": (INTEGER, NUMBER),
    "FloatType": (FLOAT, NUMBER),
    "SymFloatType": (FLOAT, NUMBER),
    "BoolType": (BOOLEAN,),
    "SymBoolType": (BOOLEAN,),
    "NumberType": NUMBERS,
}
CONSTANTS = {
    "IntType": (int,),
    "SymIntType": (int,),
    "FloatType": (float, int),
    "BoolType": (bool,),
    "SymBoolType": (bool,),
    "NumberType": (bool, int, float),
    "StringType": (str,),
}


@dataclass(frozen=True)
class Surroundings:
    """The device that a file is loaded to, and the namespaces of operators that it may call."""

    device: torch.device
    namespaces: Collection[str]


def operator_of(name: str, surroundings: Surroundings) -> torch._ops.OpOverload:
    """Raises Refused for an operator that this torch doesn't have or that a file may not call."""
    space, _, own = name.partition("::") if "::" in name else ("", "", name)
    if space not in surroundings.namespaces:
        known = ", ".join(sorted(surroundings.namespaces))
        raise Refused(
            f"expected operators of {known}, but the file calls {shown(name)}; if you trust the file, allow its "
            f"namespace: allow=('{space}',)"
        )
    base, _, overload = own.partition(".")
    try:
        schema = torch._C._get_schema(f"{space}::{base}", overload)
    except RuntimeError:
        raise Refused(
            f"expected an operator that this torch has, but the file calls {shown(name)}; use the torch that it was "
            "saved with, or a newer one, and import what registers the operator"
        ) from None
    may_write = space == "aten" and _C.may_write(base)
    if space in ("aten", "prims", "fourfold") and schema.is_mutable and not may_write:
        raise Refused(f"expected no operator that changes its arguments, but the file calls {shown(name)}")
    if space in ("aten", "prims") and not _C.is_permitted(base):
        raise Refused(
            f"the file calls {shown(name)}, which fourfold doesn't run for a file: it may read or write outside the "
            "model's tensors"
        )
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


def name_of(operator: torch._ops.OpOverload) -> str:
    schema = operator._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


class Arguments:
    """Reads the arguments of one operator. values: the graph's nodes so far, with their kinds."""

    def __init__(self, operator: Any, values: Sequence[Node], kinds: Sequence[str], surroundings: Surroundings):
        self.operator, self.schema = operator, operator._schema
        self.values, self.kinds, self.device = values, kinds, surroundings.device
        self.read: list[int] = []  # the values, in order

    def of(self, given: Any) -> dict[str, Any]:
        """The arguments by name, without defaults. Raises Refused."""
        found: dict[str, Any] = {}
        names = {argument.name for argument in self.schema.arguments}
        reads_tensors = any(
            kind_of(each.real_type) == "TensorType" or is_list_of(each.real_type, "TensorType")
            for each in self.schema.arguments
        )
        for argument in self.schema.arguments:
            name = argument.name
            is_device = name == "device" and str(argument.real_type) == "Optional[Device]"
            if name not in expect(given, dict, "an operator") and not argument.has_default_value():
                self.refuse(argument, "none")
            if is_device and not reads_tensors and given.get(name) is None:
                found[name] = self.device
            elif name in given:
                found[name] = self.argument(given[name], argument.real_type, argument)
        if not given.keys() <= names:
            raise Refused(
                f"the file gives {name_of(self.operator)} an argument that this torch's has not; use the torch that it "
                "was saved with, or a newer one"
            )
        return found

    def refuse(self, argument: Any, what: str) -> None:
        raise Refused(
            f"expected argument {argument.name} of {name_of(self.operator)} to be {argument.real_type}, but got {what}"
        )

    def argument(self, given: Any, type: Any, argument: Any) -> Any:
        kind = kind_of(type)
        if isinstance(given, dict) and "value" in given:
            index = index_of(given["value"], "a value", len(self.values))
            own = self.kinds[index]
            while kind == "OptionalType":
                type = type.getElementType()
                kind = kind_of(type)
            wraps = kind == "TensorType" and own in NUMBERS  # torch makes the number a tensor
            is_list = own == TENSORS and is_list_of(type, "TensorType")
            if not wraps and not is_list and own not in TAKES.get(kind, ()):
                self.refuse(argument, own)
            self.read.append(index)
            return self.values[index]
        if kind == "OptionalType":
            return None if given is None else self.argument(given, type.getElementType(), argument)
        if kind == "ListType":
            if isinstance(given, list):
                return [self.argument(part, type.getElementType(), argument) for part in given]
            if argument.N is None:
                self.refuse(argument, "another constant")
            # One value for all elements, as schemas such as int[2] allow.
            return [self.argument(given, type.getElementType(), argument)] * argument.N
        found = self.constant(given, "NumberType" if kind == "TensorType" else kind)
        if found is None:
            self.refuse(argument, "another constant")
        return found

    def constant(self, given: Any, kind: str) -> Any:
        """None if it is no constant of this type."""
        if not isinstance(given, dict):
            return given if type(given) in CONSTANTS.get(kind, ()) else None
        if len(given) != 1:
            return None
        ((what, value),) = given.items()
        if what == "dtype" and kind == "ScalarTypeType":
            return dtype_of(value)
        if what == "device" and kind == "DeviceObjType":
            return expect(value, str, "a device") and self.device  # a model uses only the device that it is loaded to
        known = {"layout": ("LayoutType", ("strided",)), "memory_format": ("MemoryFormatType", FORMATS)}
        if what in known and kind == known[what][0]:
            if expect(value, str, what) not in known[what][1]:
                raise Refused(f"expected a {what} that torch has, but got {shown(value)}")
            return getattr(torch, value)
        if what == "float" and kind in ("FloatType", "NumberType"):
            if expect(value, str, "a float") not in FLOATS:
                raise Refused(f"expected a float to be inf, -inf or nan, but got {shown(value)}")
            return float(value)
        return None


def kind_of(type: Any) -> str:
    return type.kind()


def is_list_of(type: Any, element: str) -> bool:
    return kind_of(type) == "ListType" and kind_of(type.getElementType()) == element


def results_of(operator: torch._ops.OpOverload) -> list[str]:
    """The kinds of an operator's results, in order."""
    own = {"TensorType": TENSOR, "BoolType": BOOLEAN, "SymBoolType": BOOLEAN, "NumberType": NUMBER}
    own |= {"IntType": INTEGER, "SymIntType": INTEGER, "FloatType": FLOAT, "SymFloatType": FLOAT}
    types = [result.real_type for result in operator._schema.returns]
    return [TENSORS if is_list_of(type, "TensorType") else own.get(kind_of(type), OTHER) for type in types]
