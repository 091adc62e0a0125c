"""Functions of generated GPU kernels: each function's values in the simulators, its compilation by NVRTC, and loads of
vectors. tests/simulators/printed_functions.py covers all sizes, architectures and compilers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

import backend_tools
import compiled_code
import gpu_function_memory as memory
import gpu_function_values as values
import gpu_functions as functions
from backend_report import Refused
from forked import Forks
from fourfold.devices import hiprtc, nvrtc, text
from fourfold.devices.runtime_compiler import CompilationError
from machine import linux_only, missing, output_of, tool
from simulated import ROOT

pytestmark = linux_only
NO_OPERAND = numpy.zeros(4)
SCRATCH = 32 * functions.THREADS
OWN = [kind for kind, type in memory.KINDS.items() if functions.TYPES[type] == kind]  # also computed in


PLACES = """
extern "C" __global__ void places(int count, void* out) {
  const int at = block_index() * 64 + thread_index();
  if (at < count) store((int32*)out + (block_count() - 1 - block_index()) * 64 + thread_index(), at);
}
"""


@pytest.fixture(scope="module")
def simulated():
    kernels = [functions.cuda_kernel(type, lanes) for type in functions.TYPES for lanes in (0, 4)]
    kernels += [memory.memory_kernel(kind, lanes) for kind in memory.KINDS for lanes in (1, 8)]
    return functions.simulated("".join([PLACES, *kernels, *(memory.group_kernel(kind) for kind in OWN)]))


@pytest.fixture(scope="module")
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.Nvrtc(backend_tools.nvrtc("12", fetch=False))
    except Refused as why:
        missing(f"this test needs NVRTC: {why}")


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("type", functions.TYPES)
def test_values_of_every_operation(simulated, type: str, lanes: int) -> None:
    chosen = functions.of_type(tuple(functions.TYPES), type, lanes)
    assert len(chosen) > 10
    kernel = functions.launcher(simulated, f"{type}_{lanes}", lanes)
    for which, case in enumerate(chosen):

        def run(arrays, got, which=which):
            x, y, z = (*arrays, None, None)[:3]
            kernel(len(x), which, x, y, z, got, len(x))

        values.check(case, lanes, run)


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("type", functions.METAL_TYPES)
def test_values_of_every_operation_in_metal(type: str, lanes: int) -> None:
    kernel = functions.metal_kernel(type, lanes)
    for which, case in enumerate(functions.of_type(functions.METAL_TYPES, type, lanes)):

        def run(arrays, got, which=which):
            x, y, z = (*arrays, NO_OPERAND, NO_OPERAND)[:3]
            functions.run_metal(kernel, [which, x, y, z, got, len(x)], -(-len(x) // max(lanes, 1)))

        values.check(case, lanes, run, is_flushing=True)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("kind", memory.KINDS)
def test_memory(simulated, kind: str, lanes: int) -> None:
    kernel = functions.launcher(simulated, f"memory_{kind}_{lanes}", lanes)
    memory.check_memory(kind, lanes, lambda *given: kernel(given[-1], *given))


@pytest.mark.parametrize("kind", OWN)
def test_lanes_and_blocks(simulated, kind: str) -> None:
    kernel = functions.launcher(simulated, f"group_{kind}", 1, SCRATCH)
    memory.check_group(kind, lambda *given: kernel(given[-1], *given))


def test_a_block_knows_its_place_among_them(simulated) -> None:
    out = numpy.zeros(192, numpy.int32)
    functions.launcher(simulated, "places", 1)(192, 192, out)
    assert out.tolist() == [*range(128, 192), *range(64, 128), *range(64)]


@pytest.mark.parametrize("kind", [kind for kind in memory.KINDS if kind != "float64"])
def test_memory_and_lanes_in_metal(kind: str) -> None:
    def of(source: str, lanes: int) -> memory.Run:
        return lambda *given: functions.run_metal(source, given, -(-given[-1] // lanes), SCRATCH)

    memory.check_memory(kind, 8, of(memory.memory_kernel(kind, 8, metal=True), 8), subnormal_is_zero=True)
    if kind in OWN:
        memory.check_group(kind, of(memory.group_kernel(kind, metal=True), 1))


def test_the_installed_texts_are_of_these_sources(tmp_path) -> None:
    """They include nothing but Metal's own library, so that NVRTC and hipRTC need no headers."""
    for folder, file, installed in (("cuda", "nest.cuh", text.cuda()), ("metal", "nest.h", text.metal())):
        given = [f"-DINPUT={file}", f"-DOUTPUT={tmp_path / file}", f"-DINCLUDES={ROOT / folder}:{ROOT / 'cpp'}"]
        output_of(tool("cmake", "cmake"), *given, "-P", ROOT / "cmake" / "embed.cmake")
        assert (tmp_path / file).read_text() == installed
        included = [line for line in installed.splitlines() if line.lstrip().startswith("#include")]
        assert included == ([] if folder == "cuda" else ["#include <metal_stdlib>"])


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_nvrtc_compiles_every_operation(compiler, architecture: str) -> None:
    kernels = "".join(functions.cuda_kernel(type, 0) for type in functions.TYPES)
    kernels += "".join(functions.cuda_kernel(type, 2) for type in functions.TYPES if type != "float64")
    kernels += "".join(memory.memory_kernel(kind, 8) for kind in memory.KINDS)
    kernels += "".join(memory.group_kernel(kind) for kind in OWN)
    assert compiler.compile(functions.cuda_source(kernels), architecture, "every").startswith(b"\x7fELF")


VECTORS = """
extern "C" __global__ void floats(const float32* x, const float32* y, float32* out, int64 count) {
  const int64 at = 4 * (int64(block_index()) * 256 + thread_index());
  const Vec<float32, 4> a = load<4>(x + at, at < count), b = load<4>(y + at, at < count);
  if (at < count) store(out + at, where(a > b, maximum(a, 0.5f), -b) * 2 + fold_amax(a));
}
extern "C" __global__ void bfloats(const bfloat16* x, bfloat16* out, float32* sums) {
  const int64 at = 8 * (int64(block_index()) * 256 + thread_index());
  Vec<float32, 8> a = load<8>(x + at);
  a[1] = 0;
  float32 sum = fold_sum(a);
  for (int distance = 16; distance > 0; distance /= 2) sum = add(sum, exchange(sum, distance));
  store(out + at, a * sum + 1);
  store(sums + at, a);
}
"""


def test_vectors_are_moved_whole_and_kept_in_registers(compiler, tmp_path) -> None:
    try:
        cuobjdump = backend_tools.cuobjdump(fetch=False)
    except Refused as why:
        missing(f"this test needs cuobjdump: {why}")
    for architecture in ("sm_75", "sm_90", "sm_120"):
        file = tmp_path / f"{architecture}.cubin"
        file.write_bytes(compiler.compile(functions.cuda_source(VECTORS), architecture, "vectors"))
        said = compiled_code.disassembly(file, cuobjdump)
        assert compiled_code.in_local_memory(said) == {}
        for kernel, loads, stores in (("floats", 2, 1), ("bfloats", 1, 3)):
            code = said.partition(f"Function : {kernel}\n")[2].partition("Function :")[0]
            assert code.count(" LDG.E.128") == code.count(" LDG") == loads, (architecture, kernel)
            assert code.count(" STG.E.128") == code.count(" STG") == stores, (architecture, kernel)


def test_a_refused_source_is_an_error_with_the_compilers_words(compiler) -> None:
    with pytest.raises(
        CompilationError, match=r'^wrong failed to compile with .*sm_90.*(?s:.*)"missing" is undefined'
    ) as why:
        compiler.compile("__global__ void f() { missing(); }", "sm_90", "wrong")
    assert "missing" in why.value.log
    with pytest.raises(CompilationError, match=r"^NVRTC 12\.8 compiles for sm_50 and newer, not for sm_35$"):
        compiler.compile("", "sm_35", "old")
    with pytest.raises(ValueError, match="expected an architecture such as sm_90, but got gfx90a"):
        compiler.compile("", "gfx90a", "other")


def test_a_newer_gpu_gets_ptx_that_its_driver_compiles(compiler) -> None:
    code = compiler.compile('extern "C" __global__ void f() {}', "sm_999", "empty")
    newest = max(compiler.architectures)
    assert f".target sm_{newest}".encode() in code and b".entry f(" in code and code.endswith(b"\0")


def test_hiprtc(tmp_path) -> None:
    reason = hiprtc.installed.obstacle()
    if reason is not None:
        pytest.skip(reason)
    of_numbers = functions.cuda_kernel("float32", 0) + functions.cuda_kernel("int64", 0)
    of_memory = memory.memory_kernel("bfloat16", 8) + memory.group_kernel("int64")
    for architecture, kernels in (("gfx90a", of_numbers), ("gfx1030", of_memory)):
        assert hiprtc.installed.compile(functions.cuda_source(kernels), architecture, "some").startswith(b"\x7fELF")
    with pytest.raises(CompilationError, match="wrong failed to compile with --offload-arch=gfx90a(?s:.*)missing"):
        hiprtc.installed.compile("__global__ void f() { missing(); }", "gfx90a", "wrong")


def test_a_compiler_that_is_not_there_is_a_sentence(after_torch: Forks) -> None:
    """In a process in which no library loads."""
    code = """
import ctypes, torch
from fourfold.devices import hiprtc, nvrtc, runtime_compiler
runtime_compiler._loads = lambda path, mode: False
for module in (nvrtc, hiprtc):
    print(module.installed.obstacle())
    try:
        module.installed.compile("", "sm_90", "none")
    except runtime_compiler.CompilationError as error:
        print(error)
"""
    said = after_torch.output_of("-c", code).splitlines()
    assert said == [
        *["NVIDIA's run-time compiler was not found: pip install nvidia-cuda-nvrtc"] * 2,
        *["AMD's run-time compiler was not found: install ROCm's package hiprtc, or set ROCM_PATH"] * 2,
    ]


PACKAGED, BUNDLED = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "torch/lib/libnvrtc-0123abcd.so.12"
NEWER = "nvidia/cu13/lib/libnvrtc.so.13"


@pytest.mark.parametrize(
    ("cuda", "expected"), [("12.9", [PACKAGED, BUNDLED, NEWER]), ("13.0", [NEWER, PACKAGED, BUNDLED])]
)
def test_nvrtc_is_searched_for_in_torchs_packages_first(cuda: str, expected: list[str], tmp_path, monkeypatch) -> None:
    for name in (PACKAGED, BUNDLED, NEWER, "torch/lib/libnvrtc-builtins.so.12"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    fake = SimpleNamespace(__file__=f"{tmp_path}/torch/__init__.py", version=SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(nvrtc, "torch", fake)
    assert nvrtc._paths()[:3] == [tmp_path / name for name in expected]


def fake_nvrtc(path: Path, major: int, minor: int) -> Path:
    path.parent.mkdir(parents=True)
    source = path.with_suffix(".c")
    source.write_text(
        f"int nvrtcVersion(int* major, int* minor) {{ *major = {major}; *minor = {minor}; return 0; }}\n"
        "int nvrtcGetNumSupportedArchs(int* count) { *count = 1; return 0; }\n"
        "int nvrtcGetSupportedArchs(int* found) { *found = 90; return 0; }\n"
    )
    output_of(tool("gcc", "gcc"), "-shared", "-fPIC", f"-Wl,-soname,libnvrtc.so.{major}", source, "-o", path)
    return path


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch loads its own NVRTC")
def test_a_loaded_nvrtc_comes_first_and_an_old_one_is_a_sentence(tmp_path, after_torch: Forks) -> None:
    """In processes of their own: glibc finds a loaded library again by its soname."""
    code = """
import ctypes, sys, types
from fourfold.devices import nvrtc
folder, *loaded = sys.argv[1:]
nvrtc.torch = types.SimpleNamespace(__file__=f"{folder}/torch/__init__.py", version=types.SimpleNamespace(cuda="12.8"))
kept = [ctypes.CDLL(path) for path in loaded]
print(nvrtc.installed.obstacle())
print(nvrtc.installed.compiler.path())
"""
    command = ("-c", code, tmp_path / "site")
    packaged = fake_nvrtc(tmp_path / "site" / PACKAGED, 12, 6)
    loaded = fake_nvrtc(tmp_path / "loaded" / "libnvrtc.so.12", 12, 5)
    assert after_torch.output_of(*command).splitlines() == ["None", str(packaged)]
    assert after_torch.output_of(*command, loaded).splitlines() == [
        f"expected NVRTC 12.6 or newer, but found 12.5 at {loaded}: "
        "pip install 'nvidia-cuda-nvrtc-cu12>=12.6', and load no older one first",
        str(loaded),
    ]


def test_bounds_of_the_formulas_for_metal(tmp_path) -> None:
    """For every 4001st float; a step of 1 would test all."""
    program = tmp_path / "float_functions"
    source = ROOT / "tests" / "cpp" / "float_functions.cpp"
    output_of("g++", "-std=c++20", "-O2", "-mfma", "-ffp-contract=off", "-I", ROOT / "cpp", source, "-o", program)
    worst = dict(line.split() for line in output_of(program, 4001).splitlines())
    bounds = {"expm1": 1.6, "log1p": 1.3, "erfc": 3.5, "erf": 1.0}
    assert worst.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert 0.5 < float(worst[name]) <= bound, name
