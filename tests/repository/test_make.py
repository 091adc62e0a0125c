"""The inputs of make and pip: the environment, and make's command line."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from configuring import script
from machine import ROOT, missing, output_of, tool

pytestmark = pytest.mark.slow


OPTIONS = tuple(f"FOURFOLD_{name}" for name in ("CUDA", "HIP", "METAL", "CPU_LEVELS", "BITCODE", "SANITIZE"))


@pytest.fixture
def refusal(tmp_path):
    """Runs pip, always in the same build folder, until the configure step rejects something; returns the output."""
    for module, package in (("scikit_build_core", "scikit-build-core"), ("pybind11", "pybind11")):
        if importlib.util.find_spec(module) is None:
            missing(f"this test needs {package}: pip install -r requirements-build.txt")
    command = (sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "--no-index")
    surroundings = {name: value for name, value in os.environ.items() if name not in (*OPTIONS, "CXX")}
    surroundings |= {"SKBUILD_BUILD_DIR": str(tmp_path / "build"), "FOURFOLD_CUDA": "OFF"}

    def run(**environment):
        done = subprocess.run(
            [*command, "--wheel-dir", str(tmp_path), str(ROOT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=surroundings | environment,
        )
        assert done.returncode == 1
        return " ".join(done.stdout.split())

    return run


@pytest.mark.parametrize("option", OPTIONS)
def test_pip_hears_the_environment(refusal, option):
    """Only the configure step starts, and it rejects an invalid option."""
    assert f"{option} is maybe; set it to " in refusal(**{option: "maybe"})


def test_pip_finds_the_compiler_that_was_installed_since(refusal, tmp_path):
    """Each step rejects something after the compiler check, if it finds a suitable compiler."""
    no_compiler = {"PATH": str(Path(sys.executable).parent)}  # cmake and ninja are beside Python
    assert "fourfold needs a C++20 compiler and found none" in refusal(**no_compiler)
    later = {"FOURFOLD_SANITIZE": "maybe"}
    assert "FOURFOLD_SANITIZE is maybe" in refusal(**later)
    # Another compiler than last time.
    old = script(tmp_path / "old-c++", f'exec {tool("g++", "g++")} -U__GNUC__ -D__GNUC__=9 "$@"')
    assert "needs a C++20 compiler, but GNU 9." in refusal(CXX=str(old), **later)
    assert "FOURFOLD_SANITIZE is maybe" in refusal(**later)


@pytest.fixture
def make(tmp_path):
    """Runs make in a folder of its own, where Python only records its arguments; returns them."""
    for file in (
        *(ROOT / name for name in ("Makefile", "pyproject.toml", "CMakeLists.txt")),
        *ROOT.glob("requirements-*.txt"),
    ):
        shutil.copy(file, tmp_path)
    for name in ("cmake", "cpp", "cuda", "hip"):
        (tmp_path / name).mkdir()
    log = tmp_path / "asked.txt"
    python = script(
        tmp_path / "python",
        f"""
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *) echo "$FOURFOLD_CPU_LEVELS levels, CUDA=$FOURFOLD_CUDA for $TORCH_CUDA_ARCH_LIST, $CMAKE_ARGS: $*" >> {log} ;;
esac
""",
    )
    # The environment may have any of make's variables, from a make that runs these tests.
    surroundings = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}

    def run(*words, **environment):
        log.write_text("")
        command = (tool("make", "make"), "-C", tmp_path, f"PYTHON={python}", *words)
        output_of(*command, env=surroundings | environment)
        return [line for line in log.read_text().splitlines() if "sys.version_info" not in line]

    return run


def test_make_builds_again_with_other_settings(make):
    def builds(*words, **environment):
        return [line.split(": ")[0] for line in make("build", *words, **environment) if "--editable ." in line]

    assert builds() == [" levels, CUDA= for , "]
    assert builds() == []
    assert builds(FOURFOLD_CUDA="OFF") == [" levels, CUDA=OFF for , "]
    assert builds("FOURFOLD_CUDA=OFF") == []
    assert builds("TORCH_CUDA_ARCH_LIST=8.0 9.0") == [" levels, CUDA= for 8.0 9.0, "]
    assert builds(FOURFOLD_CPU_LEVELS="ON") == ["ON levels, CUDA= for , "]
    assert builds(CMAKE_ARGS="-DX=1") == [" levels, CUDA= for , -DX=1"]
    assert builds(CXX="it's clang++") == [" levels, CUDA= for , "]
    assert builds(CXX="it's clang++") == []
    assert builds() == [" levels, CUDA= for , "]


def test_make_installs_what_it_is_asked_to_run(make, tmp_path):
    asked = "\n".join(make("demo"))
    assert "-r requirements-build.txt" in asked
    assert "-m fourfold demo" in asked
    assert "-r requirements-dev.txt" not in asked
    asked = "\n".join(make("test"))
    assert "-r requirements-dev.txt" in asked and "-m pytest -n auto" in asked
    assert [line.split(": ")[1] for line in make("test", "TESTS=-k softshrink")] == ["-m pytest -k softshrink"]
    wheel = tmp_path / "fourfold-1.whl"
    wheel.touch()
    assert f"--force-reinstall {wheel}" in make("build", f"FOURFOLD_WHEEL={wheel}")[-1]
    assert [line.split(": ")[1] for line in make("docs", f"FOURFOLD_WHEEL={wheel}")] == [
        "-m pip install -r requirements-docs.txt",
        "-m sphinx -W --keep-going -q -E -d build/doctrees docs build/docs",
    ]


def test_make_tests_a_wheel_that_is_there(make, tmp_path):
    (tmp_path / "fourfold.whl").touch()
    asked = "\n".join(make("test", FOURFOLD_WHEEL="fourfold.whl"))
    assert "pip install --no-deps --force-reinstall fourfold.whl" in asked and "-m pytest" in asked
    assert "--editable ." not in asked
    assert "--editable ." in "\n".join(make("build"))
