"""The compiler's modules import each other without cycles."""

from __future__ import annotations

import ast
from pathlib import Path

import fourfold

ROOT = Path(fourfold.__file__).parent


def imports() -> dict[str, set[str]]:
    """All modules that each module of the compiler and of explain imports, at any place."""
    files = {}
    for package in ("compiler", "explaining", "scanning"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= whole if whole <= files.keys() else whole | {node.module}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        found[module] = {name for name in names & files.keys() if name != module}
    return found


def test_there_is_no_circle() -> None:
    left = imports()
    assert len(left) > 20
    while left:
        free = [module for module, names in left.items() if not names & left.keys()]
        assert free, f"these import each other: {', '.join(sorted(left))}"
        for module in free:
            del left[module]
