"""Memory that malloc keeps: a large result is otherwise fresh pages, each of which the kernel clears at first touch."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # glibc's numbers, malloc.h
# What glibc arrives at by itself once large blocks were freed; from a first mallopt on it no longer adapts.
SETTLED = {MMAP_MAX: 65536, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26}
KEEPING = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}


def can_be_kept() -> bool:
    return platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """What is freed stays with the process and is handed out again; at the end it goes back to the system."""
    libc = ctypes.CDLL(None)
    for option, value in KEEPING.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in SETTLED.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)
