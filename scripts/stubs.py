"""Writes python/fourfold/_C.pyi, the types of the compiled module, from the signatures in pybind11's docstrings.

    python scripts/stubs.py [--check]

--check writes nothing and exits with 1 if the file is out of date; tests/test_types.py does the same.

The modules for single versions of torch (fourfold._torch_2_13) have no stub: Python computes their names at import, so
a type checker sees a ModuleType.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

STUB = Path(__file__).resolve().parent.parent / "python" / "fourfold" / "_C.pyi"
HEADER = '''"""{doc}

Written by scripts/stubs.py."""

from collections.abc import Sequence
from typing import Any, SupportsIndex, SupportsInt

'''


def text_of(module: ModuleType) -> str:
    """The stub of a module of functions. Raises ValueError for another member, or a signature that pybind11 did not
    write."""
    functions = [function_of(name, vars(module)[name]) for name in sorted(vars(module)) if not name.startswith("_")]
    return HEADER.format(doc=module.__doc__) + "\n".join(functions)


def function_of(name: str, member: object) -> str:
    doc = getattr(member, "__doc__", None) or ""
    signature, _, description = doc.strip().partition("\n\n")
    found = re.fullmatch(rf"{name}\((.*)\) -> (.+)", signature)
    if not callable(member) or not found or not description:
        raise ValueError(
            f"expected fourfold._C.{name} to have a signature and a description, but its docstring is {doc!r}"
        )
    arguments, result = (re.sub(r"\b(?:collections\.abc|typing)\.", "", part) for part in found.groups())
    # pybind11 numbers arguments without names, which can't be passed by keyword.
    arguments = f"{arguments}, /" if arguments else ""
    result = re.sub(r"\bdict$", "dict[str, Any]", result)
    written = textwrap.fill(description, 110, break_long_words=False).replace("\n", "\n    ")
    return f'def {name}({arguments}) -> {result}:\n    """{written}"""\n'


def formatted(text: str) -> str:
    """In ruff's format."""
    command = (sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-")
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=STUB.parent).stdout


def main() -> None:
    from fourfold import _C

    text = formatted(text_of(_C))
    if "--check" in sys.argv[1:]:
        if STUB.read_text(encoding="utf-8") != text:
            sys.exit(f"{STUB.name} is out of date: run python scripts/stubs.py")
    else:
        STUB.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
