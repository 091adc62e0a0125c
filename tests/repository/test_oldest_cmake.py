"""The oldest CMake that the project supports, and the system's, configure it and run its scripts. The environment's is
newer: only it runs elsewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import backend_tools
from configuring import configuring
from machine import ROOT, missing, output_of, tool

FOLDERS = ("cmake", "cpp", "cuda", "hip", "metal")
BUILD_FILES = [
    path for name in FOLDERS for path in (ROOT / name).rglob("*") if re.search(r"CMakeLists|cmake$", path.name)
]
CALL = re.compile(r'-P\s+"\$\{PROJECT_SOURCE_DIR\}/(.+?)"')
SCRIPTS = sorted({name for file in BUILD_FILES for name in CALL.findall(file.read_text())})
REQUIRED = re.compile(r"^cmake_minimum_required\(VERSION (\S+)\)", re.MULTILINE)


def of_the_system() -> Path:
    """Debian's and Ubuntu's, where pip installs none if it is new enough."""
    found = shutil.which("cmake", path="/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if found is None:
        missing("this test needs the system's cmake; install the package cmake")
    return Path(found)


def oldest() -> Path:
    try:
        return backend_tools.oldest_cmake(fetch=False)
    except backend_tools.Refused as why:
        missing(str(why))


CMAKES = {"oldest": oldest, "system": of_the_system}


@pytest.fixture(params=CMAKES)
def cmake(request: pytest.FixtureRequest) -> Path:
    return CMAKES[request.param]()


def test_the_oldest_is_the_one_that_is_required(tmp_path: Path) -> None:
    (required,) = REQUIRED.findall((ROOT / "CMakeLists.txt").read_text())
    assert (f"cmake=={required}.*",) == backend_tools.OLDEST_CMAKE
    assert output_of(oldest(), "--version").startswith(f"cmake version {required}.")


def test_each_script_sets_the_policies_of_the_project() -> None:
    assert SCRIPTS == ["cmake/embed.cmake", "cmake/source_digest.cmake"]
    for name in SCRIPTS:
        text = (ROOT / name).read_text()
        assert REQUIRED.findall(text) == REQUIRED.findall((ROOT / "CMakeLists.txt").read_text()), name
        commands = re.findall(r"^\w+(?=\()", text, re.MULTILINE)
        assert commands[0] == "cmake_minimum_required", name


def scripts_output(cmake: Path, folder: Path) -> dict[str, str]:
    """What each script writes, as the build calls it."""
    includes = f"-DINCLUDES={ROOT}/metal:{ROOT}/cpp"
    (folder / "facts").write_text("set(FACT 1)\n")
    calls = {
        "text": ("embed", "-DINPUT=nest.h", includes),
        "source": ("embed", "-DINPUT=elementwise.metal", "-DNAME=x", f"-DFORMULA={FORMULA}", includes),
        "digest": ("source_digest", f"-DROOT={ROOT}", f"-DFACTS={folder / 'facts'}"),
    }
    written = {}
    for name, (script, *options) in calls.items():
        output = folder / name
        said = output_of(cmake, *options, f"-DOUTPUT={output}", "-P", ROOT / "cmake" / f"{script}.cmake")
        assert said == ""
        written[name] = output.read_text()
    return written


FORMULA = "formulas/softshrink.h"


def test_the_scripts_write_the_same(cmake: Path, tmp_path: Path) -> None:
    for name in ("these", "those"):
        (tmp_path / name).mkdir()
    expected = scripts_output(Path(tool("cmake", "cmake")), tmp_path / "these")
    assert "#line 1" in expected["text"] and f"{FORMULA}" in expected["source"] and "FACT 1" in expected["digest"]
    assert scripts_output(cmake, tmp_path / "those") == expected


def test_the_build_is_configured_without_cuda(cmake: Path, tmp_path: Path) -> None:
    """And the steps run that scripts do, of which the first stopped Debian's CMake 3.25."""
    build = tmp_path / "build"
    code, said = configuring(build)("-DFOURFOLD_CUDA=OFF", cmake=cmake)
    assert code == 0, said
    assert "CUDA off switched off" in said and "Warning" not in said
    output_of(cmake, "--build", build, "--target", "fourfold_kernel_texts", "fourfold_facts")
    assert "namespace" in (build / "kernels" / "cuda.cuh").read_text()
    assert "FOURFOLD_BUILT_SOURCES" in (build / "package" / "build.cmake").read_text()


def test_cuda_names_the_version_that_it_needs(cmake: Path, tmp_path: Path) -> None:
    """CMake's C++20 for nvcc came later than C++20 for the others."""
    version = re.search(r"version ([\d.]+)", output_of(cmake, "--version"))[1]
    if tuple(map(int, version.split("."))) >= (3, 25, 2):
        pytest.skip(f"CMake {version} supports nvcc's C++20")
    why = f"CMake {version} does not support nvcc's C++20: install 3.25.2 or newer, as `pip install cmake` does"
    code, said = configuring(tmp_path / "build")("-DFOURFOLD_CUDA=ON", cmake=cmake)
    assert code == 1
    assert f"FOURFOLD_CUDA=ON asks for the cuda backend, but {why}. Or set FOURFOLD_CUDA to AUTO or OFF." in said


@pytest.mark.parametrize(
    ("cuda", "version"), [("ON", ">=3.25.2"), ("AUTO", ">=3.24"), ("OFF", ">=3.24"), ("", ">=3.24")]
)
def test_pip_takes_a_cmake_that_supports_what_is_asked_for(cuda: str, version: str) -> None:
    """The system's, or one from the package index if that is older."""
    reader = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings")
    read = reader.SettingsReader.from_file(ROOT / "pyproject.toml", {}, state="wheel", env={"FOURFOLD_CUDA": cuda})
    assert str(read.settings.cmake.version) == version
