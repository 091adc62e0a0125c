"""Caches the machine code of nests for other processes, in the folder FOURFOLD_CACHE."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from functools import cache
from pathlib import Path

from fourfold import _C, __version__

VARIABLE = "FOURFOLD_CACHE"
# The arguments of attach_nest except addresses: the functions' names, empty for a missing one, and the nest's numbers.
Head = dict[str, list[str] | list[int]]


def folder() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def generators(folder: Path = Path(__file__).parents[1]) -> str:
    """A digest of the modules that generate nests. A change of theirs can change a nest's arguments, its scratch memory
    or its results, without a new version of the package."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".h"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


class Cache:
    """Code by program, layout and everything else that it depends on: the generators, the compiler's version or a
    digest of the prelude, the library's build, and the processor's level or the device's architecture."""

    def __init__(self, folder: Path, target: str, compiler: str):
        facts = sorted((name, str(value)) for name, value in _C.build_info().items())
        self.folder = folder / "nests"
        self.common = json.dumps([generators(), __version__, target, compiler, facts])

    def path(self, text: str, layout: str) -> Path:
        key = hashlib.sha256("\0".join((self.common, layout, text)).encode()).hexdigest()
        return self.folder / key

    def get(self, text: str, layout: str, *names: str) -> tuple[Head, bytes] | None:
        """names: what the head must hold."""
        try:
            line, _, code = self.path(text, layout).read_bytes().partition(b"\n")
            head = json.loads(line)
        except (OSError, ValueError):  # no file, or one that something else wrote
            return None
        return (head, code) if isinstance(head, dict) and head.keys() == set(names) else None

    def put(self, text: str, layout: str, head: Head, code: bytes) -> None:
        path = self.path(text, layout)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Processes in different containers can have the same number.
        part = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
        try:
            part.write_bytes(json.dumps(head).encode() + b"\n" + code)
            part.replace(path)  # atomically
        finally:
            part.unlink(missing_ok=True)
