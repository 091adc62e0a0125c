"""README's first command, `pip install .`, where there are a Python, a C++ compiler, the oldest CMake and a package
index, and nothing else: no packages, no settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend_tools import OLDEST_CMAKE
from configuring import CHOICES, copy_of_the_sources, script
from machine import ROOT, output_of, tool
from test_oldest_cmake import oldest
from test_readme import EXAMPLES

pytestmark = pytest.mark.slow

OWN = ("LDFLAGS", "CMAKE_ARGS", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", *CHOICES)
# The only flag that stays. In continuous integration all builds have it, and share objects.
WARNINGS = "-Werror"
# The oldest CMake puts the standard's option elsewhere than newer ones, and ccache reads the options in their order.
LAUNCHER = """
case " $* " in
  *" -fPIC "*) for word; do
      shift
      case $word in -std=c++20) ;; -fPIC) set -- "$@" -std=c++20 -fPIC ;; *) set -- "$@" "$word" ;; esac
    done ;;
esac
exec ccache "$@"
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """The environment, with the tested versions as constraints: of the installed packages, and of those that pip
    builds with. Newer versions of pip read the second variable."""
    pins = shutil.copy(ROOT / "requirements-build.txt", tmp_path / "pins.txt")  # a path without spaces
    kept = {k: v for k, v in os.environ.items() if k not in OWN and not k.startswith("FOURFOLD_")}
    if kept.get("CXXFLAGS") != WARNINGS:
        kept.pop("CXXFLAGS", None)
    index = {"PIP_EXTRA_INDEX_URL": os.environ["TORCH_INDEX"]} if os.environ.get("TORCH_INDEX") else {}
    path = f"{oldest().parent}{os.pathsep}{Path(tool('c++', 'g++')).parent}{os.pathsep}/usr/bin:/bin"
    pinned = {"PIP_CONSTRAINT": str(pins), "PIP_BUILD_CONSTRAINT": str(pins)}
    return kept | index | pinned | {"PATH": path}


def test_the_first_command_installs_what_the_examples_need(tmp_path: Path, surroundings: dict[str, str]) -> None:
    assert re.search(r"^pip install \.(\s|$)", (ROOT / "README.md").read_text(), re.MULTILINE)
    source = copy_of_the_sources(tmp_path / "a clone")
    results = tmp_path / "ccache.log"
    if surroundings.get("CMAKE_CXX_COMPILER_LAUNCHER") == "ccache":
        launcher = script(tmp_path / "launcher", LAUNCHER)
        surroundings |= {"CMAKE_CXX_COMPILER_LAUNCHER": str(launcher), "CCACHE_BASEDIR": str(source)}
        surroundings["CCACHE_STATSLOG"] = str(results)
    shutil.copytree(ROOT / "python", source / "python", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    output_of(sys.executable, "-m", "venv", tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    said = output_of(python, "-m", "pip", "install", "-v", ".", cwd=source, env=surroundings)
    assert f"using CMake {OLDEST_CMAKE[0].partition('==')[2].removesuffix('*')}" in said, said
    if results.exists() and os.environ.get("CCACHE_DIR") == str(ROOT / "build" / "ccache"):  # of .ci/run
        found = results.read_text().splitlines()
        assert sum("cache_hit" in line for line in found) > 2 * found.count("cache_miss") > 0
    info = output_of(python, "-m", "fourfold", "info", cwd=tmp_path, env=surroundings)
    assert "C++, compiled for torch" in info and "deprecated" not in said
    # Without NumPy, torch may say so when it is imported; fourfold says nothing.
    bare = "import importlib.util, torch\nassert not importlib.util.find_spec('numpy')"
    torchs, ours = (
        subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=surroundings)
        for code in (bare, "\n".join([bare, *EXAMPLES]))
    )
    assert (torchs.returncode, ours.returncode) == (0, 0), ours.stderr
    assert ours.stdout and ours.stderr == torchs.stderr
