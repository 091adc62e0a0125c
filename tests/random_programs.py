"""Random programs, with tensors in various memory layouts: broadcast, transposed, sliced, misaligned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fourfold.compiler.ir.dtypes import KINDS
from programs import HEAD

DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
STORED = {
    "float32": ("float32", "float32", "float32", "bfloat16", "float16"),
    "float64": ("float64",),
    "int32": ("int32", "int8", "uint8", "int16"),
    "int64": ("int64",),
    "boolean": ("boolean",),
}
# By type: operations whose results stay finite and that have no branch that a rounding of an operand could change.
UNARY = {
    "float32": ("neg", "abs", "tanh", "sigmoid", "sin", "erf"),
    "float64": ("neg", "abs", "tanh", "cos"),
    "int32": ("neg", "abs", "sign"),
    "int64": ("neg", "abs"),
    "boolean": ("bitwise_not",),
}
BINARY = {
    "float32": ("add", "sub", "mul", "minimum", "maximum"),
    "float64": ("add", "sub", "mul", "maximum"),
    "int32": ("add", "sub", "minimum", "bitwise_xor"),
    "int64": ("add", "sub", "maximum", "bitwise_and"),
    "boolean": ("bitwise_and", "bitwise_or", "bitwise_xor"),
}
REDUCTIONS = {
    "float32": ("sum", "amax", "amin", "sum_float64"),
    "float64": ("sum", "amax"),
    "int32": ("amax", "amin"),
    "int64": ("sum", "amin"),
    "boolean": ("any", "all"),
}
ROUNDED = ("tanh", "sigmoid", "sin", "cos", "erf", "exp", "sum", "sum_float64")
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 31, 33, 64, 100, 130)
LETTERS = "abcde"


@dataclass
class RandomProgram:
    """text: of the program; arguments: tensors and numbers that fit it."""

    text: str
    arguments: list[Tensor | float | int | bool] = field(default_factory=list)


class Generator:
    def __init__(
        self,
        seed: int,
        types: Sequence[str] = ("float32", "float32", "float64", "int32", "int64", "boolean"),
        normalises: bool = False,
        reverses: bool = False,
    ):
        """normalises: whether rows have softmaxes and variances, and some of these programs infinite elements.
        reverses: whether the first axis is always innermost in memory."""
        self.random = random.Random(seed)
        self.of_parts = random.Random(f"{seed} parts")
        self.normalises, self.reverses = normalises, reverses
        self.has_infinities = normalises and self.random.random() < 0.3
        torch.manual_seed(seed)
        self.types = types
        self.rounded: set[str] = set()  # names of values whose last digits differ between devices
        self.lines: list[str] = []
        self.values: list[tuple[str, str, int]] = []  # name, type, level: 0 numbers, 1 rows, 2 elements

    def program(self) -> RandomProgram:
        rng = self.random
        count = rng.randint(2 if self.reverses else 1, 4)
        most = 3000 if rng.random() < 0.15 else 600
        self.sizes = [rng.choice(SIZES) for _ in range(count)]
        if rng.random() < 0.2:
            self.sizes[-1] = rng.randint(1, most)
        while len(self.sizes) > 1 and torch.tensor(self.sizes).prod() > 60 * most:
            self.sizes[rng.randrange(count)] = rng.choice(SIZES[:6])
        self.outer = rng.randint(0, count - 1) if rng.random() < 0.7 else None
        # The first axis, which numbers the rows, is innermost in the memory of all tensors.
        self.is_reversed = count > 1 and (rng.random() < 0.15 or self.reverses)
        if self.is_reversed:
            self.outer, self.sizes = 1, [max(self.sizes[0], 17), *self.sizes[1:]]
        self.axes = list(LETTERS[:count])
        self.arguments: list[Tensor | float | int | bool] = []
        for k in range(rng.randint(1, 4)):
            self.add_input(k)
        for _ in range(rng.randint(1, 12)):
            if self.normalises and rng.random() < 0.5:
                self.add_normalisation()
            else:
                self.add_operation()
        outputs = [self.output() for _ in range(rng.randint(1, 3))]
        axes = [f"{letter}={size}" for letter, size in zip(self.axes, self.sizes, strict=True)]
        if self.outer is not None:
            axes.insert(self.outer, "|")
        text = "\n".join([f"{HEAD}axes {' '.join(axes)}", *self.lines, *outputs, ""])
        return RandomProgram(text, self.arguments)

    def level(self, dims: Sequence[str]) -> int:
        outer = 0 if self.outer is None else self.outer
        return max((2 if self.axes.index(axis) >= outer else 1 for axis in dims if axis != "1"), default=0)

    def add(self, type: str, level: int, right: str) -> str:
        name, (op, *operands) = f"v{len(self.values)}", right.split()
        if op in ROUNDED or self.rounded.intersection(operands):
            self.rounded.add(name)
        self.lines.append(f"{name}: {type} = {right}")
        self.values.append((name, type, level))
        return name

    def add_input(self, k: int) -> None:
        rng, type = self.random, self.random.choice(self.types)
        if k > 0 and rng.random() < 0.1:
            self.arguments.append({"boolean": True, "float32": 0.5, "float64": 0.25}.get(type, 3))
            self.add(type, 0, "number")
            return
        dims = [axis if k == 0 or rng.random() < 0.8 else "1" for axis in self.axes]
        if k > 0 and rng.random() < 0.3:
            dims = dims[rng.randrange(len(dims)) :]
        if rng.random() < 0.3 and not self.is_reversed:
            rng.shuffle(dims)
        kind = rng.choice(STORED[type])
        sizes = [1 if axis == "1" else self.sizes[self.axes.index(axis)] for axis in dims]
        value = drawn(sizes, DTYPES[kind])
        if self.has_infinities and value.dtype.is_floating_point and value.numel() > 8:
            places = torch.randint(value.numel(), (1 + value.numel() // 256,))
            value.view(-1)[places] = rng.choice((torch.inf, -torch.inf))
        words = dims
        if self.of_parts.random() < 0.15 and not self.is_reversed:
            words, value = self.as_part(dims, value)
        self.arguments.append(self.lying_anyhow(value))
        self.add(type, self.level(dims), f"input {kind} [{' '.join(words)}]")

    def as_part(self, dims: Sequence[str], value: Tensor) -> tuple[list[str], Tensor]:
        """The values as a part of a larger tensor."""
        starts = [self.of_parts.choice((None, 0, 1, 5)) for _ in dims]
        room = [(start or 0) + size + 2 * (start is not None) for start, size in zip(starts, value.shape, strict=True)]
        larger = drawn(room, value.dtype)
        within = (slice(start or 0, (start or 0) + size) for start, size in zip(starts, value.shape, strict=True))
        larger[tuple(within)] = value
        suffixes = ["" if start is None else f"+{start}" for start in starts]
        words = [axis + suffix for axis, suffix in zip(dims, suffixes, strict=True)]
        return [word.replace("1+", "@") for word in words], larger

    def lying_anyhow(self, value: Tensor) -> Tensor:
        """The same values in another memory layout."""
        if self.is_reversed:
            back = list(reversed(range(value.dim())))
            return value.permute(back).contiguous().permute(back)
        rng, choice = self.random, self.random.random()
        if choice < 0.5 or value.dim() == 0:
            return value
        if choice < 0.65:  # transposed
            order = list(range(value.dim()))
            rng.shuffle(order)
            back = [order.index(d) for d in range(value.dim())]
            return value.permute(order).contiguous().permute(back)
        if choice < 0.8:  # misaligned for vector loads
            by = rng.randint(1, 3)
            return value.new_empty(value.numel() + by)[by:].view(value.shape).copy_(value)
        if choice < 0.9:  # rows with gaps
            wide = value.new_empty([*value.shape[:-1], value.shape[-1] + rng.choice((1, 4, 8))])
            wide[..., : value.shape[-1]] = value
            return wide[..., : value.shape[-1]]
        room = value.new_empty([2 * size for size in value.shape])
        view = room[tuple(slice(None, None, 2) for _ in value.shape)]
        return view.copy_(value)

    def add_operation(self) -> str:
        rng = self.random
        name, type, level = rng.choice(self.values)
        choice = rng.random()
        if choice < 0.2 and self.outer is not None and level == 2:
            reduction = rng.choice(REDUCTIONS[type])
            if reduction == "sum_float64":
                return self.add("float64", 1, f"{reduction} {name}") if "float64" in self.types else name
            return self.add(type, 1, f"{reduction} {name}")
        if choice < 0.35:
            to = rng.choice([t for t in self.types if t != type] or [type])
            # An infinity is no integer, and a last digit may decide between two: tanh of 9 is 1, or a little less.
            to_integer = to.startswith("int") and (self.has_infinities or name in self.rounded)
            if to != type and not to_integer:
                return self.add(to, level, f"to_{to} {name}")
        if choice < 0.5 and type in UNARY:
            return self.add(type, level, f"{rng.choice(UNARY[type])} {name}")
        other, _, own = rng.choice([value for value in self.values if value[1] == type])
        if choice < 0.6:
            return self.add("boolean", max(level, own), f"{rng.choice(('lt', 'ge', 'eq', 'ne'))} {name} {other}")
        masks = [value for value in self.values if value[1] == "boolean"]
        if choice < 0.7 and masks:
            mask, _, of_mask = rng.choice(masks)
            return self.add(type, max(level, own, of_mask), f"where {mask} {name} {other}")
        return self.add(type, max(level, own), f"{rng.choice(BINARY[type])} {name} {other}")

    def add_normalisation(self) -> None:
        """The sum of exp(x - m), with m = amax(x), or a number where that is infinite, or the sum of both; or of
        (x - m)² or (m - x)² with the mean m."""
        found = [
            (name, type)
            for name, type, level in self.values
            if type in ("float32", "float64") and level == 2 and self.outer is not None
        ]
        if not found:
            self.add_operation()
            return
        (x, type), choice = self.random.choice(found), self.random.random()
        if choice < 0.5:
            maximum, sums = self.add(type, 1, f"amax {x}"), []
            if choice < 0.35:
                sums.append(self.add_sum_of_exponentials(type, x, maximum))
            if choice > 0.15:
                sums.append(self.add_sum_of_exponentials(type, x, self.add_finite(type, maximum)))
            if len(sums) == 2:
                self.add(type, 1, f"add {sums[0]} {sums[1]}")
            return
        total, columns = self.add(type, 1, f"sum {x}"), self.add(type, 0, "columns")
        mean = self.add(type, 1, f"div {total} {columns}")
        difference = self.add(type, 2, f"sub {x} {mean}" if choice < 0.75 else f"sub {mean} {x}")
        self.add(type, 1, f"sum {self.add(type, 2, f'mul {difference} {difference}')}")

    def add_sum_of_exponentials(self, type: str, x: str, shift: str) -> str:
        exponential = self.add(type, 2, f"exp {self.add(type, 2, f'sub {x} {shift}')}")
        return self.add(type, 1, f"sum {exponential}")

    def add_finite(self, type: str, maximum: str) -> str:
        other = self.add(type, 0, f"constant {self.random.choice((0.0, 0.0, 200.0, -800.0))}")
        infinity, self.has_infinities = self.add(type, 0, "constant inf"), True
        is_infinite = self.add("boolean", 1, f"eq {self.add(type, 1, f'abs {maximum}')} {infinity}")
        return self.add(type, 1, f"where {is_infinite} {other} {maximum}")

    def output(self) -> str:
        rng = self.random
        name, type, level = self.values[-1] if rng.random() < 0.6 else rng.choice(self.values)
        kind, outer = rng.choice(STORED[type]), self.outer or 0
        if self.outer is not None and level == 2 and type in ("float32", "float64") and rng.random() < 0.25:
            return f"column_sum {name} {kind} [{' '.join(self.axes[outer:])}]"
        dims = [*self.axes] if level == 2 else self.axes[:outer] if level == 1 else []
        if rng.random() < 0.2:
            rng.shuffle(dims)
        order = list(range(len(dims)))
        if self.is_reversed:
            dims, order = list(self.axes[: len(dims)]), order[::-1]
        elif rng.random() < 0.2:
            rng.shuffle(order)
        return f"output {name} {kind} [{' '.join(dims)}] order [{' '.join(map(str, order))}]"


def drawn(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(tuple(sizes)) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, tuple(sizes), dtype=dtype)
    return (torch.randint(-64, 65, tuple(sizes)) / 32).to(dtype)
