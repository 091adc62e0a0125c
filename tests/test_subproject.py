"""A C++ project that includes fourfold's sources with add_subdirectory or FetchContent."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from configuring import CHOICES
from machine import ROOT, linux_only, output_of, tool

pytestmark = [linux_only, pytest.mark.slow]

SOURCES = ROOT / "tests" / "subproject"
SURROUNDINGS = {
    name: value
    for name, value in os.environ.items()
    if name not in (*CHOICES, "Torch_ROOT", "Torch_DIR", "CMAKE_PREFIX_PATH")
}


def run(*command: object, **keywords: Any) -> str:
    return output_of(*command, env=SURROUNDINGS, **keywords)


def configure(build: Path, *options: object) -> str:
    command = [tool("cmake", "cmake"), "-S", SOURCES, "-B", build, "-G", "Ninja", "-DFOURFOLD_CUDA=OFF", *options]
    command += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'ninja')}", f"-DFOURFOLD={ROOT}"]
    return run(*command)


def test_both_ways_build_the_same(tmp_path: Path) -> None:
    cmake, build = tool("cmake", "cmake"), ROOT / "build" / "subproject"  # as deep as the library's, for ccache
    shutil.rmtree(build, ignore_errors=True)
    launcher = shutil.which("ccache") or ""
    said = configure(
        build, f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    )
    assert "-- fourfold " not in said  # the summary
    run(cmake, "--build", build, "--parallel", "2")
    lines = run(build / "app").splitlines()
    assert lines[0] == "12 0"
    assert any(line.startswith("cpu_levels=default") for line in lines)

    configure(build, "-DFETCH=ON")
    assert "no work to do" in run(cmake, "--build", build)

    assert installed(build, tmp_path / "own") == ["bin/app"]
    configure(build, "-DFOURFOLD_INSTALL=ON", "-DCMAKE_INSTALL_LIBDIR=lib")
    prefix = tmp_path / "prefix"
    assert [name for name in installed(build, prefix) if not name.startswith("include/fourfold/")] == [
        "bin/app",
        "lib/cmake/fourfold/fourfoldConfig.cmake",
        "lib/cmake/fourfold/fourfoldConfigVersion.cmake",
        "lib/cmake/fourfold/fourfoldTorch.cmake",
        "lib/libfourfold.so",
    ]
    assert (prefix / "include" / "fourfold" / "nn.h").exists()
    links_what_is_installed(prefix, tmp_path / "user")


def test_the_projects_choice_of_levels_is_fourfolds(tmp_path: Path) -> None:
    """The project's ordinary variable, not a cache entry."""
    for levels, bits in (("OFF", 1), ("ON", 31 if platform.machine() == "x86_64" else 1)):
        configure(tmp_path, f"-DLEVELS={levels}", f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
        written = tmp_path / "fourfold" / "cpp" / "levels" / "built_levels.h"
        assert written.read_text() == f"#define FOURFOLD_BUILT_LEVELS {bits}\n"


def installed(build: Path, prefix: Path) -> list[str]:
    run(tool("cmake", "cmake"), "--install", build, "--prefix", prefix)
    return sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())


USER = """
cmake_minimum_required(VERSION 3.24)
project(user LANGUAGES CXX)
find_package(fourfold 0.1 REQUIRED)
add_executable(user user.cpp)
target_link_libraries(user PRIVATE fourfold::fourfold)
"""


def links_what_is_installed(prefix: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(USER)
    (folder / "user.cpp").write_text("#include <fourfold/library.h>\nint main() { return !fourfold_abi_version(); }\n")
    where = f"-DCMAKE_PREFIX_PATH={prefix};{torch.utils.cmake_prefix_path}"
    run(tool("cmake", "cmake"), "-S", folder, "-B", folder / "build", where)
    run(tool("cmake", "cmake"), "--build", folder / "build")
    run(folder / "build" / "user")
    assert f"=> {prefix}/lib/libfourfold.so" in run("ldd", folder / "build" / "user")


def test_a_missing_torch_names_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failed:
        configure(tmp_path / "build")
    said = " ".join(str(failed.value).split())
    assert "fourfold needs torch, but CMake found none. Set Torch_ROOT to a libtorch, or add what" in said
