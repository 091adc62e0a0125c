"""Loop nests for 64-bit Arm, with the vector functions' bitcode, give the interpreter's bits there, and this machine's
values. They are compiled here and run by an emulator, without torch."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fourfold import _C
from fourfold.compiler.ir.dtypes import NUMBERS
from fourfold.compiler.nest.cpu.build import build
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.levels import NEON
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit.bitcode import Archive
from fourfold.compiler.nest.print.llvm import print_nest
from fourfold.compiler.pipeline.calling import Program
from machine import ROOT, output_of, tool
from nests import CPU, INTERPRETER, OF_CHANNELS, SHORT, inputs_of, layout_of, needs_nests, without_sizes
from once import made_once
from program_cases import assert_same_bits, programs
from test_nest_c import BROADCAST, SOFTMAX
from test_nest_c import NUMBERS as OF_NUMBERS

pytestmark = [needs_nests, pytest.mark.slow]
TRIPLE = "aarch64-linux-gnu"
DTYPE_OF = {number: dtype for dtype, number in NUMBERS.items()}
THREADS = 2  # in run_nests.cpp too

Call = tuple[str, tuple[object, ...]]


def calls() -> dict[str, Call]:
    """A sample of the other tests' programs and layouts."""
    torch.manual_seed(0)
    found = {f"{name} {size}": (text, draw(size)) for name, text, draw in programs() for size in (3, 37)}
    found |= {f"{name} 300": (text, draw(300)) for name, text, draw in programs() if "operations" not in name}
    found["short rows"] = SHORT, tuple(inputs_of(SHORT, 37))
    found["side by side"] = OF_CHANNELS, tuple(inputs_of(OF_CHANNELS, 37))
    x, wide = torch.randn(3, 2, 5, 70), torch.randn(1, 1, 40, 1000)
    for name, given in {"rows": x, "interleaved": x[..., ::2], "wide": wide}.items():
        found[f"softmax {name}"] = SOFTMAX, (given,)
    a, b, c = torch.randn(6, 7, 90), torch.randn(6, 1, 90).bfloat16(), torch.randn(7, 90).half()
    found["broadcast"] = BROADCAST, (a, b, c)
    found["broadcast interleaved"] = BROADCAST, (a[..., ::2], b[..., ::2], c[..., ::2])
    found["numbers"] = OF_NUMBERS, (torch.randn(100), 2.5, -3, torch.tensor(0.5))
    return found


CALLS = calls()


def compile_nests(archive: Path, folder: Path) -> None:
    """An object file for each layout, and a table of them in C++."""
    import llvmlite.binding as llvm

    from fourfold.compiler.nest.jit.engine import Compiler

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    compiler = Compiler(NEON, f"aarch64-unknown-{TRIPLE.partition('-')[2]}", Archive(archive))
    torch.set_num_threads(THREADS)
    layouts = dict.fromkeys((without_sizes(text), layout_of(text, inputs)) for text, inputs in CALLS.values())
    declared, entries = [], []
    for k, (text, layout) in enumerate(layouts):
        nest = build(read(text), Layout.of(layout), NEON.lanes)
        functions = [f and dataclasses.replace(f, name=f"nest_{k}_{f.name}") for f in nest.functions]
        code = compiler.code(print_nest(dataclasses.replace(nest, functions=functions), NEON))
        (folder / f"nest_{k}.o").write_bytes(code)
        declared += [f'extern "C" void {f.name}();' for f in functions if f]
        names = ", ".join(f"reinterpret_cast<void*>({f.name})" if f else "nullptr" for f in functions)
        numbers = f"{{{nest.bytes}, {nest.bytes_of_column}, {nest.bytes_of_panel}}}, {nest.sums}"
        entries.append(f"{{{json.dumps(text)}, {json.dumps(layout)}, {{{names}}}, {len(functions)}, {numbers}}},")
    table = ['#include "run_nests.h"', *declared, "const CompiledNest compiled_nests[] = {", *entries, "};"]
    table.append(f"const int compiled_nests_count = {len(entries)};")
    (folder / "table.cpp").write_text("\n".join([*table, ""]))


def make(folder: Path) -> None:
    compiler = tool(f"{TRIPLE}-g++", "g++-aarch64-linux-gnu")
    cmake, torch_folder = tool("cmake", "cmake"), Path(torch.__file__).parent
    own = {"CXX": "", "CXXFLAGS": "", "CMAKE_CUDA_COMPILER_LAUNCHER": ""}  # for this machine's compiler
    cross = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}")
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'ninja')}")

    def build_target(source: Path, target: str, *options: object) -> Path:
        where = folder / target
        environment = os.environ | own
        output_of(cmake, "-S", source, "-B", where, *ninja, *cross, *options, env=environment)
        output_of(cmake, "--build", where, "--target", target, env=environment)
        return where

    switches = [f"-DFOURFOLD_{name}=OFF" for name in ("PYTHON", "CUDA", "HIP", "METAL", "TORCH_HEADERS")]
    switches += ["-DFOURFOLD_BITCODE=ON", f"-DPython_EXECUTABLE={sys.executable}", f"-DTorch_ROOT={torch_folder}"]
    bitcode = build_target(ROOT, "fourfold_bitcode", *switches)
    (folder / "nests").mkdir()
    compile_nests(bitcode / "cpp" / "bitcode" / f"{NEON.name}.zip", folder / "nests")
    options = (f"-DFOURFOLD_SOURCES={ROOT / 'cpp'}", f"-DTORCH_HEADERS={torch_folder / 'include'}")
    build_target(ROOT / "tests" / "cpp" / "nests", "run_nests", *options, f"-DFOURFOLD_NESTS={folder / 'nests'}")


def described(text: str, inputs: Sequence[object]) -> bytes:
    """A call as run_nests.cpp reads it."""
    numbers, data = [len(text), len(inputs)], b""
    for x, dtype in zip(inputs, _C.program_numbers(text, CPU, 0), strict=True):
        if isinstance(x, Tensor):
            own = bytes(x.untyped_storage())[x.storage_offset() * x.element_size() :]
            numbers += [NUMBERS[x.dtype], x.dim(), *x.shape, *x.stride(), len(own)]
        else:
            own = torch.tensor(x, dtype=DTYPE_OF[dtype]).numpy().tobytes().ljust(8, b"\0")
            numbers += [dtype, 0, len(own)]
        data += own
    return f"{' '.join(map(str, numbers))}\n{text}".encode() + data


def read_like(tensors: Sequence[Tensor], said: memoryview) -> tuple[tuple[Tensor, ...], memoryview]:
    """Tensors of that form that were printed first, and the rest."""
    found = []
    for like in tensors:
        (size,) = struct.unpack("q", said[:8])
        whole = torch.frombuffer(bytearray(said[8 : 8 + size]), dtype=like.dtype)
        found.append(whole.as_strided(like.shape, like.stride()))
        said = said[8 + size :]
    return tuple(found), said


@pytest.fixture(scope="module")
def results(shared: Path) -> dict[str, tuple[tuple[Tensor, ...], ...]]:
    """For each call what the interpreter computes here, what it computes on Arm, and what the nest does."""
    folder = made_once(shared / "nests_on_arm", make)
    given = b"".join(described(text, inputs) for text, inputs in CALLS.values())
    run = (tool(f"qemu-{TRIPLE.partition('-')[0]}", "qemu-user"), folder / "run_nests" / "run_nests")
    done = subprocess.run(run, input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    said, found = memoryview(done.stdout), {}
    for name, (text, inputs) in CALLS.items():
        here = Program(text, name, INTERPRETER)(*inputs)
        here = here if isinstance(here, tuple) else (here,)
        interpreted, said = read_like(here, said)
        nested, said = read_like(here, said)
        found[name] = here, interpreted, nested
    assert len(said) == 0
    return found


@pytest.mark.parametrize("name", CALLS)
def test_nests_give_the_bits_of_the_interpreter_on_arm_and_the_values_of_this_machine(results, name: str) -> None:
    here, interpreted, nested = results[name]
    assert_same_bits(nested, interpreted)
    for mine, theirs in zip(nested, here, strict=True):
        # The C library's functions and the order of sums differ.
        bound = 1e-2 if mine.dtype in (torch.float16, torch.bfloat16) else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound * math.sqrt(mine.numel()), equal_nan=True)
