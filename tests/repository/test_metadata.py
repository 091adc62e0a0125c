"""The package's version, its dependencies and CITATION.cff."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

import fourfold
from machine import ROOT, output_of, tool

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(lines: list[object]) -> dict[str, Requirement]:
    found = {}
    for line in lines:
        if isinstance(line, dict):
            found |= requirements(PROJECT["dependency-groups"][line["include-group"]])
        else:
            requirement = Requirement(line)
            found[requirement.name] = requirement
    return found


def test_the_version_has_one_source() -> None:
    written = PROJECT["project"]["version"]
    assert fourfold.__version__ == fourfold._C.build_info()["version"] == written
    assert importlib.metadata.version("fourfold") == written
    done = subprocess.run([sys.executable, "-m", "fourfold", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fourfold {written}\n"
    assert f"version: {written}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_groups_have_what_the_extras_have() -> None:
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    test = requirements(groups["test"])
    for extra in ("test", "demo"):
        for name, requirement in requirements(extras[extra]).items():
            assert test[name] == requirement
    build = requirements(PROJECT["tool"]["scikit-build"]["build"]["requires"])
    for name in build.keys() & requirements(groups["build"]).keys():
        assert build[name] == requirements(groups["build"])[name]


@pytest.mark.parametrize("group", sorted(PROJECT["dependency-groups"]))
def test_the_pinned_versions_are_allowed(group: str) -> None:
    pins = {}
    for file in ("requirements-build.txt", "requirements-docs.txt", "requirements-dev.txt"):
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#-":
                requirement = Requirement(line.partition("  #")[0])
                pins.setdefault(requirement.name, []).append(requirement)
    for name, requirement in requirements(PROJECT["dependency-groups"][group]).items():
        for pin in pins.get(name, []):
            (version,) = pin.specifier
            assert version.version in requirement.specifier, f"{pin} is no {requirement}"
    assert set(requirements(PROJECT["dependency-groups"][group])) <= pins.keys()


def test_the_citation_is_valid() -> None:
    output_of(tool("cffconvert", "cffconvert"), "--validate", "--infile", ROOT / "CITATION.cff")
