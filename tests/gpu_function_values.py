"""Expected results of each operation of generated kernels: operands of all kinds, and their results by the
definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy
import torch

from gpu_functions import DTYPES, Case
from programs import BINARY, UNARY, values

# Bounds in units in the last place of float32; all other operations are exact. C's functions, which the simulators
# call, are accurate to one unit; GPUs' functions have bounds of 1 to 4, which these tests can't check.
ULPS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "pow", "atan2"), 2),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf"), 3),
    "rsqrt": 2,  # of a rounded root
    "erfc": 3.6,
}
FLOATS = (
    0.0,
    1.0,
    0.5,
    1.5,
    2.5,
    3.0,
    0.1,
    7.25,
    88.0,
    1e-3,
    1e-40,
    1.17549435e-38,
    1e-30,
    16777215.0,
    8388607.5,
    1e10,
)
FLOATS = (*FLOATS, 3.4e38, math.pi, math.inf, math.nan)
INTEGERS = (0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 32768, 65535, 2**31 - 1, 2**31, 2**62)
Run = Callable[[list[numpy.ndarray], numpy.ndarray], None]  # operands, results
LEAST = {"float32": 2.0**-126, "float64": 2.0**-1022}


def specials(type: str) -> numpy.ndarray:
    if type == "bool":
        return numpy.array([False, True])
    if type in LEAST:
        return numpy.array([sign * x for x in FLOATS for sign in (1, -1)], DTYPES[type])
    limits = numpy.iinfo(DTYPES[type])
    signed = {sign * x for x in INTEGERS for sign in (1, -1)} | {limits.min, limits.max, limits.min + 1}
    return numpy.array([x for x in sorted(signed) if limits.min <= x <= limits.max], DTYPES[type])


def operands(case: Case, count: int = 2048) -> list[numpy.ndarray]:
    """All pairs of special values, then random ones; their number is a multiple of 64."""
    found = specials(case.operands[-1])
    pairs = numpy.array(list(itertools.product(found, found)), found.dtype)[:, : 2 if len(case.operands) > 1 else 1]
    size = len(pairs) + count + -(len(pairs) + count) % 64
    arrays = []
    for k, type in enumerate(case.operands):
        dtype = torch.bool if type == "bool" else getattr(torch, type)
        array = values(dtype, size, seed=k).numpy().copy()
        if type == case.operands[-1]:
            array[: len(pairs)] = pairs[:, min(k, 1) % pairs.shape[1]]
        arrays.append(array)
    if case.operation.startswith("to_") and case.operands[0] in LEAST and "int" in case.operation:
        arrays[0] = numpy.nan_to_num(arrays[0].clip(-1e9, 1e9))  # others are undefined in C++
    return arrays


def floor_divide(a: int, b: int) -> int:
    return 0 if b == 0 else a // b


def trunc_divide(a: int, b: int) -> int:
    return 0 if b == 0 else -(-a // b) if (a < 0) != (b < 0) else a // b


OF_INTEGERS = {
    "integer_floor_divide": lambda a, b, bits: floor_divide(a, b),
    "integer_trunc_divide": lambda a, b, bits: trunc_divide(a, b),
    "integer_remainder": lambda a, b, bits: a - floor_divide(a, b) * b if b else 0,
    "integer_fmod": lambda a, b, bits: a - trunc_divide(a, b) * b if b else 0,
    "shift_left": lambda a, b, bits: a << b if 0 <= b < bits else 0,
    "shift_right": lambda a, b, bits: a >> b if 0 <= b < bits else a >> bits - 1,
}


def wrapped(x: int, bits: int) -> int:
    return (x + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def expected(case: Case, arrays: list[numpy.ndarray], lanes: int) -> numpy.ndarray:
    """By the definition, or by torch on the CPU; float32 operations with a bound of more than a unit in float64."""
    name, to = case.operation, DTYPES[case.result]
    if name in OF_INTEGERS:
        bits = 8 * arrays[0].itemsize
        function = OF_INTEGERS[name]
        pairs = zip(arrays[0].tolist(), arrays[1].tolist(), strict=True)
        return numpy.array([wrapped(function(a, b, bits), bits) for a, b in pairs], to)
    tensors = [torch.from_numpy(array) for array in arrays]
    if case.folds:
        return folded(name, arrays[0].reshape(-1, lanes))
    if name in ("to_float16", "to_bfloat16"):
        return tensors[0].to(getattr(torch, name.removeprefix("to_"))).float().numpy()
    if name.startswith("to_"):
        kind = name.removeprefix("to_").replace("boolean", "bool")
        return tensors[0].to(getattr(torch, kind)).numpy().astype(to)
    if name == "where":
        return torch.where(*tensors).numpy()
    function = (UNARY | BINARY)[name][0]
    if name in ULPS and case.result == "float32":
        tensors = [tensor.double() for tensor in tensors]
    result = function(*tensors).numpy()
    if name == "sigmoid":  # 1 / (1 + exp(-x)), as in torch
        with numpy.errstate(over="ignore"):
            result[numpy.exp(-arrays[0]) == numpy.inf] = 0
    return result


def folded(name: str, rows: numpy.ndarray) -> numpy.ndarray:
    """Reduces each row pairwise by halves."""
    functions = {"sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}
    function = functions.get(name, torch.logical_and if name == "all" else torch.logical_or)
    part = torch.from_numpy(rows)
    while part.shape[1] > 1:
        half = part.shape[1] // 2
        part = function(part[:, :half], part[:, half:])
    return part[:, 0].numpy()


def check(case: Case, lanes: int, run: Run, is_flushing: bool = False) -> None:
    """is_flushing: subnormal operands and results may be zero."""
    arrays = operands(case)
    if is_flushing:
        arrays = [flushed(array) for array in arrays]
    spread = (k for k in range(len(arrays)) if f"{{{k}}}[0]" in case.code)
    alike = {k: numpy.repeat(arrays[k][::lanes], lanes) for k in spread}
    want = expected(case, [alike.get(k, array) for k, array in enumerate(arrays)], lanes)
    got = numpy.zeros(len(want), DTYPES[case.result])
    run(arrays, got)
    wrong = faults(case, got, want, LEAST["float32"] if is_flushing else 0.0)
    if len(wrong):
        k = wrong[0]
        of = arrays[0].reshape(-1, lanes)[k] if case.folds else [array[k] for array in arrays]
        raise AssertionError(f"{case.code} of {of}: {got[k]} for {want[k]}, and {len(wrong) - 1} others are wrong")


def flushed(array: numpy.ndarray) -> numpy.ndarray:
    """With subnormal numbers replaced by zeros."""
    if array.dtype.name not in LEAST:
        return array
    return numpy.where(numpy.abs(array) < LEAST[array.dtype.name], numpy.copysign(array.dtype.type(0), array), array)


def faults(case: Case, got: numpy.ndarray, want: numpy.ndarray, least: float = 0.0) -> numpy.ndarray:
    """Positions of wrong results. Values smaller than `least` in magnitude may be zero."""
    if case.result not in LEAST:
        return numpy.nonzero(got != want)[0]
    with numpy.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    unit = numpy.spacing(numpy.abs(rounded).clip(LEAST[case.result], numpy.finfo(got.dtype).max / 1.5))
    # In float64 torch's vectorised functions and C's functions may differ.
    units = ULPS.get(case.operation, 0) * (1 if case.result == "float32" else 4)
    bound = units * unit.astype(numpy.float64)
    with numpy.errstate(invalid="ignore", over="ignore"):
        near = numpy.abs(got.astype(numpy.float64) - want) <= bound
    same_sign = numpy.signbit(got) == numpy.signbit(rounded)
    right = (got == rounded) | near
    right &= same_sign | (rounded != 0) | (case.operation in UNSIGNED_ZEROS)
    right |= numpy.isnan(got) & numpy.isnan(want)
    right |= (numpy.abs(rounded) <= least) & (numpy.abs(got) <= least)
    return numpy.nonzero(~right)[0]


# The sign of the minimum or maximum of two zeros is unspecified.
UNSIGNED_ZEROS = ("minimum", "maximum", "amin", "amax")
