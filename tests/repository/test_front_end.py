"""scripts/front_end.py finds which of the kernels' sources a compiler refuses."""

from __future__ import annotations

from pathlib import Path

import front_end
from machine import tool

RIGHT = "#define SIZE {size}\nstatic void add_kernels() {{}}\nint of_{name} = SIZE;\n"


def refusals(folder: Path, **texts: str) -> tuple[dict[str, str], list[str]]:
    """Those of g++, and the names of what it read."""
    sources = {name: folder / f"{name}.cpp" for name in texts}
    for name, path in sources.items():
        path.write_text(texts[name])
    read: list[str] = []

    def command(file: Path) -> list[str]:
        read.append(file.name)
        return [tool("g++", "g++"), "-Werror", "-Wno-unused-function", "-fsyntax-only", str(file)]

    return front_end.refusals(sources, folder / "all.cpp", command), sorted(read)


def test_sources_are_read_as_one(tmp_path: Path) -> None:
    """Each may define what the others do, and its own macros."""
    texts = {name: RIGHT.format(name=name, size=size) for size, name in enumerate(("lstm", "gru"))}
    assert refusals(tmp_path, **texts) == ({}, ["all.cpp"])


def test_the_source_with_an_error_is_named(tmp_path: Path) -> None:
    right = RIGHT.format(name="lstm", size=1)
    found, read = refusals(tmp_path, lstm=right, gru="int of_gru = missing;\n")
    assert list(found) == ["gru"] and "was not declared" in found["gru"]
    assert read == ["all.cpp", "gru.cpp", "lstm.cpp"]


def test_an_error_of_all_together_is_each_ones(tmp_path: Path) -> None:
    """What is right alone is not proved."""
    found, _ = refusals(tmp_path, lstm="int same;\n", gru="int same;\n")
    assert list(found) == ["lstm", "gru"] and "redefinition" in found["gru"]
