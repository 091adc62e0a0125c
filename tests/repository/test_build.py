"""Configuring the build: the summary table, and an error for each thing that can be missing."""

import os
import platform
import re
import shlex
import sys
import venv
from pathlib import Path

import pytest
import torch

from configuring import configuring, copy_of_the_sources, script, toolkit_root
from machine import linux_only, output_of, tool

pytestmark = pytest.mark.slow


@pytest.fixture
def configure(tmp_path):
    return configuring(tmp_path / "build")


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


NO_LEVEL_ASKED = {name: value for name, value in os.environ.items() if name != "FOURFOLD_CPU_CAPABILITY"}
NO_CUDA = "-DCUDAToolkit_ROOT=/nonexistent"
NO_HIP = "-DCMAKE_HIP_COMPILER=/nonexistent/clang++"


def asked_for(backend, reason):
    option = f"FOURFOLD_{backend.upper()}"
    return f"{option}=ON asks for the {backend} backend, but {reason}. Or set {option} to AUTO or OFF."


# What is asked for, options and environment, and what the refusal says; .* stands for more.
REFUSED = [
    (
        "-DFOURFOLD_METAL=ON",
        asked_for("metal", "Apple's GPUs are programmed on macOS, and this build is for Linux"),
    ),
    (
        "-DFOURFOLD_CUDA=ON -DFOURFOLD_HIP=ON",
        "FOURFOLD_CUDA=ON and FOURFOLD_HIP=ON cannot go into one library, because both register their kernels under "
        "torch's dispatch key CUDA. Set one of them to OFF.",
    ),
    (f"-DFOURFOLD_CUDA=ON {NO_CUDA}", asked_for("cuda", "CUDAToolkit_ROOT points to an nvcc that is not there")),
    (f"-DFOURFOLD_HIP=ON {NO_HIP}", asked_for("hip", "CMAKE_HIP_COMPILER points to a compiler that is not there")),
    ("-DFOURFOLD_CUDA=maybe", "FOURFOLD_CUDA is maybe; set it to AUTO, ON or OFF."),
    ("-DFOURFOLD_CPU_LEVELS=maybe", "FOURFOLD_CPU_LEVELS is maybe; set it to AUTO, ON or OFF."),
    ("-DFOURFOLD_SANITIZE=memory", "FOURFOLD_SANITIZE is memory; set it to OFF, address or thread."),
    (
        "-DFOURFOLD_BITCODE=ON -DFOURFOLD_CPU_LEVELS=OFF",
        "FOURFOLD_BITCODE=ON asks for LLVM bitcode, but the plain kernels, which are the only ones built, have no "
        "vectors. Or set FOURFOLD_BITCODE to AUTO or OFF.",
    ),
    (
        "CXX=/nonexistent/c++",
        "fourfold needs a C++20 compiler and found none (CXX is /nonexistent/c++). Install one .*or set the "
        "environment variable CXX to the compiler to use. `FOURFOLD_NO_EXTENSION=1 pip install .` ",
    ),
    (
        "CXX=g++ CXXFLAGS=-m32 LDFLAGS='-m32 -nostdlib'",  # no 32-bit libraries have to be installed
        "fourfold needs a 64-bit system, as torch does, but .*compiles for 32 bits. Remove -m32 from CXXFLAGS, or set "
        "CXX to a compiler for 64 bits.",
    ),
    (
        "'-DCMAKE_OSX_ARCHITECTURES=arm64;x86_64'",
        "fourfold builds for one architecture at a time, because its kernels use vector instructions, but "
        "CMAKE_OSX_ARCHITECTURES is arm64 and x86_64. Set it, or ARCHFLAGS, to one of them, and build once for each.",
    ),
    (
        "-DPython_INCLUDE_DIR=/nonexistent",
        f"The Python module needs the headers of Python {platform.python_version()}, and {sys.executable} has .*or "
        "set FOURFOLD_PYTHON to OFF for the C++ library alone.",
    ),
]


@pytest.mark.parametrize(("asked", "sentence"), REFUSED, ids=[asked for asked, _ in REFUSED])
def test_what_cannot_be_built_is_refused(configure, asked, sentence):
    if sys.platform == "darwin" and "METAL" in asked:
        pytest.skip("a Mac can build Metal")
    if platform.machine() != "x86_64" and ("-m32" in asked or "BITCODE" in asked):
        pytest.skip("only on x86-64 are there -m32 and levels without vectors to refuse")
    if "g++" in asked:
        tool("g++", "g++")
    words = shlex.split(asked)
    options = [word for word in words if word.startswith("-D")]
    code, said = configure(*options, **dict(word.split("=", 1) for word in words if word not in options))
    assert code == 1
    assert re.search(".*".join(map(re.escape, sentence.split(".*"))), said), said


def test_a_machine_without_compilers_for_gpus_builds_for_the_cpu(configure):
    code, said = configure("-DFOURFOLD_CUDA=AUTO", NO_CUDA, NO_HIP, TORCH_CUDA_ARCH_LIST="9.0")
    assert code == 0, said
    assert "CUDA off CUDAToolkit_ROOT points to an nvcc that is not there" in said
    assert "HIP off torch is not a ROCm build" in said or torch.version.hip


def test_off_does_not_search(configure):
    code, said = configure("-DFOURFOLD_CUDA=OFF", "-DFOURFOLD_HIP=OFF", CUDACXX=os.environ.get("CUDACXX", "nvcc"))
    assert code == 0, said
    assert "CUDA off switched off by FOURFOLD_CUDA=OFF" in said
    assert "The CUDA compiler identification" not in said


def test_an_option_that_is_empty_asks_for_nothing(configure):
    code, said = configure("-DFOURFOLD_METAL=", "-DFOURFOLD_CPU_LEVELS=")
    assert code == 0, said
    assert (
        "METAL off Apple's GPUs are programmed on macOS, and this build is for Linux" in said
        or platform.system() != "Linux"
    )
    assert "CPU on x86_64: default avx2 avx512 " in said or platform.machine() != "x86_64"


@linux_only
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
    kernel = "cpp/CMakeFiles/fourfold_cpu_default_lstm.dir/cpu/kernels/cell.cpp.o"
    for start in (f"build {kernel}", "build cpp/libfourfold.so"):
        assert flags in rules[rules.index(start) :].split("\n\n")[0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has levels")
def test_levels_can_be_those_of_this_machine(configure):
    """The best level of this machine, even if a variable selects another one for runs, and what that adds to."""
    best = output_of(sys.executable, "-c", "import fourfold; print(fourfold.cpu_capability())", env=NO_LEVEL_ASKED)
    here = {"avx512_bf16": "avx512 avx512_bf16", "amx": "avx512 avx512_bf16 amx"}.get(best.strip(), best.strip())
    code, said = configure("-DFOURFOLD_CPU_LEVELS=AUTO", FOURFOLD_CPU_CAPABILITY="default")
    assert code == 0, said
    assert f"CPU on x86_64: {here} -- CUDA" in said


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has levels without vectors")
def test_bitcode_needs_a_compiler(configure, tmp_path):
    levels = "-DFOURFOLD_CPU_LEVELS=ON"
    code, said = configure("-DFOURFOLD_BITCODE=OFF", levels)
    assert code == 0, said
    assert "bitcode off switched off by FOURFOLD_BITCODE=OFF" in said
    clang = script(tmp_path / "clang++", "echo Debian clang version 14.0.6")
    code, said = configure("-DFOURFOLD_BITCODE=ON", levels, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert code == 0, said
    assert f"bitcode on LLVM 14.0.6 for avx2 and avx512 -- {clang} " in said
    script(clang, "echo clang version 99.0.0")
    code, said = configure("-DFOURFOLD_BITCODE=AUTO", levels, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert code == 0, said
    newer = "Clang 99 is newer than LLVM 22, which has to read it, and no Python package ziglang, which has one"
    assert f"bitcode off {newer} (`pip install ziglang`)" in said or " -m ziglang c++ " in said


def test_a_missing_torch_is_named(configure, tmp_path):
    venv.create(tmp_path / "empty", symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    code, said = configure(python=python)
    assert code == 1
    assert f"fourfold needs torch, but {python} has none. Install torch 2.10 or newer there, " in said
    assert "or point Torch_ROOT at a libtorch." in said


def test_an_old_torch_is_named(configure, tmp_path):
    files = tmp_path / "old" / "share" / "cmake" / "Torch"
    files.mkdir(parents=True)
    (files / "TorchConfigVersion.cmake").write_text("set(PACKAGE_VERSION 2.9.1)\n")
    (files / "TorchConfig.cmake").write_text(f'set(TORCH_INSTALL_PREFIX "{tmp_path}/old")\nset(TORCH_FOUND TRUE)\n')
    code, said = configure(f"-DTorch_DIR={files}")
    assert code == 1
    assert "fourfold needs torch 2.10 or newer" in said
    assert f"but found 2.9.1 in {tmp_path}/old. Upgrade it: `pip install 'torch>=2.10'`." in said


def test_a_compiler_that_was_installed_since_is_found(configure):
    """In the same build directory, whose cache has no compiler."""
    code, said = configure(CXX="/nonexistent/c++")
    assert code == 1 and "needs a C++20 compiler and found none" in said
    code, said = configure()
    assert code == 0, said


@linux_only
def test_msvc_is_refused(configure, tmp_path):
    """GCC, with the macros by which CMake identifies MSVC."""
    cl = script(
        tmp_path / "cl",
        f'exec {tool("g++", "g++")} -U__GNUC__ -U__GNUG__ -D_MSC_VER=1944 -D_MSC_FULL_VER=194435207 "$@"',
    )
    code, said = configure(CXX=str(cl))
    assert code == 1
    assert f"fourfold needs GCC or Clang, because its kernels use their C++ extensions, but {cl} is MSVC 19.44." in said
    assert (
        "Build it with GCC or Clang on Linux or macOS; on Windows, in WSL, or with clang-cl, which is unproved." in said
    )


def test_an_old_python_is_named(configure, tmp_path):
    """This Python, which claims to be 3.9."""
    old = "import sys; sys.version_info = (3, 9, 18, 'final', 0); exec(sys.argv.pop(1))"
    python = script(tmp_path / "python3.9", f'shift; code=$1; shift\nexec {sys.executable} -c "{old}" "$code" "$@"')
    code, said = configure(python=python)
    assert code == 1
    assert (
        f"fourfold needs Python 3.10 or newer, but {python} is Python 3.9.18. Set Python_EXECUTABLE to a newer one, or "
        "run pip with it." in said
    )


CPU_FILES = {name: f"cpp/{name}" for name in ("ops/softshrink.cpp", "cpu/mlp.cpp", "cpu/kernels/mlp.cpp")}


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("-DFOURFOLD_CUDA=ON", CPU_FILES | {"mlp.cu": "cuda/mlp.cu"}),
        ("-DFOURFOLD_HIP=ON", {"cuda/mlp.cu, which hip/ translates": "cuda/mlp.cu"}),
        # The sources of elementwise operators are generated from it, before any other file is looked for.
        ("-DFOURFOLD_CUDA=OFF", {"cpp/formulas/softshrink.h, the formula of softshrink": "cpp/formulas/softshrink.h"}),
    ],
)
def test_an_operator_without_its_files_is_named(configure, tmp_path, option, files):
    """One configure step names each missing file."""
    options = [option]
    if option == "-DFOURFOLD_CUDA=ON":
        options += [f"-DCUDAToolkit_ROOT={toolkit_root()}", "-DCMAKE_CUDA_ARCHITECTURES=90"]
    elif option == "-DFOURFOLD_HIP=ON":
        tool("clang-offload-bundler-19", "clang-tools-19, clang-19, rocm-device-libs and libamdhip64-dev")
    source = copy_of_the_sources(tmp_path / "source")
    for file in files.values():
        (source / file).unlink()
    code, said = configure(*options, source=source, PYTORCH_ROCM_ARCH="gfx1030")  # each takes a compilation
    assert code == 1
    for named in files:
        assert f"Cannot find source file: {named}" in said


def test_the_torch_follows_the_python(configure, tmp_path):
    """A build directory that is reused with another Python doesn't keep the first one's torch. And sources are compiled
    by commands that name no torch, so that ccache shares their objects: it compares the commands."""
    build, where = tmp_path / "build", Path(torch.__file__).parent
    assert configure()[0] == 0
    assert str(where / "share" / "cmake" / "Torch") not in (build / "CMakeCache.txt").read_text()
    commands = (build / "compile_commands.json").read_text()
    assert f"{build}/torch/include" in commands and str(where) not in commands
    assert (build / "torch").samefile(where)
    assert "BUILT_LEVELS" not in commands  # which differ between builds whose other objects are equal
