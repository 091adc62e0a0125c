"""Compares programs run by the interpreter and by their loop nests, bit for bit."""

from __future__ import annotations

import importlib
import math
import os
import re
import zlib
from collections.abc import Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold import _C
from fourfold.compiler import options
from fourfold.compiler.ir.dtypes import KINDS, NUMBERS
from fourfold.compiler.nest.ir import reading
from fourfold.compiler.nest.jit import service
from fourfold.compiler.pipeline.calling import Program
from program_cases import assert_same_bits
from programs import HEAD

# Without loop nests the test is skipped, or fails in CI.
needs_nests = pytest.mark.skipif(
    bool(service.obstacle()) and os.environ.get("CI") != "true", reason=f"no loop nests here: {service.obstacle()}"
)
GENERATORS = ("interpreter", pytest.param("llvm", marks=needs_nests))
DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
INTERPRETER, LLVM = 0, 2  # in options.GENERATORS
CPU = 0  # torch's DeviceType
SPECIAL = (0.0, -0.0, 1, -1, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-45, 3e38, -3e38, 88, -104, 0.5, 1e-20, 7)


# Rows with few columns, in every layout.
SHORT = (
    f"{HEAD}axes a=x.0 b=x.1 | c=x.2\nx: float32 = input float32 [a b c]\ny: float32 = input float32 [a 1 c]\n"
    "z: float32 = input bfloat16 [b c]\nr: float32 = input float32 [a b 1]\nt: float64 = input float64 [c b]\n"
    "u: float32 = sub x y\nv: float32 = mul u z\nw: float32 = add v r\ns: float32 = sum w\nm: float32 = amax w\n"
    "p: float32 = prod w\nd: float32 = sub w m\ne: float32 = exp d\nw64: float64 = to_float64 w\n"
    "q: float64 = mul w64 t\nq1: float64 = sum q\ng: boolean = gt w s\nh: boolean = any g\n"
    "output e float32 [a b c]\noutput d float16 [b a c]\noutput s float32 [a b]\noutput p float32 [b a]\n"
    "output q float64 [a c b]\noutput q1 float64 [a b]\noutput h boolean [a b]\noutput v float32 [c a b]\n"
)

# Rows of a fixed number of columns: several stages, kept values, all levels and kinds of reductions.
OF_FIXED_COLUMNS = (
    "x: float32 = input float32 [a b c]\ny: float32 = input bfloat16 [a 1 c]\nw: float32 = input float16 [c]\n"
    "r: float32 = input float32 [1 b 1]\nt: boolean = input boolean [a b 1]\nk: float64 = number\n"
    "u: float32 = mul x y\nv: float32 = add u w\nq: float32 = add v r\nm: float32 = amax q\nd: float32 = sub q m\n"
    "e: float32 = exp d\ns: float32 = sum e\np: float32 = div e s\nf: float64 = sum_float64 p\nn: float64 = mul f k\n"
    "f32: float32 = to_float32 n\nz: float32 = where t f32 m\no: float32 = sub p z\nl: float32 = sin o\n"
    "g: boolean = gt l r\nh: boolean = any g\ni: float32 = prod l\nj: float32 = where h i z\n"
    "output l float32 [a b c]\noutput d float16 [a b c]\noutput j float32 [a b]\noutput h boolean [a b]\n"
    "output n float64 [b a]\noutput k float64 []\n"
)

# Two stages with equally many sums.
SUMS_OF_FIXED_COLUMNS = (
    "x: float32 = input float32 [a c]\nm: float32 = sum x\nk: float32 = amin x\nd: float32 = sub x k\n"
    "s: float32 = sum d\nl: float32 = amax d\nv: float32 = sub m s\noutput v float32 [a]\noutput l float32 [a]\n"
)

# Rows side by side in memory: several stages, values kept for the row, all kinds of reductions and levels.
OF_CHANNELS = (
    f"{HEAD}axes n=x.0 r=x.2 | c=x.1\nx: float32 = input float32 [n c r]\ny: float32 = input bfloat16 [n c r]\n"
    "w: float32 = input float32 [c 1]\nb: float32 = input float16 [n 1 r]\nk: float32 = number\n"
    "u: float32 = mul x y\nv: float32 = add u w\nm: float32 = amax v\nd: float32 = sub v m\ne: float32 = exp d\n"
    "s: float32 = sum e\nz: float32 = div e s\nh: float32 = mul z k\ni: float32 = add h b\np: float32 = prod i\n"
    "l: float32 = amin i\no: float32 = sub i l\nx64: float64 = to_float64 x\ns64: float64 = sum x64\n"
    "g: boolean = gt x y\na: boolean = any g\nf: boolean = all g\noutput o float32 [n c r]\noutput z bfloat16 [n c r]\n"
    "output p float32 [n r]\noutput s64 float64 [n r]\noutput a boolean [n r]\noutput f boolean [n r]\n"
    "output e float32 [n c r]\n"
)

# The package exports the pass function under this name.
lower = importlib.import_module("fourfold.compiler.passes.lower")


def without_sizes(text: str) -> str:
    """A program's text as the compiler gets it."""
    text = re.sub(r"@\d+(?=[\] ])", "1", re.sub(r"(?<=[a-z])\+\d+(?=[\] ])", "", text))
    return re.sub(r"^axes.*$", lambda line: re.sub(r"=\S+", "", line[0]), text, count=1, flags=re.M)


def of_explained(text: str) -> str:
    """Likewise of a text that explain shows, which has the graph's names of inputs."""
    inputs = re.findall(r"^(\w+): \w+ = (?:input|number)\b", text, re.MULTILINE)
    names = {name: f"x{k}" for k, name in enumerate(inputs)}
    return without_sizes(re.sub(r"(?<!= )\b\w+", lambda word: names.get(word[0], word[0]), text))


class SampledPrograms:
    """Collects a sample of the programs of compiled functions."""

    ONE_OF = 16

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def __enter__(self) -> SampledPrograms:
        self.patches = [
            mock.patch.object(options, "DEFAULT", "llvm"),
            mock.patch.object(lower, "Program", self.program),
        ]
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        for patch in self.patches:
            patch.stop()

    def program(self, text: str, *arguments: object) -> Program:
        if zlib.crc32(text.encode()) % self.ONE_OF == 0:
            self.texts[text] = None
        return Program(text, *arguments)

    def compare(self) -> None:
        for text in self.texts:
            for size in (5, 33):
                expect_the_interpreters_bits(text, inputs_of(text, size), compiles=False)


def compiled_so_far() -> int:
    """How many nests this process has compiled, once none is requested: earlier tests leave requests."""
    assert fourfold.wait_for_nests(60)
    return service.service.compiled


def expect_the_interpreters_bits(text: str, inputs: Sequence[object], compiles: bool = True) -> None:
    """compiles: whether a nest must exist."""
    before = compiled_so_far()
    got = Program(text, "nest", service.number("llvm"))(*inputs)
    layouts = [layout for of, layout in service.service.refusals if of == without_sizes(text)]
    assert not service.service.failures, next(iter(service.service.failures.values()))
    assert not compiles or service.service.compiled > before or not layouts, layouts
    assert_same_bits(got, Program(text, "interpreter", INTERPRETER)(*inputs))


def inputs_of(text: str, size: int = 5, special: bool = False) -> list[object]:
    """Random inputs for a program; axes without a size get this one."""
    program = reading.read(text)
    sizes = [int(axis.size) if axis.size.isdigit() else size for axis in program.axes]
    inputs: list[object] = []
    for given, value in zip(program.inputs, (v for v in program.values() if v.op in ("input", "number")), strict=True):
        if given.kind == "number":
            inputs.append({"boolean": True, "int32": 3, "int64": 3}.get(value.type, 1.5))
            continue
        shape = [math.prod(sizes[axis] for axis in dim) for dim in given.dims]
        for d, start in enumerate(given.starts):
            shape[d] += 0 if start is None else start + d  # of a part, behind it too
        inputs.append(drawn(shape, DTYPES[given.kind], special))
    return inputs


def layout_of(text: str, inputs: Sequence[object]) -> str:
    """The layout of a call on the CPU."""
    numbers = _C.program_numbers(text, CPU, 0)
    described = [
        (NUMBERS[x.dtype], list(x.shape), list(x.stride()), 0) if isinstance(x, Tensor) else (number, [], [], 0)
        for x, number in zip(inputs, numbers, strict=True)
    ]
    return _C.program_layout(text, CPU, 0, described)


def drawn(shape: Sequence[int], dtype: torch.dtype, special: bool) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape, dtype=dtype)
    if not special:
        return torch.randn(shape, dtype=torch.float64).to(dtype)
    return torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)[torch.randint(len(SPECIAL), shape)]
