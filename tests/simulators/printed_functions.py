"""Functions of generated GPU kernels, in full: pytest tests/simulators/printed_functions.py. Every operation, type and
number of lanes, with every available compiler; their values in the simulator, those of memory accesses and groups of
threads also with wavefronts of 64; and the error bounds of the formulas for Metal.

The architectures of a compiler share the kernels out among themselves: each gets every type, in some numbers of lanes.
With FOURFOLD_PROGRAMS=full, each gets all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from metal_language import refusals

import backend_tools
import gpu_function_memory as memory
import gpu_function_values as values
import gpu_functions as functions
from fourfold.devices.nvrtc import Nvrtc
from machine import output_of, tool
from simulated import FULL, ROOT

LANES = (0, 1, 2, 4, 8)  # 0: scalars
NVRTC = {"12": ("sm_75", "sm_90", "sm_120"), "13": ("sm_80", "sm_100")}
OWN = [kind for kind, type in memory.KINDS.items() if functions.TYPES[type] == kind]
METAL_KINDS = [kind for kind in memory.KINDS if kind != "float64"]
MEMORY = [memory.memory_kernel(kind, lanes) for kind in memory.KINDS for lanes in memory.LANES]
GROUPS = [memory.group_kernel(kind) for kind in OWN]


def kernels(architecture: str = "", among: tuple[str, ...] = ()) -> list[str]:
    """Sources that are compiled in parallel, the longest first; with an architecture among others, its share."""
    operations = [functions.cuda_kernel(type, lanes) for lanes in reversed(LANES) for type in reversed(functions.TYPES)]
    if among and not FULL:
        operations = operations[among.index(architecture) :: len(among)]
    return [*operations, "".join(MEMORY), "".join(GROUPS)]


@pytest.mark.parametrize(("major", "architecture"), [(m, a) for m, listed in NVRTC.items() for a in listed])
def test_nvrtc(major: str, architecture: str) -> None:
    compiler = Nvrtc(backend_tools.nvrtc(major))

    def code(kernel: str) -> bytes:
        return compiler.compile(functions.cuda_source(kernel), architecture, "every")

    with ThreadPoolExecutor() as pool:
        assert all(made.startswith(b"\x7fELF") for made in pool.map(code, kernels(architecture, NVRTC[major])))


def test_nvcc(tmp_path: Path) -> None:
    """Also in sources that include CUDA's headers."""
    source = tmp_path / "every.cu"
    source.write_text(f"#include <cuda_runtime.h>\n#include <cmath>\n{functions.cuda_source(''.join(kernels()[-12:]))}")
    output_of(backend_tools.nvcc(), "-std=c++20", "-arch=sm_80", "-fmad=false", "-cubin", source, "-o", tmp_path / "x")


@pytest.mark.parametrize("architecture", functions.AMD)
def test_hip(architecture: str, tmp_path: Path) -> None:
    backend_tools.apt_packages()
    compiler = tool("clang++-19", "clang-19")

    def assembly(numbered: tuple[int, str]) -> str:
        folder = tmp_path / str(numbered[0])
        folder.mkdir()
        return functions.compile_for_amd(functions.cuda_source(numbered[1]), architecture, folder, compiler)

    with ThreadPoolExecutor() as pool:
        made = list(pool.map(assembly, enumerate(kernels(architecture, functions.AMD))))
    assert all("s_endpgm" in text for text in made)
    assert "global_load_dwordx4" in made[-2] and "global_store_dwordx4" in made[-2]
    assert "ds_bpermute_b32" in made[-1] or "ds_swizzle_b32" in made[-1] or "_dpp" in made[-1]


def test_metals_language(tmp_path: Path) -> None:
    sources = {f"{t}-{n}": functions.metal_kernel(t, n) for t in functions.METAL_TYPES for n in LANES}
    sources |= {f"{k}-{n}": memory.memory_kernel(k, n, metal=True) for k in METAL_KINDS for n in memory.LANES}
    sources |= {f"group-{k}": memory.group_kernel(k, metal=True) for k in OWN if k != "float64"}

    def check(named: tuple[str, str]) -> str:
        folder = tmp_path / named[0]
        folder.mkdir()
        return refusals(functions.metal_source(named[1]), folder)

    with ThreadPoolExecutor() as pool:
        assert {k: said for k, said in zip(sources, pool.map(check, sources.items()), strict=True) if said} == {}
    twice = memory.group_kernel("float32", metal=True).replace("load((device", "load((double")
    assert refusals(functions.metal_source(twice), tmp_path) != ""


@pytest.mark.parametrize("warp", [32, 64])
def test_values(warp: int) -> None:
    operations = functions.TYPES if warp == 32 else ()  # these don't depend on the wavefront
    library = functions.simulated("".join([*(kernels()[:-2] if operations else ()), *MEMORY, *GROUPS]), warp)
    for type in operations:
        for lanes in LANES:
            launch = functions.launcher(library, f"{type}_{lanes}", lanes)
            for which, case in enumerate(functions.of_type(tuple(functions.TYPES), type, lanes)):

                def run(arrays, got, launch=launch, which=which):
                    launch(len(arrays[0]), which, *(*arrays, None, None)[:3], got, len(arrays[0]))

                values.check(case, lanes, run)
    for kind in memory.KINDS:
        for lanes in memory.LANES:
            launch = functions.launcher(library, f"memory_{kind}_{lanes}", lanes)
            memory.check_memory(kind, lanes, lambda *given, launch=launch: launch(given[-1], *given))
    for kind in OWN:
        launch = functions.launcher(library, f"group_{kind}", 1, 32 * functions.THREADS)
        memory.check_group(kind, lambda *given, launch=launch: launch(given[-1], *given))


@pytest.mark.parametrize("lanes", memory.LANES)
@pytest.mark.parametrize("kind", METAL_KINDS)
def test_memory_in_metal(kind: str, lanes: int) -> None:
    source = memory.memory_kernel(kind, lanes, metal=True)

    def run(*given: object) -> None:
        functions.run_metal(source, given, -(-given[-1] // lanes), 4)

    memory.check_memory(kind, lanes, run, subnormal_is_zero=True)


def test_bounds_of_the_formulas_for_metal(tmp_path: Path) -> None:
    """For every 101st float."""
    program = tmp_path / "float_functions"
    source = ROOT / "tests" / "cpp" / "float_functions.cpp"
    output_of("g++", "-std=c++20", "-O2", "-mfma", "-ffp-contract=off", "-I", ROOT / "cpp", source, "-o", program)
    worst = {name: float(most) for name, most in (line.split() for line in output_of(program, 101).splitlines())}
    bounds = {"expm1": 1.6, "log1p": 1.3, "erfc": 3.5, "erf": 1.0}
    assert {name: most for name, most in worst.items() if most > bounds[name]} == {}
