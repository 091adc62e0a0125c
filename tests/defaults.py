"""What a program may have set before it calls an operator: an axis of the case table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def _default_device() -> Iterator[None]:
    torch.set_default_device("meta")  # what is made there by mistake meets the CPU's tensors, and has no values
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


DEFAULTS = {"device": _default_device, "dtype": _default_dtype}
