"""How the tests of the build run CMake."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from machine import ROOT, missing, tool

# Variables of the environment that may influence the build.
CHOICES = (
    "CUDACXX",
    "CUDAHOSTCXX",
    "CUDAARCHS",
    "CUDAToolkit_ROOT",
    "TORCH_CUDA_ARCH_LIST",
    "HIPCXX",
    "PYTORCH_ROCM_ARCH",
)
SOURCES = ("CMakeLists.txt", "pyproject.toml", "cmake", "cpp", "cuda", "hip", "metal", "scripts")


def configuring(folder):
    """Runs CMake's configure step, which compiles nothing of fourfold; returns its exit code and its output.

    The output is joined into one line, because CMake breaks its messages at the margin. CUDA is off unless a test
    enables it, which saves seconds.
    """
    if importlib.util.find_spec("pybind11") is None:
        missing("this test needs pybind11: pip install -r requirements-build.txt")
    surroundings = {name: value for name, value in os.environ.items() if name not in CHOICES}

    def run(*options, source=ROOT, python=sys.executable, cmake=None, **environment):
        command = [
            *(cmake or tool("cmake", "cmake"), "-S", source, "-B", folder, "-G", "Ninja"),
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


def copy_of_the_sources(folder):
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        elif (ROOT / name).exists():
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder)
    return folder


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit_root() -> Path:
    """The root of a real CUDA toolkit."""
    nvcc = os.environ.get("CUDACXX") or tool("nvcc", "CUDA toolkit")
    said = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True)
    return Path(re.search(r"#\$ TOP=(.*)", said.stderr).group(1)).resolve()
