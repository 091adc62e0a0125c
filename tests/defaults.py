"""Defaults that a program may set before it calls an operator: an axis of the case table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def _default_device() -> Iterator[None]:
    torch.set_default_device("meta")  # a tensor created there by mistake has no values
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
