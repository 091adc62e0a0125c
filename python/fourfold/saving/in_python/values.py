"""The values of a file's JSON, with the checks and errors of cpp/model/json.h."""

from __future__ import annotations

import json
from typing import Any

import torch

from fourfold import _C

DTYPE_NAMES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
    *("float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex32", "complex64", "complex128"),
)
FLOATS = ("inf", "-inf", "nan")
KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class Refused(Exception):
    """Why a file can't be loaded: a message without the file's name."""


def parsed(text: str | bytes) -> Any:
    try:
        _C.check_json(text)  # strict
    except ValueError as error:
        raise Refused(str(error)) from None
    return json.loads(text)


def expect(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        expected = "true or false" if kind is bool else KINDS[kind]
        raise Refused(f"expected {what} to be {expected}, but got {KINDS[type(value)]}")
    return value


def index_of(value: Any, what: str, end: int) -> int:
    if not 0 <= expect(value, int, what) < end:
        raise Refused(f"expected {what} to be at least 0 and below {end}, but got {value}")
    return value


def member(value: Any, key: str, what: str) -> Any:
    if key not in expect(value, dict, what):
        raise Refused(f"expected {what} to have '{key}', but it has none")
    return value[key]


def shown(word: str) -> str:
    """A word of the file, shortened and printable."""
    text = "".join(c if " " <= c <= "~" else "?" for c in word[:60])
    return f"'{text}…'" if len(word) > 60 else f"'{text}'"


def dtype_of(name: Any) -> torch.dtype:
    if expect(name, str, "a dtype") not in DTYPE_NAMES:
        raise Refused(f"expected a dtype that fourfold knows, but got {shown(name)}; a newer fourfold may know it")
    return getattr(torch, name)


def constant_of(value: Any) -> Any:
    """A boolean, a number, a string or None."""
    if isinstance(value, dict):
        name = expect(member(value, "float", "a constant"), str, "a float")
        if name in FLOATS:
            return float(name)
    elif not isinstance(value, list):
        return value
    raise Refused("expected a constant to be null, a boolean, a number or a string")


def order_of(value: Any, dimensions: int) -> list[int]:
    """A tensor's dimensions, from the outermost in memory to the innermost."""
    order = [index_of(each, "a dimension", dimensions) for each in expect(value, list, "an order")]
    if sorted(order) != list(range(dimensions)):
        raise Refused("expected an order to have each dimension once")
    return order


def laid_out(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The tensor, dense in memory with its dimensions in this order."""
    moved = tensor.permute(order)
    if moved.is_contiguous():
        return tensor
    return moved.contiguous().permute(sorted(range(len(order)), key=order.__getitem__))
