"""Configuring the build: the table that it ends in, and a sentence for each thing that can be missing."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from machine import ROOT, tool

SOURCES = ("CMakeLists.txt", "pyproject.toml", "cmake", "cpp", "cuda", "hip", "metal")


@pytest.fixture
def configure(tmp_path):
    """Runs CMake's configure step, which compiles nothing of fourfold; returns its exit code and what it said.

    What it said comes on one line: CMake breaks its messages wherever they reach the margin.
    """

    def run(*options, source=ROOT, python=sys.executable, **environment):
        command = [
            *(tool("cmake", "cmake"), "-S", source, "-B", tmp_path / "build", "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'ninja')}",
            f"-DPython_EXECUTABLE={python}",
            *options,
        ]
        done = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        return done.returncode, " ".join(done.stdout.split())

    return run


def test_configure_ends_in_a_table(configure):
    code, said = configure("-DFOURFOLD_METAL=OFF")
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
        if not (ROOT / backend).exists():
            assert f"{backend.upper()} off no such backend in this source tree" in table
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


def test_an_option_that_is_none_of_the_three_is_refused(configure):
    code, said = configure("-DFOURFOLD_CUDA=maybe")
    assert code == 1
    assert "FOURFOLD_CUDA is maybe; set it to AUTO, ON or OFF." in said


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


@pytest.mark.parametrize("folder", ["ops", "cpu"])
def test_an_operator_without_its_file_is_named(configure, tmp_path, folder):
    source = tmp_path / "source"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name)
        elif (ROOT / name).exists():
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source)
    (source / "cpp" / folder / "softshrink.cpp").unlink()
    code, said = configure(source=source)
    assert code == 1
    assert f"Cannot find source file: {folder}/softshrink.cpp" in said


def test_the_torch_follows_the_python(configure, tmp_path):
    """A build directory that is used again with another Python is not left with the first one's torch."""
    assert configure()[0] == 0
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    assert str(Path(torch.__file__).parent / "share" / "cmake" / "Torch") not in cache
