"""Finds calls that compute with subnormal numbers, for which processors use microcode: by the exception flags of x86's
floating point. Each thread has its own flags, so calls run on one thread."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Callable

import pytest
import torch

DENORMAL_OPERAND, UNDERFLOW = 0x02, 0x10
CONTROL = 28  # offset of the register in glibc's fenv_t

with_flags = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="reads the flags of x86-64 as glibc gives them"
)


class Environment:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libm.so.6")
        self.bytes = ctypes.create_string_buffer(64)

    def flags(self) -> int:
        self.library.fegetenv(self.bytes)
        return struct.unpack_from("<I", self.bytes.raw, CONTROL)[0] & 0x3F

    def clear(self) -> None:
        self.library.fegetenv(self.bytes)
        (control,) = struct.unpack_from("<I", self.bytes.raw, CONTROL)
        struct.pack_into("<I", self.bytes, CONTROL, control & ~0x3F)
        self.library.fesetenv(self.bytes)


def flags_of(call: Callable[..., object], *arguments: object) -> int:
    """The flags that the call raises, DENORMAL_OPERAND for a subnormal operand and UNDERFLOW for a subnormal result
    that was rounded."""
    assert torch.get_num_threads() == 1
    environment = Environment()
    environment.clear()
    call(*arguments)
    return environment.flags() & (DENORMAL_OPERAND | UNDERFLOW)
