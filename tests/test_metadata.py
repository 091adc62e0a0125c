"""The package's metadata, CHANGELOG.md, CITATION.cff and the issue forms."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fourfold
from machine import ROOT, missing, output_of, tool

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def pinned(name: str, file: str) -> str:
    (version,) = re.findall(rf"^{re.escape(name)}==(\S+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return version


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


def test_the_project_has_authors_and_urls() -> None:
    project = PROJECT["project"]
    assert project["authors"] and all(author["name"] for author in project["authors"])
    assert project["urls"].keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
    home = project["urls"]["Homepage"]
    assert all(url == home or url.startswith(f"{home}/") for url in project["urls"].values())
    metadata = importlib.metadata.metadata("fourfold")
    assert sorted(metadata.get_all("Project-URL")) == sorted(f"{name}, {url}" for name, url in project["urls"].items())
    assert metadata["Author"] == ", ".join(author["name"] for author in project["authors"])


def test_security_reports_are_private() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    section = text.partition("## Report a vulnerability\n")[2].partition("\n## ")[0]
    assert "privately" in section and "public issue" in section
    assert f"<{PROJECT['project']['urls']['Homepage']}/security/advisories/new>" in section
    assert "python -m fourfold info" in section


def test_the_changelog_is_about_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d{2}-\d{2})?$", text, re.MULTILINE)
    written = PROJECT["project"]["version"]
    assert versions[0] == "Unreleased"
    assert written in versions or f"To be released as {written}" in text
    for version in versions:
        assert f"\n[{version}]: https://" in text


def test_the_build_is_by_the_tool_that_is_tested() -> None:
    version = pinned("scikit-build-core", "requirements-build.txt")
    assert PROJECT["tool"]["scikit-build"]["minimum-version"] == version
    assert PROJECT["build-system"]["requires"] == [f"scikit-build-core>={version}"]


def test_cmakes_version_has_one_source() -> None:
    (minimum,) = re.findall(
        r"^cmake_minimum_required\(VERSION (.+)\)$", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE
    )
    assert PROJECT["tool"]["scikit-build"]["cmake"]["version"] == "CMakeLists.txt"
    assert str(requirements(PROJECT["dependency-groups"]["build"])["cmake"].specifier) == f">={minimum}"


def test_the_groups_have_what_the_extras_have() -> None:
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    test = requirements(groups["test"])
    for extra in ("test", "demo"):
        for name, requirement in requirements(extras[extra]).items():
            assert test[name] == requirement
    assert not {"cmake", "ninja", "pybind11"} & requirements(extras["test"]).keys()
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


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_for_the_installation(form: Path) -> None:
    if importlib.util.find_spec("ruamel") is None:
        missing("this test needs ruamel.yaml, which comes with cffconvert: pip install -r requirements-dev.txt")
    from ruamel.yaml import YAML

    parsed = YAML(typ="safe").load(form)
    assert parsed["name"] and parsed["description"]
    for field in parsed["body"]:
        assert field["type"] in ("textarea", "input", "checkboxes") and field["id"] and field["attributes"]["label"]
    (asked,) = (field for field in parsed["body"] if "python -m fourfold info" in field["attributes"]["label"])
    assert asked["validations"]["required"] is True


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert [form.stem for form in FORMS] == ["bug", "feature", "performance"]
