"""The check of compiled GPU code: it must find kernels that use local memory, and accept others."""

import os
import subprocess

import pytest

import backend_tools
import compiled_code
import fourfold
from backend_report import BACKENDS, HARDWARE, IN_REGISTERS, PROOFS, STEPPING, Refused, Report
from machine import missing, tool

KERNEL = """
__global__ void kernel(const int* at, float* out, int n) {
  float kept[8];
  for (int k = 0; k < 8; ++k) kept[k] = out[k * n];
  %s
}
"""
BY_A_CONSTANT = "for (int k = 0; k < 8; ++k) out[k] = kept[7 - k];"
BY_A_VALUE = "for (int k = 0; k < n; ++k) kept[at[k]] += 1.0f; for (int k = 0; k < 8; ++k) out[k] = kept[k];"


@pytest.fixture
def cuobjdump():
    try:
        return backend_tools.cuobjdump(fetch=False)
    except Refused as why:
        missing(f"this test needs cuobjdump: {why}")


def compiled(folder, body):
    source, target = folder / "kernel.cu", folder / "kernel.o"
    source.write_text(KERNEL % body)
    nvcc = os.environ.get("CUDACXX") or tool("nvcc", "CUDA toolkit")
    subprocess.run([nvcc, "-arch=sm_90", "-c", source, "-o", target], check=True, capture_output=True)
    return target


def test_an_array_indexed_by_a_value_is_seen(tmp_path, cuobjdump):
    ((kernel, what),) = compiled_code.of_file(compiled(tmp_path, BY_A_VALUE), cuobjdump).items()
    assert kernel == "kernel for sm_90"
    assert what.startswith("a stack of 32 bytes and ") and what.endswith(" instructions on local memory")


def test_an_array_indexed_by_constants_passes(tmp_path, cuobjdump):
    file = compiled(tmp_path, BY_A_CONSTANT)
    assert compiled_code.of_file(file, cuobjdump) == {}
    assert compiled_code.in_local_memory(compiled_code.disassembly(file, cuobjdump)) == {}


def test_a_file_without_a_kernel_is_refused(tmp_path, cuobjdump):
    source, target = tmp_path / "empty.cu", tmp_path / "empty.o"
    source.write_text("int nothing;\n")
    nvcc = os.environ.get("CUDACXX") or tool("nvcc", "CUDA toolkit")
    subprocess.run([nvcc, "-arch=sm_90", "-c", source, "-o", target], check=True, capture_output=True)
    with pytest.raises(Refused, match="cuobjdump finds no kernel in empty.o"):
        compiled_code.of_file(target, cuobjdump)


def test_each_architecture_is_looked_at():
    """An error in the second image of a file is neither attributed to the first, nor lost."""
    sass = "arch = sm_75\n\tFunction : _Zk\n LDG R0, [R2] ;\n"
    sass += "arch = sm_90\n\tFunction : _Zk\n STL [R1], R0 ;\n LDL R2, [R1] ;"
    assert list(compiled_code.local_instructions(sass)) == [(("_Zk", "sm_75"), 0), (("_Zk", "sm_90"), 2)]
    line = "  REG:64 STACK:{} SHARED:0 LOCAL:0 CONSTANT[0]:560"
    said = f"arch = sm_75\n Function _Zk:\n{line.format(0)}\narch = sm_90\n Function _Zk:\n{line.format(40)}"
    assert list(compiled_code.stacks(said)) == [(("_Zk", "sm_75"), 0), (("_Zk", "sm_90"), 40)]


def test_only_kernels_with_time_steps_must_do_without_local_memory():
    assert set(STEPPING) < set(fourfold.operator_names())
    for operator, holds in (("mlp", True), ("lstm", False)):
        report = Report(fourfold.operator_names())
        report.refuse("cuda", IN_REGISTERS, "a stack of 8 bytes", [operator])
        for backend in BACKENDS:
            for proof in PROOFS:
                report.prove(backend, proof)
        assert report.complete() is holds
        assert report.cell(operator, "cuda", IN_REGISTERS) == ("no", "a stack of 8 bytes")
        report.refuse("hip", "compiled", "no", [operator])
        report.refuse("cuda", HARDWARE, "needs a GPU")
        assert not report.complete()
