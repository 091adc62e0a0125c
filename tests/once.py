"""Slow fixtures shared by all workers: the first worker makes the result, and the others wait for it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, after `make` has filled it, in this process or another."""
    folder.mkdir(exist_ok=True)
    with locked(folder / "lock"):
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder
