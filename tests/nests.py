"""Programs by the interpreter and by their loop nests, bit for bit."""

from __future__ import annotations

import importlib
import math
import zlib
from collections.abc import Sequence
from unittest import mock

import torch
from torch import Tensor

from fourfold.compiler import options
from fourfold.compiler.calling import Program
from fourfold.compiler.dtypes import KINDS
from fourfold.compiler.nest import reading, service
from program_cases import assert_same_bits

DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
INTERPRETER, LLVM = 0, 2  # of options.GENERATORS
SPECIAL = (0.0, -0.0, 1, -1, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-45, 3e38, -3e38, 88, -104, 0.5, 1e-20, 7)


# The package has the pass itself under this name.
lower = importlib.import_module("fourfold.compiler.passes.lower")


class SampledPrograms:
    """Takes a sample of the programs that compiled functions get."""

    ONE_OF = 16

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def __enter__(self) -> SampledPrograms:
        self.patches = [
            mock.patch.object(options, "DEFAULT", "interpreter"),
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


def expect_the_interpreters_bits(text: str, inputs: Sequence[object], compiles: bool = True) -> None:
    """compiles: whether there has to be a nest."""
    before = service.service.compiled
    got = Program(text, "nest", service.number("llvm"))(*inputs)
    layouts = [layout for of, layout in service.service.refusals if of == text]
    assert not service.service.failures, next(iter(service.service.failures.values()))
    assert not compiles or service.service.compiled > before or not layouts, layouts
    assert_same_bits(got, Program(text, "interpreter", INTERPRETER)(*inputs))


def inputs_of(text: str, size: int = 5, special: bool = False) -> list[object]:
    """Random inputs of a program; axes without a number have this size."""
    program = reading.read(text)
    sizes = [int(axis.size) if axis.size.isdigit() else size for axis in program.axes]
    inputs: list[object] = []
    for given, value in zip(program.inputs, (v for v in program.values() if v.op in ("input", "number")), strict=True):
        if given.kind == "number":
            inputs.append({"boolean": True, "int32": 3, "int64": 3}.get(value.type, 1.5))
            continue
        shape = [math.prod(sizes[axis] for axis in dim) for dim in given.dims]
        inputs.append(drawn(shape, DTYPES[given.kind], special))
    return inputs


def drawn(shape: Sequence[int], dtype: torch.dtype, special: bool) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(*shape) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape, dtype=dtype)
    if not special:
        return torch.randn(*shape, dtype=torch.float64).to(dtype)
    return torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)[torch.randint(len(SPECIAL), shape)]
