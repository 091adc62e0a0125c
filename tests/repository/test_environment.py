"""docs/environment.md lists exactly the FOURFOLD_ variables that the sources read, and what Python asks of others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import ROOT

PAGE = ROOT / "docs" / "environment.md"
FOLDERS = ("python", "cpp", "cuda", "hip", "metal", "cmake", "scripts", "tests", "benchmarks")
NAME = re.compile(r"FOURFOLD_[A-Z0-9_]*[A-Z0-9]")
# How a variable is read or set outside Python, by the ends of file names.
READ = {
    (".cpp", ".h", ".cu", ".cuh", ".mm", ".metal", ".hip"): (r'(?:get|set)env\("(FOURFOLD_\w+)"',),
    (".cmake", "CMakeLists.txt", ".in"): (r"ENV\{(FOURFOLD_\w+)\}",),
    (".toml",): (r'\benv = "(FOURFOLD_\w+)"', r"\bif\.env\.(FOURFOLD_\w+)", r"^environment = .*?(FOURFOLD_\w+) ="),
    ("Makefile", "run"): (r"\$+[({](FOURFOLD_\w+)", r"\b(FOURFOLD_\w+)="),
}


def sources() -> Iterator[Path]:
    files = ("Makefile", "CMakeLists.txt", "pyproject.toml", "cibuildwheel.toml", ".ci/run")
    yield from (ROOT / name for name in files if (ROOT / name).exists())  # a source distribution has no .ci
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path != Path(__file__) and "__pycache__" not in path.parts:
                yield path


def defined_by_the_build(texts: dict[Path, str]) -> set[str]:
    """Macros and CMake variables, which Python code also names where it runs a compiler."""
    rules = r"#\s*define\s+(FOURFOLD_\w+)", r"-D(FOURFOLD_\w+)", r"\b(?:set|foreach|list)\((?:APPEND )?(FOURFOLD_\w+)"
    return {name for text in texts.values() for rule in rules for name in re.findall(rule, text)}


def of_python(text: str) -> set[str]:
    """Strings that are a name, and keyword arguments, with which subprocess environments are written."""
    tree = ast.parse(text)
    names = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg}
    return {name for name in names if NAME.fullmatch(name)}


def read(path: Path, text: str) -> set[str]:
    if path == ROOT / "CMakeLists.txt":  # set by projects that add the sources
        return set(re.findall(r"^(?:option|set)\((FOURFOLD_\w+) .*?(?=CACHE|PROJECT_IS_TOP_LEVEL)", text, re.MULTILINE))
    for ends, rules in READ.items():
        if path.name.endswith(ends):
            return {name for rule in rules for name in re.findall(rule, text, re.MULTILINE)}
    return set()


def variables() -> dict[str, set[str]]:
    """By name, the files that read or set it."""
    texts = {}
    for path in sources():
        try:
            texts[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a model, a picture
            continue
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        for name in read(path, text):
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    internal = defined_by_the_build(texts) - found.keys()
    for path, text in texts.items():  # also of a name that CMake has for something else
        for name in re.findall(r'os\.environ(?:\.get\(|\[)"(FOURFOLD_\w+)"', text) if path.suffix == ".py" else ():
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    for path, text in texts.items():
        if path.suffix == ".py":
            for name in of_python(text) - internal:
                found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def asked(path: Path) -> set[str]:
    """The names for which a file asks os.environ: literals, constants of the file, or loops over either."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name):
            given.setdefault(node.target.id, []).append(node.iter)
    keys = []
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ")):
                keys.append(node.slice)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "setdefault" | "pop")):
                keys.append(node.args[0])
            case ast.Call(func=ast.Attribute(attr="getenv")):
                keys.append(node.args[0])
            case ast.Compare(comparators=[ast.Attribute(attr="environ")]):
                keys.append(node.left)
    read: set[str] = set()
    for key in keys:
        for value in given.get(key.id, [key]) if isinstance(key, ast.Name) else [key]:
            try:
                found = ast.literal_eval(value)
            except ValueError:  # build_library.py reads pyproject.toml's names, which are FOURFOLD_
                assert path.name == "build_library.py", f"{path}: write the name out, for this test to read it"
                continue
            read |= {found} if isinstance(found, str) else set(found)
    return read


def listed() -> set[str]:
    rows = re.findall(r"^\| `(FOURFOLD_\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows)), "a variable has two rows"
    return set(rows)


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    return variables()


def test_every_variable_is_on_the_page(found: dict[str, set[str]]) -> None:
    missing = {name: sorted(files) for name, files in found.items() if name not in listed()}
    assert not missing, f"docs/environment.md lists no such variable, and these files read it: {missing}"


def test_every_other_variable_of_python_is_on_the_page() -> None:
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+)(?:=\w+)?`", PAGE.read_text(encoding="utf-8")))
    paths = [path for folder in ("python", "scripts") for path in (ROOT / folder).rglob("*.py")]
    read = {name: path.name for path in paths for name in asked(path)}
    assert {
        "AUDITWHEEL_PLAT",
        "CI",
        "FOURFOLD_CACHE",
        "KMP_BLOCKTIME",
        "LOCAL_RANK",
        "OUT",
        "TORCH_INDEX",
    } < read.keys()
    missing = {name: file for name, file in read.items() if name not in named}
    assert not missing, f"docs/environment.md names no such variable, and these files read it: {missing}"


def test_the_page_lists_no_other(found: dict[str, set[str]]) -> None:
    assert not listed() - found.keys(), "docs/environment.md lists variables that nothing reads"
    mentioned = set(NAME.findall(PAGE.read_text(encoding="utf-8")))
    assert mentioned <= listed(), "docs/environment.md mentions variables that have no row"


def test_every_row_gives_values_default_and_effect() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for row in re.findall(r"^\| `FOURFOLD_.*$", text, re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4 and all(cells), row


@pytest.mark.parametrize(
    "name", ["FOURFOLD_STRICT", "FOURFOLD_GPU_PATH", "FOURFOLD_CUDA", "FOURFOLD_NO_EXTENSION", "FOURFOLD_REQUIRE"]
)
def test_the_search_finds_what_is_read_in_each_language(found: dict[str, set[str]], name: str) -> None:
    assert found[name]
