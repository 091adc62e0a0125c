"""Kernels that call each function of generated kernels (cuda/nest.cuh, metal/nest.h), compiled and run in the
simulators on NumPy arrays."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import numpy

from fourfold import _C
from fourfold.devices import text
from simulated import ROOT, SIMULATORS, built, run

TYPES = {"bool": "boolean", "int32": "int32", "int64": "int64", "float32": "float32", "float64": "float64"}
METAL_TYPES = tuple(type for type in TYPES if type != "float64")
DTYPES = {"bool": numpy.bool_, **{type: numpy.dtype(type) for type in TYPES if type != "bool"}}
OF_RULE = {
    "floating": ("float32", "float64"),
    "integers": ("int32", "int64"),
    "numbers": ("int32", "int64", "float32", "float64"),
    "reduction": ("int32", "int64", "float32", "float64"),
    "logical": ("int32", "int64", "bool"),
    "narrow": ("int32",),
    "rounding": ("float32",),
    "every": ("bool",),
}
OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "&": "bitwise_and",
    "|": "bitwise_or",
    "^": "bitwise_xor",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
}
THREADS = 64  # per block
AMD = ("gfx90a", "gfx1030")  # wavefronts of 64 and of 32


@dataclass(frozen=True)
class Case:
    """An operation, the types of its operands, and its code in a kernel: {0} is the first operand."""

    operation: str
    operands: tuple[str, ...]
    result: str
    code: str

    @property
    def folds(self) -> bool:
        return self.code.startswith("fold_")


def cases(types: Sequence[str] = tuple(TYPES)) -> list[Case]:
    """Every operation of programs, with every type that it supports, and the operators of Vecs."""
    found = []
    for name, count, rule, _ in _C.operations():
        if rule == "widening":  # kernels call a conversion and the sum of its result
            continue
        for type in OF_RULE.get(rule, tuple(TYPES)):
            operands = ("bool", type, type) if rule == "selection" else (type,) * count
            to = name.removeprefix("to_").replace("boolean", "bool") if rule == "conversion" else type
            result = "bool" if rule == "comparison" else to
            function = f"fold_{name}" if rule in ("reduction", "every") else name
            code = f"{function}({', '.join(f'{{{k}}}' for k in range(count))})"
            found.append(Case(name, operands, result, code))
    found += [
        Case(case.operation, case.operands, case.result, f"{{0}} {symbol} {{1}}")
        for symbol, name in OPERATORS.items()
        for case in tuple(found)
        if case.operation == name
    ]
    found += [Case(c.operation, c.operands, c.result, "-{0}") for c in tuple(found) if c.operation == "neg"]
    found += [Case(c.operation, c.operands, c.result, "~{0}") for c in tuple(found) if c.operation == "bitwise_not"]
    # A scalar beside Vecs: {1}'s first lane.
    beside = {"sub": ("{0} - {1}[0]", "{0}[0] - {1}"), "maximum": ("maximum({0}, {1}[0])",)}
    beside |= {"eq": ("{0} == {1}[0]",), "where": ("where({0}[0], {1}, {2})", "where({0}, {1}[0], {2})")}
    plain = [case for case in found if case.operation in beside and "(" in case.code]
    found += [Case(c.operation, c.operands, c.result, code) for c in plain for code in beside[c.operation]]
    return [case for case in found if {*case.operands, case.result} <= set(types)]


def in_kernel(case: Case, lanes: int) -> bool:
    """Whether the case exists for scalars too: C++'s own operators on numbers, and folds, are not among these
    functions."""
    return lanes > 0 or not (case.folds or case.code[0] in "-~{" or "[0]" in case.code)


def of_type(types: Sequence[str], type: str, lanes: int) -> list[Case]:
    """The cases of one kernel, selected by their last operand's type."""
    return [case for case in cases(types) if case.operands[-1] == type and in_kernel(case, lanes)]


def body(chosen: Sequence[Case], lanes: int, space: str = "") -> str:
    """Selects the case by the number ``which``; the operands are scalars for 0 lanes, else Vecs."""
    loaded = f"load<{lanes}>" if lanes else "load"
    lines = []
    for number, case in enumerate(chosen):
        addresses = (
            f"({space}const {TYPES[type]}*){name} + at" for type, name in zip(case.operands, "xyz", strict=False)
        )
        value = case.code.format(*(f"{loaded}({address})" for address in addresses))
        to = f"({space}{TYPES[case.result]}*)out + {f'at / {lanes}' if case.folds else 'at'}"
        lines.append(f"    case {number}: store({to}, {value}); break;")
    return "\n".join(lines)


def cuda_kernel(type: str, lanes: int) -> str:
    return f"""
extern "C" __global__ void {type}_{lanes}(
    int which, const void* x, const void* y, const void* z, void* out, int count) {{
  const int at = (block_index() * {THREADS} + thread_index()) * {lanes or 1};
  if (at >= count) return;
  switch (which) {{
{body(of_type(tuple(TYPES), type, lanes), lanes)}
  }}
}}
"""


def metal_kernel(type: str, lanes: int) -> str:
    return f"""
template <int lanes>
[[kernel, max_total_threads_per_threadgroup({THREADS})]] void operations(
    constant int& which [[buffer(0)]], device const uint8* x [[buffer(1)]], device const uint8* y [[buffer(2)]],
    device const uint8* z [[buffer(3)]], device uint8* out [[buffer(4)]], constant int& count [[buffer(5)]],
    uint index [[thread_position_in_grid]]) {{
  const int at = int(index) * {lanes or 1};
  if (at >= count) return;
  switch (which) {{
{body(of_type(METAL_TYPES, type, lanes), lanes, "device ")}
  }}
}}
template [[host_name("operations")]] [[kernel]] decltype(operations<{lanes}>) operations<{lanes}>;
"""


def cuda_source(kernels: str) -> str:
    return f"{text.cuda()}\nnamespace fourfold {{\n{kernels}\n}}  // namespace fourfold\n"


def metal_source(kernels: str) -> str:
    return f"{text.metal()}\nnamespace fourfold {{\n{kernels}\n}}  // namespace fourfold\n"


# The simulators.


LAUNCHER = """
extern "C" __attribute__((visibility("default"))) int run_{name}(
    unsigned blocks, unsigned threads, unsigned shared, {declared}) {{
  hipLaunchKernelGGL(fourfold::{name}, dim3(blocks), dim3(threads), shared, nullptr, {names});
  return hipDeviceSynchronize();
}}
"""
SIGNATURE = re.compile(r'extern "C" __global__ void (\w+)\(\s*([^)]*)\)')


def simulated(kernels: str, warp: int = 32, sanitizer: Sequence[str] = ()) -> ctypes.CDLL:
    """A library with run_NAME(blocks, threads, bytes of shared memory, arguments…) for each kernel."""
    launchers = ""
    for name, declared in SIGNATURE.findall(kernels):
        names = ", ".join(part.split()[-1].lstrip("*") for part in declared.split(","))
        launchers += LAUNCHER.format(name=name, declared=declared, names=names)
    source = f"#include <hip/hip_runtime.h>\n{cuda_source(kernels)}{launchers}"

    def compile(folder: Path, library: Path) -> None:
        (folder / "kernels.cpp").write_text(source)
        flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", *sanitizer]
        partial = library.with_suffix(".new")
        run("g++", *flags, "-I", SIMULATORS / "gpusim", "-x", "c++", folder / "kernels.cpp", "-o", partial)
        partial.rename(library)

    library = built("functions", "kernels.so", compile, [SIMULATORS / "gpusim"], source, warp, sanitizer)
    with mock.patch.dict(os.environ, GPUSIM_WARP=str(warp)):  # which it reads now
        return ctypes.CDLL(str(library))


def launcher(library: ctypes.CDLL, name: str, lanes: int, shared: int = 0) -> Callable[..., None]:
    """Returns a function that runs a kernel of simulated() on a number of elements."""
    run = getattr(library, f"run_{name}")

    def launch(count: int, *arguments: object) -> None:
        given = (a if isinstance(a, int) else ctypes.c_void_p(0 if a is None else a.ctypes.data) for a in arguments)
        error = run(-(-count // (THREADS * max(lanes, 1))), THREADS, shared, *given)
        if error:
            raise RuntimeError(f"{name} failed with the error {error}")

    return launch


@cache
def metal_simulator() -> ctypes.CDLL:
    """The simulator's Metal without the framework's classes: gpusim_metal_run (simulators/metal/run_kernel.cpp)."""
    metal = SIMULATORS / "metal"

    def compile(folder: Path, library: Path) -> None:
        (folder / "kernels").mkdir(exist_ok=True)
        flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", '-DGPUSIM_METAL_FLAGS=""']
        flags += [f'-DGPUSIM_METAL_COMPILER="{sys.executable} {metal / "compiler.py"}"']
        sources = [metal / "gpu.cpp", metal / "run_kernel.cpp"]
        partial = library.with_suffix(".new")
        run("g++", *flags, "-I", SIMULATORS / "gpusim", "-I", ROOT / "cpp", *sources, "-o", partial, "-ldl")
        partial.rename(library)

    sources = [SIMULATORS / "gpusim", metal, SIMULATORS / "library"]
    library = ctypes.CDLL(str(built("metal-functions", "metal.so", compile, sources)))
    library.gpusim_metal_run.restype = ctypes.c_char_p
    library.gpusim_metal_run.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_size_t] * 3]
    return library


def run_metal(kernels: str, arguments: Sequence[object], threads: int, shared: int = 0) -> None:
    """Runs the kernel that the source instantiates: arrays are buffers, numbers are 32-bit constants."""
    held = [a if isinstance(a, numpy.ndarray) else numpy.array(a, numpy.int32) for a in arguments]
    pointers = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
    sizes = (ctypes.c_size_t * len(held))(*(array.nbytes for array in held))
    said = metal_simulator().gpusim_metal_run(
        metal_source(kernels).encode(), pointers, sizes, len(held), threads, min(threads, THREADS), shared
    )
    if said:
        raise RuntimeError(said.decode())


# The compilers.


def compile_for_amd(source: str, architecture: str, folder: Path, compiler: str) -> str:
    """Compiles a source to AMD's assembly with the Clang that compiles this repository's kernels."""
    libraries = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"
    file = folder / f"{architecture}.hip"
    file.write_text(source)
    command = [compiler, "-x", "hip", f"--offload-arch={architecture}", "--rocm-path=/usr", "-std=c++17", "-O2"]
    command += [f"--rocm-device-lib-path={libraries}", "-include", "hip/hip_runtime.h", "--cuda-device-only"]
    command += ["-ffp-contract=off", "-S", "-o", "-", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout
