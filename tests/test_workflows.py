"""The workflow of the wheels runs when a file of the packaging changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from machine import ROOT
from test_metadata import PROJECT

WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"
SCRIPTS = ROOT / "scripts"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def cmake_files() -> Iterator[Path]:
    """Those of fourfold's build, and the files beside the sources that they include or run."""
    folders = ("cmake", "cpp", "cuda", "hip", "metal")
    build = [ROOT / "CMakeLists.txt", *(path for name in folders for path in (ROOT / name).rglob("CMakeLists.txt"))]
    build += [path for path in (ROOT / "cmake").rglob("*") if path.is_file()]
    yield from build
    for path in build:
        for name in re.findall(r"[\w./]+\.(?:cmake|map|py)\b", re.sub(r"#.*", "", read(path))):
            for folder in (path.parent, ROOT):
                if (named := folder / name.removeprefix("/")).is_file():
                    yield named


def scripts(first: set[Path]) -> set[Path]:
    """These, and the scripts that they import."""
    found, new = set(), first
    while new:
        found |= new
        nodes = [node for path in new for node in ast.walk(ast.parse(read(path)))]
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        new = {path for name in names if (path := SCRIPTS / f"{name}.py").exists()} - found
    return found


def packaging() -> set[str]:
    configuration = ("pyproject.toml", "cibuildwheel.toml", ".github/workflows/wheels.yml")
    text = "".join(read(ROOT / name) for name in configuration)
    project, tool = PROJECT["project"], PROJECT["tool"]
    wheels = [override.get("wheel", {}) for override in tool["scikit-build"]["overrides"]]
    plain = [name for wheel in wheels for name in wheel.get("force-include", ())]
    named = {*configuration, project["readme"], *project["license-files"], *plain}
    named |= set(re.findall(r"\brequirements-\w+\.txt\b", text))
    files = set(cmake_files())
    run = {path for path in files if path.parent == SCRIPTS}
    run |= {ROOT / name for name in re.findall(r"\bscripts/\w+\.py\b", text)}
    providers = [entry["provider"] for entry in tool["dynamic-metadata"]]
    run |= {ROOT / provider["path"] / f"{provider['module']}.py" for provider in providers}
    return named | {path.relative_to(ROOT).as_posix() for path in files | scripts(run)}


@pytest.mark.skipif(not WORKFLOW.exists(), reason="a source distribution has no workflows")
def test_a_change_of_the_packaging_builds_the_wheels() -> None:
    paths = read(WORKFLOW).partition("    paths:\n")[2].partition("  workflow_dispatch")[0]
    listed = re.findall(r'^      - "?([^"\n]+?)"?$', paths, re.MULTILINE)
    files = packaging()
    assert {"README.md", "LICENSE", "cuda/sources.cmake", "hip/hipify.py", "cpp/libfourfold.map"} < files
    assert {"scripts/backend_report.py", "scripts/library_symbols.py", "scripts/torch_headers.py"} < files
    missing = [name for name in sorted(files) if not any(fnmatch(name, pattern) for pattern in listed)]
    assert not missing, f"add to the paths of wheels.yml: {missing}"
    assert all(next(ROOT.glob(pattern), None) for pattern in listed), "wheels.yml names files that don't exist"
