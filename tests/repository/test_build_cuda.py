"""Configuring the build with CUDA: which nvcc, and for which GPUs."""

import os
import re
import subprocess

import pytest

from configuring import CHOICES, configuring, copy_of_the_sources, toolkit_root
from machine import ROOT, linux_only, output_of, tool

pytestmark = pytest.mark.slow


@pytest.fixture
def configure(tmp_path):
    return configuring(tmp_path / "build")


@pytest.fixture
def nvcc(tmp_path):
    """Makes an nvcc that reports a version. It compiles nothing and fails, unless ``works`` is set."""

    def make(version, works=False):
        script = tmp_path / "toolkit" / "bin" / "nvcc"
        script.parent.mkdir(parents=True)
        script.write_text(
            f"""#!/bin/sh
case "$*" in
  *--version*) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
  *--list-gpu-arch*) for number in 75 80 86 87 88 89 90 100 103 110 120 121; do echo compute_$number; done ;;
  *--dryrun*) echo "#$ TOP={tmp_path}/toolkit/bin/.." >&2 ;;
  *) {"exit 0" if works else 'echo "error: -- unsupported GNU version!" >&2; exit 1'} ;;
esac
"""
        )
        script.chmod(0o755)
        return script

    return make


def runtime(nvcc):
    """The library that the build looks for in its toolkit."""
    library = nvcc.parent.parent / "lib64" / "libcudart_static.a"
    library.parent.mkdir()
    library.touch()


def test_an_old_toolkit_is_named(configure, nvcc):
    code, said = configure("-DFOURFOLD_CUDA=ON", CUDACXX=str(nvcc("11.8")))
    assert code == 1
    assert "but CUDA 11.8 is older than 12.8: install a newer one, or set CUDACXX to its nvcc. Or set" in said


def test_a_toolkit_that_does_not_go_with_the_compiler_is_left_out(configure, nvcc):
    script = nvcc("13.0")
    code, said = configure("-DFOURFOLD_CUDA=AUTO", CUDACXX=str(script), TORCH_CUDA_ARCH_LIST="9.0")
    assert code == 0, said
    assert "CUDA off CUDA 13.0 has no static runtime library" in said
    runtime(script)
    code, said = configure("-DFOURFOLD_CUDA=AUTO", CUDACXX=str(script), TORCH_CUDA_ARCH_LIST="9.0")
    assert code == 0, said
    assert "CUDA off its nvcc builds no kernel with " in said
    assert "unsupported GNU version!): set CUDAHOSTCXX to another C++ compiler, or CUDACXX to another nvcc" in said


@pytest.fixture
def driver(tmp_path):
    """Makes an NVIDIA driver library that reports these compute capabilities, or fails with an error; returns the
    environment in which it is found before a real one."""

    def make(*gpus, error=0):
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        numbers = ", ".join(gpu.replace(".", ", ") for gpu in gpus) or "0"
        (folder / "driver.c").write_text(
            f"""
static int numbers[] = {{{numbers}}};
int cuInit(unsigned flags) {{ return flags != 0 ? 1 : {error}; }}
int cuDeviceGetCount(int* count) {{ *count = {len(gpus)}; return 0; }}
int cuDeviceGetAttribute(int* value, int attribute, int device) {{
  *value = numbers[2 * device + attribute - 75];
  return 0;
}}
"""
        )
        cc = tool("gcc", "gcc")
        output_of(cc, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.c")
        return {"LD_LIBRARY_PATH": str(folder)}

    return make


NO_DEVICE = 100  # cuInit's error code


@linux_only
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            NO_DEVICE,
            "no NVIDIA GPU on the machine that builds it: FOURFOLD_CUDA=ON compiles for the usual ones all the same, "
            "TORCH_CUDA_ARCH_LIST=9.0 for one",
        ),
        (
            803,
            "the NVIDIA driver of this machine does not work (error 803): reinstall it, or set TORCH_CUDA_ARCH_LIST to "
            "the GPUs to compile for",
        ),
    ],
)
def test_without_a_gpu_no_kernels_are_compiled_for_one(configure, driver, error, reason):
    code, said = configure("-DFOURFOLD_CUDA=AUTO", **driver(error=error))
    assert code == 0, said
    assert f"CUDA off {reason} " in said


@linux_only
def test_kernels_are_compiled_for_the_gpu_that_is_there(configure, toolkit, driver, tmp_path):
    code, said = configure("-DFOURFOLD_CUDA=AUTO", f"-DCUDAToolkit_ROOT={toolkit}", **driver("9.0", "8.6", "9.0"))
    assert code == 0, said
    assert re.search(r"CUDA on CUDA [\d.]+ for 9\.0,8\.6, the GPU of the machine that builds it ", said)
    lines = (tmp_path / "build" / "build.ninja").read_text()
    assert set(re.findall(r"arch=compute_(\d+)", lines)) == {"86", "90"}


@linux_only
def test_a_gpu_that_nvcc_is_too_new_for_is_left_out(configure, nvcc, driver):
    script = nvcc("13.0", works=True)
    runtime(script)
    code, said = configure("-DFOURFOLD_CUDA=AUTO", CUDACXX=str(script), **driver("3.5"))
    assert code == 0, said
    assert re.search(
        r"CUDA off CUDA [\d.]+ does not compile for the GPU here, of compute capability 3\.5: set CUDACXX to an older "
        r"toolkit's nvcc ",
        said,
    )


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ("9.0", "90-real"),
        ("8.9;7.5", "89-real;75-real"),
        ("8.7", "86-real"),  # runs the code of the next lower number
        ("12.1;12.0", "120-real"),
        ("13.0", "120"),  # of a later generation: PTX
        ("7.0", ""),
    ],
)
def test_a_gpu_is_given_code_that_it_runs(tmp_path, gpus, told):
    script = tmp_path / "of.cmake"
    script.write_text(
        f"""
include("{ROOT}/cmake/cuda_architectures.cmake")
fourfold_architectures_of("{gpus}" "75;80;86;89;90;100;120" wanted)
message(STATUS "[${{wanted}}]")
"""
    )
    assert output_of(tool("cmake", "cmake"), "-P", script) == f"-- [{told}]\n"


@pytest.fixture
def toolkit():
    return toolkit_root()


@linux_only
def test_kernels_that_are_required_need_no_gpu(configure, toolkit, driver, tmp_path):
    """They are compiled for the usual GPUs. The nvcc on PATH is a wrapper, beside which CMake would look for the
    toolkit."""
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    code, said = configure("-DFOURFOLD_CUDA=ON", PATH=path, **driver(error=NO_DEVICE))
    assert code == 0, said
    assert re.search(
        rf"CUDA on CUDA [\d.]+ for 7\.5,8\.0,8\.6,9\.0\+PTX,10\.0,12\.0\+PTX .*-- {toolkit}/bin/nvcc", said
    )
    lines = (tmp_path / "build" / "build.ninja").read_text()
    assert "arch=compute_90,code=[compute_90,sm_90]" in lines and "arch=compute_120,code=[compute_120,sm_120]" in lines


@pytest.fixture
def architectures(nvcc, tmp_path):
    """The architectures that CMake gets, and those in the summary, for a requested list."""
    script = tmp_path / "asked.cmake"
    compiler = nvcc("13.0")

    def run(asked, *options, gpus=""):
        script.write_text(
            f"""
include("{ROOT}/cmake/cuda_architectures.cmake")
fourfold_cuda_architectures("{compiler}" 13.0 "{gpus}")
message(STATUS "${{CMAKE_CUDA_ARCHITECTURES}} shown as ${{FOURFOLD_CUDA_ARCHITECTURES}}")
"""
        )
        surroundings = {name: value for name, value in os.environ.items() if name not in CHOICES}
        command = [tool("cmake", "cmake"), *options, "-P", script]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=surroundings | {"TORCH_CUDA_ARCH_LIST": asked},
        )
        return done.returncode, " ".join(done.stdout.split())

    return run


@pytest.mark.parametrize(
    ("asked", "shown", "told"),
    [
        ("8.0;9.0a;12.0+PTX", "8.0,9.0a,12.0+PTX", "80-real;90a-real;120"),
        ("8.0 9.0", "8.0,9.0", "80-real;90-real"),
        ("Ampere Hopper+PTX", "8.0,8.6,9.0+PTX", "80-real;86-real;90"),
        ("8.6 9.0+PTX 10.0", "8.6,9.0+PTX,10.0", "86-real;90;100-real"),
    ],
)
def test_architectures_are_named_as_torch_names_them(architectures, asked, shown, told):
    assert architectures(asked) == (0, f"-- {told} shown as {shown}")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("sm_80", "TORCH_CUDA_ARCH_LIST names the architecture sm_80; write 8.0, 9.0a, 12.0+PTX or Hopper, "),
        ("3.5", "TORCH_CUDA_ARCH_LIST asks for the architecture 3.5, but CUDA 13.0 compiles for 7.5,8.0,"),
    ],
)
def test_an_architecture_that_is_none_is_refused(architectures, asked, sentence):
    code, said = architectures(asked)
    assert code == 1
    assert sentence in said


def test_cmakes_own_list_of_architectures_comes_first(architectures):
    assert architectures("8.0", "-DCMAKE_CUDA_ARCHITECTURES=90") == (0, "-- 90 shown as 9.0+PTX")


def test_the_usual_architectures_end_in_ptx(architectures):
    """Whatever GPU is installed: wheels use this list. A GPU between two of them, such as one of compute capability
    11.0, runs the PTX of the next lower one."""
    told = "75-real;80-real;86-real;90;100-real;120 shown as 7.5,8.0,8.6,9.0+PTX,10.0,12.0+PTX"
    assert architectures("Common", gpus="9.0") == (0, f"-- {told}")


def test_a_cmake_that_does_not_know_the_language_leaves_cuda_out(configure, tmp_path):
    """The kernels need nvcc's C++20. A project can set CMAKE_VERSION, which is what CMake is checked by."""
    source = copy_of_the_sources(tmp_path / "source")
    top = source / "CMakeLists.txt"
    top.write_text(top.read_text().replace("include(compiler)", "set(CMAKE_VERSION 3.25.1)\ninclude(compiler)"))
    why = "CMake 3.25.1 does not support nvcc's C++20: install 3.25.2 or newer, as `pip install cmake` does"
    code, said = configure("-DFOURFOLD_CUDA=AUTO", "-DCMAKE_CUDA_ARCHITECTURES=90", source=source)
    assert code == 0, said
    assert f"CUDA off {why} " in said
    code, said = configure("-DFOURFOLD_CUDA=ON", source=source)
    assert code == 1
    assert f"FOURFOLD_CUDA=ON asks for the cuda backend, but {why}. Or set FOURFOLD_CUDA to AUTO or OFF." in said
