"""Loop nests compile to machine code for every supported processor, whichever this one is."""

from __future__ import annotations

import functools
import os

import pytest
import torch

from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir import reading
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.levels import AVX2, AVX512, NEON
from fourfold.compiler.nest.print.llvm import print_nest
from nests import OF_CHANNELS, SHORT, inputs_of, layout_of
from program_cases import programs

try:
    import llvmlite.binding as llvm

    from fourfold.compiler.nest.jit.engine import Compiler
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("needs llvmlite", allow_module_level=True)

TARGETS = {
    "AVX2": ("x86_64-unknown-linux-gnu", AVX2),
    "AVX-512": ("x86_64-unknown-linux-gnu", AVX512),
    "NEON": ("aarch64-unknown-linux-gnu", NEON),
    "Apple": ("arm64-apple-macosx14.0.0", NEON),
}
PROGRAMS = {**{name: text for name, text, _ in programs()}, "rows_of_few_columns": SHORT, "of_channels": OF_CHANNELS}


@functools.cache
def compiler(name: str) -> Compiler:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, level = TARGETS[name]
    return Compiler(level, triple, {})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_code_is_generated(name: str, target: str) -> None:
    text = PROGRAMS[name]
    torch.set_num_threads(1)
    layout = Layout.of(layout_of(text, inputs_of(text, 37)))
    _, level = TARGETS[target]
    nest = build.build(reading.read(text), layout, level.lanes)
    assert len(compiler(target).code(print_nest(nest, level))) > 1000
