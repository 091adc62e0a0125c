"""Programs for the tests, and each operation's equivalent in torch."""

from __future__ import annotations

import numpy
import torch

from fourfold.compiler.pipeline.calling import Program, ProgramByDispatcher

PATHS = [Program] if Program is ProgramByDispatcher else [Program, ProgramByDispatcher]
HEAD = "fourfold program 1\n"

FLOATING = (torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)
NUMBERS = FLOATING + INTEGERS
LOGICAL = (*INTEGERS, torch.bool)
EVERY = (*NUMBERS, torch.bool)
KINDS = (*EVERY, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16)


def by_numpy(function) -> object:
    """C's functions, where torch's vectorised ones round differently or return NaN for a number."""

    def reference(*operands: torch.Tensor) -> torch.Tensor:
        with numpy.errstate(all="ignore"):
            return torch.from_numpy(function(*(operand.numpy() for operand in operands)))

    return reference


# The equivalent of the program's operation, and the dtypes that it supports.
UNARY = {
    **{name: (getattr(torch, name), NUMBERS) for name in ("neg", "abs", "sign")},
    **{
        name: (getattr(torch, name), FLOATING)
        for name in (
            *(
                "sqrt",
                "rsqrt",
                "reciprocal",
                "exp",
                "exp2",
                "expm1",
                "log",
                "log2",
                "log10",
                "log1p",
                "sin",
                "cos",
                "tan",
            ),
            *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc"),
            *("floor", "ceil", "trunc", "round"),
        )
    },
    **{name: (by_numpy(getattr(numpy, name)), FLOATING) for name in ("sqrt", "sinh", "cosh")},
    "bitwise_not": (torch.bitwise_not, LOGICAL),
}
BINARY = {
    **{name: (getattr(torch, name), NUMBERS) for name in ("add", "sub", "mul", "minimum", "maximum")},
    **{name: (getattr(torch, name), FLOATING) for name in ("div", "pow", "atan2", "copysign", "floor_divide")},
    "fmod": (by_numpy(numpy.fmod), FLOATING),
    "remainder": (by_numpy(numpy.remainder), FLOATING),
    "integer_floor_divide": (torch.floor_divide, INTEGERS),
    "integer_trunc_divide": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), INTEGERS),
    "integer_remainder": (torch.remainder, INTEGERS),
    "integer_fmod": (torch.fmod, INTEGERS),
    "shift_left": (torch.bitwise_left_shift, INTEGERS),
    "shift_right": (torch.bitwise_right_shift, INTEGERS),
    **{name: (getattr(torch, name), LOGICAL) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: (getattr(torch, name), EVERY) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
REDUCTIONS = {
    "sum": (lambda x: x.sum(-1, dtype=x.dtype), NUMBERS),
    "prod": (lambda x: x.prod(-1, dtype=x.dtype), NUMBERS),
    "amax": (lambda x: x.amax(-1), NUMBERS),
    "amin": (lambda x: x.amin(-1), NUMBERS),
    "all": (lambda x: x.all(-1), (torch.bool,)),
    "any": (lambda x: x.any(-1), (torch.bool,)),
}


def kind_of(dtype: torch.dtype) -> str:
    return "boolean" if dtype == torch.bool else str(dtype).removeprefix("torch.")


def type_of(dtype: torch.dtype) -> str:
    """The type in which values of this dtype are computed."""
    if dtype in (torch.uint8, torch.int8, torch.int16):
        return "int32"
    return "float32" if dtype in (torch.float16, torch.bfloat16) else kind_of(dtype)


def elementwise(operation: str, dtype: torch.dtype, operands: int, result: torch.dtype) -> str:
    """A program with one operation on one-dimensional tensors."""
    names = "xyz"[:operands]
    inputs = "".join(f"{name}: {type_of(dtype)} = input {kind_of(dtype)} [a]\n" for name in names)
    made = f"r: {type_of(result)} = {operation} {' '.join(names)}\n"
    return f"{HEAD}axes a=x.0\n{inputs}{made}output r {kind_of(result)} [a]\n"


SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-45,
    -1e-45,
    1e-38,
    3e38,
    -3e38,
    float("inf"),
    float("-inf"),
    float("nan"),
)


def values(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Numbers of all magnitudes and special values; for integers, random bits."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, (count,), generator=generator).bool()
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max, (count,), generator=generator, dtype=dtype)
    plain = torch.randn(count, generator=generator, dtype=torch.float64)
    plain = plain * 10.0 ** torch.randint(-3, 4, (count,), generator=generator)
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    places = torch.randint(count, (min(count, len(SPECIAL)),), generator=generator)
    plain[places] = special[torch.randperm(len(SPECIAL), generator=generator)[: len(places)]]
    return plain.to(dtype)
