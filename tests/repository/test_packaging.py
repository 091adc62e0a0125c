"""The recipes in packaging/ have the versions and dependencies of pyproject.toml and scripts/dependencies.py."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from typing import Any

import dependencies
from machine import ROOT, missing, output_of
from test_metadata import PROJECT, requirements

PACKAGING = ROOT / "packaging"
PROJECT_FACTS, SETTINGS = PROJECT["project"], PROJECT["tool"]["scikit-build"]
# conda-forge's names of packages that have another on PyPI.
OF_CONDA = {"torch": "pytorch"}
# Required of a build by pip alone: torch's headers are fetched by it, and ziglang has the Clang.
OF_PIP = ("pip", "ziglang")


def recipe() -> dict[str, Any]:
    if importlib.util.find_spec("yaml") is None:
        missing("this test needs PyYAML: pip install -r requirements-docs.txt")
    import yaml

    return yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text(encoding="utf-8"))


def listed(entries: list[Any]) -> dict[str, str]:
    """Versions by name, also of what is required under a condition."""
    lines = [entry["then"] if isinstance(entry, dict) else entry for entry in entries]
    return {line.split()[0]: line.partition(" ")[2] for line in lines if not line.startswith("$")}


def wanted(lines: list[str], leaving: tuple[str, ...] = ()) -> dict[str, str]:
    found = {OF_CONDA.get(name, name): str(each.specifier) for name, each in requirements(lines).items()}
    return {name: version for name, version in found.items() if name not in leaving}


def test_condas_recipe_has_the_projects_facts() -> None:
    given = recipe()
    assert given["context"]["version"] == PROJECT_FACTS["version"]
    about = given["about"]
    assert (about["license"], about["summary"]) == (PROJECT_FACTS["license"], PROJECT_FACTS["description"])
    assert about["homepage"] == PROJECT_FACTS["urls"]["Homepage"]
    assert about["documentation"] == PROJECT_FACTS["urls"]["Documentation"]
    assert given["source"]["url"].startswith(f"{PROJECT_FACTS['urls']['Homepage']}/releases/download/v")
    assert (ROOT / about["license_file"]).exists()


def test_condas_recipe_requires_what_the_project_does() -> None:
    given = recipe()["requirements"]
    of_build = wanted([*PROJECT["build-system"]["requires"], *SETTINGS["build"]["requires"]], OF_PIP)
    assert of_build.items() <= listed(given["host"]).items()
    of_run = wanted([dependencies.TORCH, dependencies.LLVMLITE])
    assert listed(given["run"]) == {"python": "", **of_run}
    (cuda,) = (each for each in SETTINGS["overrides"] if "FOURFOLD_CUDA" in each["if"]["env"])
    assert listed(given["build"])["cmake"] == cuda["cmake"]["version"]
    # ziglang 0.17 has LLVM 22; a newer one may be too new for llvmlite.
    assert re.search(r"LLVM 22 or older", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert listed(given["build"])["clangxx"] == "<23"


def test_the_settings_of_recipes_are_options() -> None:
    options = SETTINGS["cmake"]["define"]
    of_conda = recipe()["build"]["script"]["env"]
    of_nix = re.findall(r"^\s+(FOURFOLD_\w+) = ", (PACKAGING / "default.nix").read_text(encoding="utf-8"), re.MULTILINE)
    used = [name for name in (*of_conda, *of_nix) if name.startswith("FOURFOLD_")]
    assert len(used) >= 8 and set(used) <= set(options)


def test_the_nix_expression_reads_the_version_and_requires_what_the_project_does() -> None:
    text = (PACKAGING / "default.nix").read_text(encoding="utf-8")
    assert "builtins.readFile ../pyproject.toml" in text and PROJECT_FACTS["version"] not in text
    lists = {name: set(body.split()) for name, body in re.findall(r"^  ([\w-]+) = \[(.*?)\];", text, re.M | re.S)}
    assert lists["dependencies"] == set(requirements([dependencies.TORCH, dependencies.LLVMLITE]))
    of_build = {*requirements(PROJECT["build-system"]["requires"]), *requirements(SETTINGS["build"]["requires"])}
    assert of_build - {"torch", *OF_PIP} <= lists["build-system"]
    if shutil.which("nix-instantiate") is None:  # not installed by .ci/run
        return
    names = ("cmake", "ninja", "scikit-build-core", "pybind11", "torch", "llvmlite", "clang")
    given = " ".join(f'{name} = "{name}";' for name in names)
    lib = 'lib = { cleanSource = x: "src"; licenses.bsd3 = "bsd3"; platforms = { linux = [ ]; darwin = [ ]; }; };'
    expression = f"import {PACKAGING}/default.nix {{ {lib} buildPythonPackage = x: x; {given} }}"
    said = output_of("nix-instantiate", "--eval", "--strict", "--json", "-E", expression)
    evaluated = json.loads(next(line for line in said.splitlines() if line.startswith("{")).partition("}warning")[0])
    assert (evaluated["pname"], evaluated["version"]) == (PROJECT_FACTS["name"], PROJECT_FACTS["version"])
