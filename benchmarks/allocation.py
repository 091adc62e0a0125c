"""Makes malloc keep freed memory. Otherwise a large result is fresh pages each time, which the kernel clears at first
touch."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # glibc's numbers, malloc.h
# The values that glibc reaches by itself after large blocks were freed. After the first mallopt it no longer adapts
# them.
SETTLED = {MMAP_MAX: 65536, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26}
KEEPING = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}


def can_be_kept() -> bool:
    return platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within this context, freed memory stays with the process and is reused; at the end it is returned to the
    system."""
    libc = ctypes.CDLL(None)
    for option, value in KEEPING.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in SETTLED.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)
