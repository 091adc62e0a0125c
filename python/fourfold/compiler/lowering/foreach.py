"""Operators on lists of tensors, which optimizers call, become operators on each tensor, which programs fuse. On
devices other than the CPU they stay: there, torch has one kernel for a whole list."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., object]

NAMES = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp "
    "log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh "
    "trunc"
)
OF_NUMBERS = {"maximum": torch.clamp_min, "minimum": torch.clamp_max}  # the functions themselves take tensors only
NAMED = {"alpha": "alpha", "value": "value", "scalars": "value"}  # arguments that torch's functions take by name


@functools.cache
def decompositions() -> dict[object, Function]:
    """The decompositions by operator."""
    found: dict[object, Function] = {}
    for name in NAMES.split():
        packet = getattr(torch.ops.aten, f"_foreach_{name}")
        for overload in (getattr(packet, which) for which in packet.overloads()):
            schema = overload._schema
            has_tensor_of_numbers = any(one.name == "scalars" and str(one.type) == "Tensor" for one in schema.arguments)
            if schema.returns and not schema.is_mutable and not has_tensor_of_numbers:
                found[overload] = on_each(name, overload)
    return found


def on_each(name: str, overload: torch._ops.OpOverload) -> Function:
    arguments = overload._schema.arguments
    takes_numbers = overload._overloadname in ("Scalar", "ScalarList")
    function = OF_NUMBERS.get(name) if takes_numbers else None
    function = function or getattr(torch, name)
    has_value = name in ("addcdiv", "addcmul")

    def apply(*given: object, **named: object) -> object:
        values = {one.name: value for one, value in zip(arguments, given, strict=False)} | named
        lists = [value for value in values.values() if isinstance(value, (list, tuple))]
        if any(isinstance(x, Tensor) and x.device.type != "cpu" for each in lists for x in each):
            return NotImplemented
        return [computed(function, values, k, has_value) for k in range(len(lists[0]))]

    return apply


def computed(function: Function, values: dict[str, object], k: int, has_value: bool) -> Tensor:
    positional: list[object] = []
    named: dict[str, object] = {}
    for name, value in values.items():
        own = value[k] if isinstance(value, Sequence) else value
        if name == "alpha" or has_value and name in NAMED:
            named[NAMED[name]] = own
        else:
            positional.append(own)
    return function(*positional, **named)
