"""The package's version, its dependencies, what a package index shows, and CITATION.cff."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dependencies
import fourfold
from machine import ROOT, missing, output_of, tool
from test_readme import slug

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


@pytest.mark.parametrize(
    ("version", "is_free", "wanted"), [((3, 13), 1, False), ((3, 14), 1, True), ((3, 10), 0, True)]
)
def test_llvmlite_is_a_dependency_where_it_has_wheels(
    version: tuple[int, int], is_free: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies.sysconfig, "get_config_var", {"Py_GIL_DISABLED": is_free}.get)
    assert dependencies.has_wheels(version) == wanted


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


def test_a_package_index_shows_readme_with_links_to_the_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the source distribution and in a wheel, which a build in plain torch makes quickly."""
    if importlib.util.find_spec("scikit_build_core") is None:
        missing("this test needs scikit-build-core: pip install -r requirements-build.txt")
    monkeypatch.setenv("FOURFOLD_NO_EXTENSION", "1")
    monkeypatch.chdir(ROOT)
    build = importlib.import_module("build_backend")
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        (info,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO"))
        given = [archive.extractfile(info).read()]
    with zipfile.ZipFile(tmp_path / build.build_wheel(str(tmp_path))) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        given.append(archive.read(metadata))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for metadata in map(message_from_bytes, given):
        assert metadata["Description-Content-Type"] == "text/markdown"
        check_shown(metadata.get_payload(decode=True).decode(), readme)


def check_shown(shown: str, readme: str) -> None:
    code = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    assert code.findall(shown) == code.findall(readme)
    links = re.findall(r"(!?)\[[^\[\]]*\]\(([^)]+)\)", code.sub("", shown))
    assert len(links) == len(re.findall(r"\]\(", code.sub("", readme))) > 30
    tag = re.escape(f"v{PROJECT['project']['version']}")
    for picture, link in links:
        if "://" in link and f"({link})" in readme:
            continue
        ours = re.fullmatch(rf"{PROJECT['project']['urls']['Homepage']}/(blob|raw|tree)/{tag}/([^#]+)(?:#(.+))?", link)
        assert ours is not None, f"{link} leads elsewhere, or nowhere from a package index"
        kind, path, heading = ours.groups()
        file = ROOT / path
        assert file.exists() and (kind == "tree") == file.is_dir() and (kind == "raw") == bool(picture), link
        if heading:
            headings = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in map(slug, headings), link
