"""What a release has besides its wheels: notes, checksums, a bill of materials; the rehearsal from a local index."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from pathlib import Path

import pytest

import rehearse_release
import release
from machine import ROOT

VERSION = release.version()
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A thing that
  takes two lines: [page](docs/a.md#b), [elsewhere](https://example.org).

## [0.2.0] - 2030-01-01

- Second.

[Unreleased]: https://example.org/compare
"""
TAGS = ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_14_0_arm64")


def names(*pythons: str, tags: tuple[str, ...] = TAGS) -> list[str]:
    wheels = [f"fourfold-{VERSION}-{python.rstrip('t')}-{python}-{tag}.whl" for python in pythons for tag in tags]
    return [f"fourfold-{VERSION}.tar.gz", *wheels]


def test_a_tag_names_the_version() -> None:
    release.check_tag(f"v{VERSION}")
    with pytest.raises(SystemExit, match=re.escape(f"expected the tag v{VERSION}, of pyproject.toml's version, but")):
        release.check_tag("v9.9")


def test_notes_are_the_versions_section_and_a_candidates_the_unreleased_one() -> None:
    assert release.notes(CHANGELOG, "0.2.0") == "- Second.\n"
    candidate = release.notes(CHANGELOG, "0.3.0rc1")
    assert (
        "- A thing that takes two lines: [page](https://github.com/fourfold/fourfold/blob/v0.3.0rc1/docs/a.md#b)"
        in (candidate)
    )
    assert "[elsewhere](https://example.org)" in candidate and "Second" not in candidate
    with pytest.raises(SystemExit, match=r"expected CHANGELOG.md to have a section \[0.3.0\], but it has Unreleased"):
        release.notes(CHANGELOG, "0.3.0")


def test_the_version_that_is_next_has_notes() -> None:
    assert len(release.notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), VERSION)) > 100


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (names("cp312")[1:], f"expected fourfold-{VERSION}.tar.gz, but found"),
        (names("cp312")[:3], "macosx_arm64 has no wheel for cp312"),
        ([*names("cp312", "cp314t"), *names("cp313", tags=TAGS[1:])[1:]], "manylinux_x86_64 has no wheel for cp313"),
        ([*names("cp312"), "fourfold-9.9-cp312-cp312-x.whl"], "but found fourfold-9.9-cp312-cp312-x.whl"),
        (names(), "manylinux_x86_64 has no wheel for any Python"),
    ],
)
def test_a_release_that_lacks_a_file_is_refused(given: list[str], why: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(why)):
        release.check_distributions([Path(name) for name in given])
    release.check_distributions([Path(name) for name in names("cp312", "cp314t")])


# What cyclonedx-py prints, in short; it is in an environment of its own (requirements-release.txt).
PRINTED = {
    "bomFormat": "CycloneDX",
    "metadata": {"component": {"bom-ref": "root", "name": "fourfold"}},
    "dependencies": [],
}


def test_the_files_beside_the_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, dist, to = tmp_path / "cyclonedx-py", tmp_path / "dist", tmp_path / "release"
    program.write_text(
        "#!/usr/bin/env python3\nimport json, sys\nassert sys.argv[1] == 'requirements'\n"
        "lines = [line.partition('==') for line in sys.stdin.read().splitlines()]\n"
        "found = [{'bom-ref': n, 'name': n, 'description': f'requirements line 1: {n}=={v}', 'externalReferences': []} "
        f"for n, _, v in lines]\nprint(json.dumps({PRINTED!r} | {{'components': found}}))\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    dist.mkdir()
    for name in names("cp312"):
        (dist / name).write_text(name)
    release.write_files(dist, to)
    bill = json.loads((to / f"fourfold-{VERSION}.cdx.json").read_text(encoding="utf-8"))
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert scopes == dict.fromkeys(("torch", "llvmlite", "pybind11", "cudart"), "required") | dict.fromkeys(
        ("scikit-build-core", "cmake", "ninja", "ziglang"), "excluded"
    )
    of_root = bill["dependencies"][0]["dependsOn"]
    assert {"cudart", "torch"} <= set(of_root) and "cmake" not in of_root
    sums = dict(line.split("  ")[::-1] for line in (to / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {*names("cp312"), f"fourfold-{VERSION}.cdx.json"}
    for name, digest in sums.items():
        file = dist / name if (dist / name).exists() else to / name
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    assert (to / "NOTES.md").read_text().strip()


def test_the_rehearsals_index_serves_the_wheels_with_their_sums(tmp_path: Path) -> None:
    wheel = tmp_path / f"fourfold-{VERSION}-cp312-cp312-any.whl"
    wheel.write_bytes(b"wheel")
    with rehearse_release.index(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/fourfold/") as page:
            ((name, digest),) = re.findall(r'href="([^"#]+)#sha256=(\w+)"', page.read().decode())
        with urllib.request.urlopen(f"{address}/fourfold/{name}") as file:
            assert hashlib.sha256(file.read()).hexdigest() == digest
