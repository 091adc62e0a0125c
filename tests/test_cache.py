"""The folder of machine code for other processes: its limit, and the command that shows and clears it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fourfold.cli import main
from fourfold.compiler.nest.jit import cache, service
from fourfold.compiler.nest.jit.cache import Cache

HEAD = {"functions": ["f"], "numbers": [1]}


def filled(folder: Path, count: int, bytes_each: int = 1 << 18) -> Cache:
    """A cache of entries named 0, 1, …, each a minute younger than the one before."""
    made = Cache(folder, "level", "compiler")
    for k in range(count):
        made.put(str(k), "layout", HEAD, bytes(bytes_each))
        os.utime(made.path(str(k), "layout"), (k * 60, k * 60))
    return made


def kept(made: Cache, count: int) -> list[int]:
    return [k for k in range(count) if made.path(str(k), "layout").exists()]


def test_the_least_recently_used_code_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_CACHE_SIZE", "1")
    made = filled(tmp_path, 3)
    other = made.folder / "notes.txt"
    other.write_bytes(bytes(1 << 20))  # of something else
    assert made.get("0", "layout", *HEAD) == (HEAD, bytes(1 << 18))  # used now
    made.put("3", "layout", HEAD, bytes(1 << 18))  # with the heads, more than a MiB
    assert kept(made, 4) == [0, 3] and other.exists()
    monkeypatch.setattr(cache, "sizes", {})  # another process, which knows nothing of the folder
    monkeypatch.setenv("FOURFOLD_CACHE_SIZE", "0")
    made.put("4", "layout", HEAD, b"code")
    assert kept(made, 5) == []


def test_the_limit_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOURFOLD_CACHE_SIZE", raising=False)
    assert cache.limit() == 256 << 20
    monkeypatch.setenv("FOURFOLD_CACHE_SIZE", "many")
    with pytest.raises(ValueError, match="expected FOURFOLD_CACHE_SIZE to be a number of mebibytes, but got 'many'"):
        service.number("llvm")


def test_the_command_shows_and_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOURFOLD_CACHE", str(tmp_path))
    monkeypatch.setenv("FOURFOLD_CACHE_SIZE", "8")
    made = filled(tmp_path, 4)
    for clear, what in (("", "kept, 1.0"), ("--clear", "removed, 1.0"), ("", "kept, 0.0")):
        assert main(["cache", *filter(None, [clear])]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{tmp_path}: ") and said.endswith(f" nests and kernels {what} of at most 8 MiB\n")
    assert kept(made, 4) == []
    assert main(["cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path), "entries": 0, "bytes": 0, "limit": 8 << 20}
    monkeypatch.delenv("FOURFOLD_CACHE")
    assert main(["cache"]) == 2
    assert capsys.readouterr().err.endswith("but it is not set, so no code is kept\n")
