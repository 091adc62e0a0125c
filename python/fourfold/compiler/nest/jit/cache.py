"""Caches the machine code of nests for other processes, in the folder FOURFOLD_CACHE."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fourfold import _C, __version__

VARIABLE = "FOURFOLD_CACHE"
SIZE = "FOURFOLD_CACHE_SIZE"
DEFAULT_SIZE = 256  # MiB: more than ten thousand nests
NAME = re.compile(r"[0-9a-f]{64}(\.\d+-[0-9a-f]{8})?")  # of an entry, and of one that a process is writing
sizes: dict[Path, int] = {}  # of folders into which this process has written
# The arguments of attach_nest except addresses: the functions' names, empty for a missing one, and the nest's numbers.
Head = dict[str, list[str] | list[int]]


def folder() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def limit() -> int:
    """The most bytes that the folder keeps. Raises ValueError for anything but a number of mebibytes."""
    given = os.environ.get(SIZE) or str(DEFAULT_SIZE)
    if not (given.isascii() and given.isdigit() and len(given) <= 12):
        raise ValueError(f"fourfold: expected {SIZE} to be a number of mebibytes, but got {given!r}")
    return int(given) << 20


class Entry(NamedTuple):
    used: float  # the time of its last use
    size: int
    path: Path


def entries(folder: Path) -> list[Entry]:
    """Those of a cache, the least recently used first."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder / "nests") as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                if NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    stat = file.stat(follow_symlinks=False)
                    found.append(Entry(stat.st_mtime, stat.st_size, Path(file.path)))
    return sorted(found)


def remove(folder: Path, most: int = 0) -> int:
    """Removes the least recently used entries until the others have at most this many bytes. Returns the bytes left."""
    found = entries(folder)
    left = sum(entry.size for entry in found)
    for entry in found:
        if left <= most:
            break
        entry.path.unlink(missing_ok=True)
        left -= entry.size
    return left


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
        if not isinstance(head, dict) or head.keys() != set(names):
            return None
        with contextlib.suppress(OSError):  # a folder that this process may only read
            os.utime(self.path(text, layout))
        return head, code

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
        self.bound(path.stat().st_size)

    def bound(self, added: int) -> None:
        """Removes old entries once the folder exceeds its limit, a quarter of it at once, since that reads the folder.
        added: the bytes of a new entry."""
        folder, most = self.folder.parent, limit()
        if folder not in sizes:
            sizes[folder] = sum(entry.size for entry in entries(folder))
        else:
            sizes[folder] += added
        if sizes[folder] > most:
            sizes[folder] = remove(folder, most * 3 // 4)
