"""Prepares a release: .github/workflows/wheels.yml calls it, and docs/releasing.md tells how to release.

    python scripts/release.py tag v0.1.0rc1         # fails unless this is the tag of pyproject.toml's version
    python scripts/release.py notes                 # prints the release notes, from CHANGELOG.md
    python scripts/release.py files dist release    # checks dist; writes SBOM, checksums and notes to release

`files` needs cyclonedx-py, from requirements-release.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from readme import absolute

ROOT = Path(__file__).resolve().parent.parent
PLATFORMS = ("manylinux_x86_64", "manylinux_aarch64", "macosx_arm64")
# Of the pinned packages, those that a wheel contains parts of, or requires; the others only build it.
CONTAINED = ("pybind11",)
REQUIRED = ("torch", "llvmlite")
TOOLS = ("scikit-build-core", "cmake", "ninja", "ziglang")


def of_project(key: str) -> str:
    """A text in pyproject.toml; Python 3.10 has no parser."""
    (found,) = re.findall(rf'^{key} = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return found


def version() -> str:
    return of_project("version")


def check_tag(tag: str) -> None:
    if tag != f"v{version()}":
        sys.exit(f"release.py: expected the tag v{version()}, of pyproject.toml's version, but got {tag}")


def notes(changelog: str, released: str) -> str:
    """The version's section of the changelog. A release candidate may have those of the unreleased changes."""
    sections = dict(re.findall(r"^## \[([^\]]+)\].*?\n(.*?)(?=^## |^\[|\Z)", changelog, re.MULTILINE | re.DOTALL))
    found = sections.get(released)
    if found is None and re.search(r"(a|b|rc)\d+$", released):
        found = sections.get("Unreleased")
    if not (found or "").strip():
        sys.exit(f"release.py: expected CHANGELOG.md to have a section [{released}], but it has {', '.join(sections)}")
    return absolute(unwrapped(found.strip()), of_project("Homepage"), released) + "\n"


def unwrapped(text: str) -> str:
    """GitHub shows the line breaks of release notes."""
    return re.sub(r"(?<=\S)\n(?:  )?(?=[^\s#-])", " ", text)


def platform_of(wheel: str) -> str:
    tags = wheel.removesuffix(".whl").split("-")[-1]
    return re.sub(r"^(manylinux|macosx)_.*?_(x86_64|aarch64|arm64)$", r"\1_\2", tags.split(".")[0])


def check_distributions(files: list[Path]) -> None:
    """One source distribution, and wheels for the same Pythons on every platform, all of this version."""
    names = sorted(file.name for file in files)
    source = f"fourfold-{version()}.tar.gz"
    if others := [name for name in names if name != source and not name.startswith(f"fourfold-{version()}-cp3")]:
        sys.exit(f"release.py: expected files of fourfold {version()}, but found {', '.join(others)}")
    if source not in names:
        sys.exit(f"release.py: expected {source}, but found {', '.join(names) or 'nothing'}")
    pythons = {each: {n.split("-")[3] for n in names if n != source and platform_of(n) == each} for each in PLATFORMS}
    every = set().union(*pythons.values())
    for each, found in pythons.items():
        if lacking := every - found or (set() if every else {"any Python"}):
            sys.exit(f"release.py: {each} has no wheel for {', '.join(sorted(lacking))}")


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX: what a wheel contains and requires, and what builds it, in the pinned versions."""
    lines = (ROOT / "requirements-build.txt").read_text(encoding="utf-8").splitlines()
    pinned = "\n".join(line for line in lines if line.partition("==")[0] in (*CONTAINED, *REQUIRED, *TOOLS))
    program = shutil.which("cyclonedx-py", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        sys.exit("release.py needs cyclonedx-py: pip install -r requirements-release.txt")
    command = [program, "requirements", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--short-PURLs"]
    done = subprocess.run([*command, "--output-reproducible", "-"], input=pinned, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("release.py: cyclonedx-py failed")
    return completed(json.loads(done.stdout))


def completed(bill: dict[str, Any]) -> dict[str, Any]:
    """With CUDA's runtime, the components' scopes, and the dependencies of fourfold, which requirements don't tell."""
    bill["components"].append(cuda_runtime())
    for component in bill["components"]:
        component["scope"] = "excluded" if component["name"] in TOOLS else "required"
        component.pop("externalReferences", None)  # the index that a build happened to use
        component["description"] = component["description"].partition(": ")[2] or component["description"]
    root = bill["metadata"]["component"]["bom-ref"]
    used = sorted(each["bom-ref"] for each in bill["components"] if each["scope"] == "required")
    others = (each["bom-ref"] for each in bill["components"] if each["scope"] != "required")
    bill["dependencies"] = [{"ref": root, "dependsOn": used}, *({"ref": each} for each in (*used, *others))]
    return bill


def cuda_runtime() -> dict[str, Any]:
    """Linked statically into the wheels for Linux, in the version that cibuildwheel.toml installs."""
    found = re.search(r"cuda-cudart-devel-(\d+)-(\d+)", (ROOT / "cibuildwheel.toml").read_text(encoding="utf-8"))
    if found is None:
        sys.exit("release.py: expected cibuildwheel.toml to install CUDA's runtime")
    number = ".".join(found.groups())
    return {
        "type": "library", "bom-ref": "cudart", "name": "cudart", "version": number, "publisher": "NVIDIA",
        "purl": f"pkg:generic/cudart@{number}",
        "description": "CUDA's runtime, linked statically into the wheels for Linux",
    }  # fmt: skip


def write_files(dist: Path, to: Path) -> None:
    files = sorted(dist.iterdir())
    check_distributions(files)
    to.mkdir(parents=True, exist_ok=True)
    bill = to / f"fourfold-{version()}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", encoding="utf-8")
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in [*files, bill])
    (to / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version())
    (to / "NOTES.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("tag").add_argument("tag")
    steps.add_parser("notes")
    files = steps.add_parser("files")
    files.add_argument("dist", type=Path)
    files.add_argument("to", type=Path)
    given = parser.parse_args()
    if given.step == "tag":
        check_tag(given.tag)
    elif given.step == "notes":
        print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version()), end="")
    else:
        write_files(given.dist, given.to)


if __name__ == "__main__":
    main()
