"""The steps of a file's graph that neither are operators nor have a node in the compiler's graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.compiler.passes.plan import ARITHMETIC as NAMES
from fourfold.saving.in_python.operators import BOOLEAN, FLOAT, INTEGER

BOOLEANS = ("eq", "ne", "lt", "le", "gt", "ge")
# For each operation on sizes the function, how many operands it has, and the kind of its result; None: that of these.
ARITHMETIC: dict[str, tuple[Callable[..., object], int, str | None]] = {
    **{name: (function, 2, BOOLEAN if name in BOOLEANS else None) for function, name in NAMES.items()},
    "truediv": (operator.truediv, 2, FLOAT),
    "neg": (operator.neg, 1, None),
    "float": (float, 1, FLOAT),
    "int": (int, 1, INTEGER),
    "max": (max, 2, None),
    "min": (min, 2, None),
    "not": (operator.not_, 1, BOOLEAN),
    "and": (lambda a, b: bool(a and b), 2, BOOLEAN),
    "or": (lambda a, b: bool(a or b), 2, BOOLEAN),
}


@dataclass(eq=False, repr=False)
class Number:
    """Computes a size. Raises ValueError."""

    operation: str
    __name__: str = "number"

    def __call__(self, *operands: float) -> object:
        if self.operation in ("truediv", "floordiv", "mod") and not operands[1]:
            raise ValueError("compiled function: expected no division of a size by zero")
        found = ARITHMETIC[self.operation][0](*operands)
        if isinstance(found, int) and not -(2**63) <= found < 2**63:
            raise ValueError("compiled function: expected arithmetic of sizes to give integers of 64 bits")
        return found


@dataclass(eq=False, repr=False)
class Constant:
    tensor: Tensor
    __name__: str = "constant"

    def __call__(self) -> Tensor:
        return self.tensor


@dataclass(eq=False, repr=False)
class Item:
    """Selects a tensor of a list. Raises ValueError."""

    item: int
    __name__: str = "item"

    def __call__(self, values: Sequence[object]) -> object:
        if self.item >= len(values):
            raise ValueError(f"graph: expected a list of more than {self.item} tensors, but got {len(values)}")
        return values[self.item]


@dataclass(eq=False, repr=False)
class Concatenation:
    """Memory for a concatenation, and its parts, which later steps write."""

    sizes: Sequence[int]
    strides: Sequence[int]
    dtype: torch.dtype
    device: torch.device
    dim: int
    lengths: Sequence[int]
    __name__: str = "concatenation"

    def __call__(self) -> tuple[Tensor, ...]:
        whole = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device)
        return whole, *whole.split(list(self.lengths), self.dim)
