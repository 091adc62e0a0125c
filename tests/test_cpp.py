"""A C++ program without Python runs every operator, on this CPU and on emulated older ones."""

import os
import platform
import subprocess
from pathlib import Path

import pytest
import torch

import fourfold
from machine import INSTALLED, LIBFOURFOLD, ROOT, linux_only, output_of, tool
from once import locked, made_once
from op_cases import CASES
from recorded_calls import record

pytestmark = [linux_only, pytest.mark.slow]


@pytest.fixture(scope="module")
def configured(shared):
    return made_once(shared / "cpp", configure)


def configure(build):
    output_of(
        *(tool("cmake", "cmake"), "-S", ROOT / "tests" / "cpp", "-B", build, "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'ninja')}",
        f"-DTORCH_ROOT={Path(torch.__file__).parent}",
        f"-DFOURFOLD_HEADERS={INSTALLED / 'include'}",
        f"-DFOURFOLD_LIBRARY={LIBFOURFOLD}",
        f"-DFOURFOLD_SOURCES={ROOT / 'cpp'}",
    )


def built(build, target):
    with locked(build / "lock"):
        output_of(tool("cmake", "cmake"), "--build", build, "--target", target)
    return build / target


@pytest.fixture(scope="module")
def run_operators(configured):
    return built(configured, "run_operators")


def test_operators_run_without_python(run_operators):
    assert output_of(run_operators, fourfold.cpu_capability()).endswith("passed\n")


def test_recorded_calls_have_the_same_results_without_python(configured, tmp_path):
    """scripts/windows_build.py repeats them under Wine; here a wrong result is noticed, too."""
    recorded = record([case for case in CASES if case.every_path])
    differentiable = {each for each in fourfold.operator_names() if each not in ("axpby", "mlp_layers")}
    wanted = {*fourfold.operator_names(), *(f"{each}_backward" for each in differentiable), "_run_program"}
    assert {name.removeprefix("fourfold::") for name in recorded.names} == wanted
    program, file = built(configured, "recorded_calls"), tmp_path / "calls"
    file.write_bytes(b"".join(recorded.calls))
    assert output_of(program, file) == f"{len(recorded.calls)} calls\n"
    (softshrink,) = [call for call in recorded.calls if call.startswith(b"fourfold::softshrink ")][:1]
    file.write_bytes(softshrink[:-9] + b"\x00\x00\x80\x44" + softshrink[-5:])
    with pytest.raises(AssertionError, match="fourfold::softshrink in call 0, output 0: float32 element .* is off by"):
        output_of(program, file)


# core2duo has no SSE4 and no AVX, Haswell has AVX2 and no AVX-512. An instruction that the CPU lacks kills the program,
# so in a build for all levels, as in CI, this finds code of a level that leaked into what every CPU runs. Values are
# compared only in float32, and on this CPU in all types. In C++, because numpy needs a newer CPU.
@pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86-64 CPUs")
@pytest.mark.parametrize(("cpu", "level"), [("core2duo", "default"), ("Haswell", "avx2")])
def test_operators_run_on_an_older_cpu(run_operators, cpu, level):
    # The CPU must select the kernels, not a variable.
    unwanted = ("FOURFOLD_CPU_CAPABILITY", "ATEN_CPU_CAPABILITY")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    emulated = (tool("qemu-x86_64", "qemu-user"), "-cpu", cpu, run_operators, level, "float32")
    if level in fourfold._C.build_info()["cpu_levels"]:
        assert output_of(*emulated, env=environment).endswith("passed\n")
    else:
        done = subprocess.run([str(word) for word in emulated], capture_output=True, text=True, env=environment)
        assert done.returncode != 0
        assert f"for other processors than this one, whose CPU level is {level}" in done.stdout + done.stderr


AVX512 = ("avx512", "avx512_bf16", "amx")


@pytest.mark.skipif(fourfold.cpu_capability() not in AVX512, reason="runs instructions of AVX-512")
def test_amx_multiplies_without_amx(configured):
    assert output_of(built(configured, "amx_products")).endswith("passed\n")
