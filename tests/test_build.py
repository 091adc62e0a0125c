"""Configuring the build: the table that it ends in, and a sentence for each thing that can be missing."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from machine import ROOT, output_of, tool

# What the environment may have chosen already.
CHOICES = (
    "CUDACXX",
    "CUDAHOSTCXX",
    "CUDAARCHS",
    "CUDAToolkit_ROOT",
    "TORCH_CUDA_ARCH_LIST",
    "HIPCXX",
    "PYTORCH_ROCM_ARCH",
)
SOURCES = ("CMakeLists.txt", "pyproject.toml", "cmake", "cpp", "cuda", "hip", "metal")


@pytest.fixture
def configure(tmp_path):
    """Runs CMake's configure step, which compiles nothing of fourfold; returns its exit code and what it said.

    What it said comes on one line: CMake breaks its messages wherever they reach the margin. Without CUDA unless a test
    asks for it, which saves seconds.
    """
    surroundings = {name: value for name, value in os.environ.items() if name not in CHOICES}

    def run(*options, source=ROOT, python=sys.executable, **environment):
        command = [
            *(tool("cmake", "cmake"), "-S", source, "-B", tmp_path / "build", "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'ninja')}",
            f"-DPython_EXECUTABLE={python}",
            "-DFOURFOLD_CUDA=OFF",
            *options,
        ]
        done = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=surroundings | environment,
        )
        return done.returncode, " ".join(done.stdout.split())

    return run


def test_configure_ends_in_a_table(configure):
    code, said = configure("-DFOURFOLD_CUDA=AUTO", "-DFOURFOLD_METAL=OFF")
    assert code == 0, said
    table = said[said.index("-- fourfold ") :]
    version = torch.__version__.split("+")[0]
    assert f"torch {version} (" in table
    assert "stable ABI of 2.10" in table
    assert "compiler " in table
    assert "CPU on " in table
    assert ": default" in table
    assert "METAL off switched off by FOURFOLD_METAL=OFF" in table
    for backend in ("cuda", "hip"):
        assert f"{backend.upper()} o" in table
    assert "kineto" not in said
    assert "Warning" not in said


@pytest.mark.parametrize("backend", [b for b in ("cuda", "hip", "metal") if not (ROOT / b).exists()])
def test_a_backend_that_is_required_is_not_left_out(configure, backend):
    code, said = configure(f"-DFOURFOLD_{backend.upper()}=ON")
    assert code == 1
    assert (
        f"FOURFOLD_{backend.upper()}=ON asks for the {backend} backend, but there is no such backend in this source "
        f"tree. Set FOURFOLD_{backend.upper()} to AUTO or OFF." in said
    )


def test_both_kinds_of_gpu_kernels_in_one_library_are_refused(configure):
    code, said = configure("-DFOURFOLD_CUDA=ON", "-DFOURFOLD_HIP=ON")
    assert code == 1
    assert (
        "FOURFOLD_CUDA=ON and FOURFOLD_HIP=ON cannot go into one library, because both register their kernels under "
        "torch's dispatch key CUDA. Set one of them to OFF." in said
    )


NO_CUDA = "-DCUDAToolkit_ROOT=/nonexistent"
NO_HIP = "-DCMAKE_HIP_COMPILER=/nonexistent/clang++"


@pytest.mark.parametrize(
    ("backend", "elsewhere", "reason"),
    [
        ("cuda", NO_CUDA, "CUDAToolkit_ROOT points to an nvcc that is not there"),
        ("hip", NO_HIP, "CMAKE_HIP_COMPILER points to a compiler that is not there"),
    ],
)
def test_a_backend_that_is_required_needs_its_compiler(configure, backend, elsewhere, reason):
    code, said = configure(f"-DFOURFOLD_{backend.upper()}=ON", elsewhere)
    assert code == 1
    assert (
        f"FOURFOLD_{backend.upper()}=ON asks for the {backend} backend, but {reason}. Or set "
        f"FOURFOLD_{backend.upper()} to AUTO or OFF." in said
    )


def test_a_machine_without_compilers_for_gpus_builds_for_the_cpu(configure):
    code, said = configure("-DFOURFOLD_CUDA=AUTO", NO_CUDA, NO_HIP)
    assert code == 0, said
    assert "CUDA off CUDAToolkit_ROOT points to an nvcc that is not there" in said
    assert "HIP off torch is not a ROCm build" in said or torch.version.hip


def test_off_does_not_search(configure):
    code, said = configure("-DFOURFOLD_CUDA=OFF", "-DFOURFOLD_HIP=OFF", CUDACXX=os.environ.get("CUDACXX", "nvcc"))
    assert code == 0, said
    assert "CUDA off switched off by FOURFOLD_CUDA=OFF" in said
    assert "The CUDA compiler identification" not in said


@pytest.fixture
def nvcc(tmp_path):
    """Makes an nvcc that says it is of some version; it compiles nothing."""

    def make(version):
        script = tmp_path / "toolkit" / "bin" / "nvcc"
        script.parent.mkdir(parents=True)
        script.write_text(
            f"""#!/bin/sh
case "$*" in
  *--version*) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
  *--dryrun*) echo "#$ TOP={tmp_path}/toolkit/bin/.." >&2 ;;
  *) echo "error: -- unsupported GNU version!" >&2; exit 1 ;;
esac
"""
        )
        script.chmod(0o755)
        return script

    return make


def test_an_old_toolkit_is_named(configure, nvcc):
    code, said = configure("-DFOURFOLD_CUDA=ON", CUDACXX=str(nvcc("11.8")))
    assert code == 1
    assert "but CUDA 11.8 is older than 12.8: install a newer one, or set CUDACXX to its nvcc. Or set" in said


def test_a_toolkit_that_does_not_go_with_the_compiler_is_left_out(configure, nvcc, tmp_path):
    script = nvcc("13.0")
    code, said = configure("-DFOURFOLD_CUDA=AUTO", CUDACXX=str(script))
    assert code == 0, said
    assert "CUDA off CUDA 13.0 has no static runtime library" in said
    (tmp_path / "toolkit" / "lib64").mkdir()
    (tmp_path / "toolkit" / "lib64" / "libcudart_static.a").touch()
    code, said = configure("-DFOURFOLD_CUDA=AUTO", CUDACXX=str(script))
    assert code == 0, said
    assert "CUDA off its nvcc builds no kernel with " in said
    assert "unsupported GNU version!): set CUDAHOSTCXX to another C++ compiler, or CUDACXX to another nvcc" in said


@pytest.fixture
def toolkit():
    """The root of a real CUDA toolkit."""
    nvcc = os.environ.get("CUDACXX") or tool("nvcc", "CUDA toolkit")
    said = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True)
    return Path(re.search(r"#\$ TOP=(.*)", said.stderr).group(1)).resolve()


def test_a_wrapper_around_nvcc_is_seen_through(configure, toolkit, tmp_path):
    """CMake would look for the toolkit around the script."""
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    code, said = configure("-DFOURFOLD_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90", PATH=path)
    assert code == 0, said
    assert f"for 9.0+PTX -- {toolkit}/bin/nvcc" in said
    flags = (tmp_path / "build" / "build.ninja").read_text()
    assert "arch=compute_90,code=[compute_90,sm_90]" in flags


@pytest.mark.parametrize(
    ("asked", "shown", "told"),
    [
        ("8.0;9.0a;12.0+PTX", "8.0,9.0a,12.0+PTX", ["80-real", "90a-real", "120"]),
        ("8.0 9.0", "8.0,9.0", ["80-real", "90-real"]),
        ("Ampere Hopper+PTX", "8.0,8.6,9.0+PTX", ["80-real", "86-real", "90"]),
    ],
)
def test_architectures_are_named_as_torch_names_them(configure, toolkit, asked, shown, told, tmp_path):
    code, said = configure("-DFOURFOLD_CUDA=ON", f"-DCUDAToolkit_ROOT={toolkit}", TORCH_CUDA_ARCH_LIST=asked)
    assert code == 0, said
    assert f"for {shown} --" in said
    lines = (tmp_path / "build" / "build.ninja").read_text()
    for name in told:
        number = name.removesuffix("-real")
        code = f"[sm_{number}]" if name.endswith("-real") else f"[compute_{number},sm_{number}]"
        assert f"arch=compute_{number},code={code}" in lines


def test_the_usual_architectures_end_in_ptx(configure, toolkit, tmp_path):
    code, said = configure("-DFOURFOLD_CUDA=ON", f"-DCUDAToolkit_ROOT={toolkit}")
    assert code == 0, said
    assert re.search(r"CUDA on CUDA [\d.]+ for 7\.5,8\.0,8\.6,9\.0,10\.0,12\.0\+PTX ", said)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("sm_80", "TORCH_CUDA_ARCH_LIST names the architecture sm_80; write 8.0, 9.0a, 12.0+PTX or Hopper, "),
        ("3.5", "TORCH_CUDA_ARCH_LIST asks for the architecture 3.5, but CUDA "),
    ],
)
def test_an_architecture_that_is_none_is_refused(configure, toolkit, asked, sentence):
    code, said = configure("-DFOURFOLD_CUDA=ON", f"-DCUDAToolkit_ROOT={toolkit}", TORCH_CUDA_ARCH_LIST=asked)
    assert code == 1
    assert sentence in said


def test_an_option_that_is_none_of_the_three_is_refused(configure):
    code, said = configure("-DFOURFOLD_CUDA=maybe")
    assert code == 1
    assert "FOURFOLD_CUDA is maybe; set it to AUTO, ON or OFF." in said


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("address", "-fsanitize=address,undefined -fno-sanitize-recover=undefined"),
        ("thread", "-fsanitize=thread"),
    ],
)
def test_a_sanitizer_watches_kernels_and_links_its_runtime(configure, tmp_path, kind, flags):
    code, said = configure(f"-DFOURFOLD_SANITIZE={kind}", CXX=tool("g++", "g++"))
    assert code == 0, said
    rules = (tmp_path / "build" / "build.ninja").read_text()
    for start in ("build cpp/CMakeFiles/fourfold_cpu_default.dir/cpu/lstm.cpp.o", "build cpp/libfourfold.so"):
        assert flags in rules[rules.index(start) :].split("\n\n")[0]


def test_a_sanitizer_that_is_none_is_refused(configure):
    code, said = configure("-DFOURFOLD_SANITIZE=memory")
    assert code == 1
    assert "FOURFOLD_SANITIZE is memory; set it to OFF, address or thread." in said


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_make_runs_a_sanitizer(kind):
    make = (tool("make", "make"), "-C", ROOT)
    assert f"make sanitize-{kind} " in output_of(*make, "help")
    assert f"/python scripts/sanitize.py {kind}\n" in output_of(*make, "--dry-run", f"sanitize-{kind}")


def test_a_missing_torch_is_named(configure, tmp_path):
    venv.create(tmp_path / "empty", symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    code, said = configure(python=python)
    assert code == 1
    assert f"found none for Python {python}. Install torch 2.10 or newer there and build with " in said
    assert "`pip install --no-build-isolation .`" in said


def test_an_old_torch_is_named(configure, tmp_path):
    files = tmp_path / "old" / "share" / "cmake" / "Torch"
    files.mkdir(parents=True)
    (files / "TorchConfigVersion.cmake").write_text("set(PACKAGE_VERSION 2.9.1)\n")
    (files / "TorchConfig.cmake").write_text(f'set(TORCH_INSTALL_PREFIX "{tmp_path}/old")\nset(TORCH_FOUND TRUE)\n')
    code, said = configure(f"-DTorch_DIR={files}")
    assert code == 1
    assert "fourfold needs torch 2.10 or newer" in said
    assert f"but found 2.9.1 in {tmp_path}/old. Upgrade it: `pip install 'torch>=2.10'`." in said


def test_a_missing_compiler_is_named(configure):
    code, said = configure(CXX="/nonexistent/c++")
    assert code == 1
    assert "fourfold needs a C++20 compiler and found none (CXX is /nonexistent/c++). Install one " in said
    assert "or set the environment variable CXX to the compiler to use." in said


@pytest.mark.parametrize(
    ("file", "options", "named"),
    [
        ("cpp/ops/softshrink.cpp", [], "ops/softshrink.cpp"),
        ("cpp/cpu/softshrink.cpp", [], "cpu/softshrink.cpp"),
        ("cuda/softshrink.cu", ["-DFOURFOLD_CUDA=ON"], "softshrink.cu"),
        ("cuda/softshrink.cu", ["-DFOURFOLD_HIP=ON"], "cuda/softshrink.cu, which hip/ translates"),
    ],
)
def test_an_operator_without_its_file_is_named(configure, tmp_path, request, file, options, named):
    if "-DFOURFOLD_CUDA=ON" in options:
        options = [
            *options,
            f"-DCUDAToolkit_ROOT={request.getfixturevalue('toolkit')}",
            "-DCMAKE_CUDA_ARCHITECTURES=90",
        ]
    if "-DFOURFOLD_HIP=ON" in options:
        tool("clang-offload-bundler-19", "clang-tools-19, clang-19, rocm-device-libs and libamdhip64-dev")
    source = tmp_path / "source"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name)
        elif (ROOT / name).exists():
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source)
    (source / file).unlink()
    code, said = configure(*options, source=source)
    assert code == 1
    assert f"Cannot find source file: {named}" in said


def test_the_torch_follows_the_python(configure, tmp_path):
    """A build directory that is used again with another Python is not left with the first one's torch."""
    assert configure()[0] == 0
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    assert str(Path(torch.__file__).parent / "share" / "cmake" / "Torch") not in cache
