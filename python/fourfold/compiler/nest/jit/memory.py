"""Whether this process may write code and run it."""

from __future__ import annotations

import ctypes
import mmap


def can_be_executed() -> bool:
    """Whether memory that was written can be made executable: some policies forbid it (SELinux's execmem, systemd's
    MemoryDenyWriteExecute), and LLVM would fault only when the code is called."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        view = ctypes.c_char.from_buffer(memory)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        is_allowed = libc.mprotect(ctypes.addressof(view), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) == 0
        if is_allowed:
            libc.mprotect(ctypes.addressof(view), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        del view
    return is_allowed
