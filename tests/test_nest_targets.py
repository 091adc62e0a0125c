"""Loop nests compile to machine code for every supported processor, whichever this one is."""

from __future__ import annotations

import functools
import os

import pytest
import torch
from torch import Tensor

from fourfold import _C
from fourfold.compiler.ir.dtypes import NUMBERS
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir import reading
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.print.llvm import print_nest
from fourfold.compiler.nest.print.llvm_lines import Target
from nests import OF_CHANNELS, SHORT, inputs_of
from program_cases import programs

try:
    import llvmlite.binding as llvm
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("needs llvmlite", allow_module_level=True)

X86 = "+avx2,+fma,+f16c"
# By name: triple, processor, features, and the nest's target.
TARGETS = {
    "AVX2": ("x86_64-unknown-linux-gnu", "haswell", X86, Target(8, False)),
    "AVX-512": ("x86_64-unknown-linux-gnu", "skylake-avx512", f"{X86},+avx512f,+avx512bw,+avx512vl", Target(16, True)),
    "NEON": ("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon", Target(4, False)),
    "Apple": ("arm64-apple-macosx14.0.0", "apple-m1", "+neon", Target(4, False)),
}
PROGRAMS = {**{name: text for name, text, _ in programs()}, "rows_of_few_columns": SHORT, "of_channels": OF_CHANNELS}
CPU = 0  # torch's DeviceType


@functools.cache
def machine(name: str) -> object:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, processor, features, _ = TARGETS[name]
    return llvm.Target.from_triple(triple).create_target_machine(cpu=processor, features=features, opt=1, reloc="pic")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sweep
def test_code_is_generated(name: str, target: str) -> None:
    text = PROGRAMS[name]
    numbers = _C.program_numbers(text, CPU, 0)
    inputs = [
        (NUMBERS[x.dtype], list(x.shape), list(x.stride()), 0) if isinstance(x, Tensor) else (number, [], [], 0)
        for x, number in zip(inputs_of(text, 37), numbers, strict=True)
    ]
    torch.set_num_threads(1)
    layout = Layout.of(_C.program_layout(text, CPU, 0, inputs))
    own = TARGETS[target][-1]
    nest = build.build(reading.read(text), layout, own.lanes)
    module = llvm.parse_assembly(print_nest(nest, own))
    module.triple, module.data_layout = machine(target).triple, str(machine(target).target_data)
    module.verify()
    assert len(machine(target).emit_object(module)) > 1000
