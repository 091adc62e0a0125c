"""Timing begins when the loop nests that a row asked for are there: fourfold compiles them behind its first calls."""

from __future__ import annotations

import itertools

import torch

from fourfold.compiler.calling import Program
from fourfold.compiler.nest import service

ADD = """\
fourfold program 1
axes a=x.0
x: float32 = input float32 [a]
n: float32 = constant {}
y: float32 = add x n
output y float32 [a]
"""
numbers = itertools.count()


def wait() -> None:
    """Until all are compiled: the nest that is asked for last is compiled last, and its program waits for it."""
    if service.service.thread is not None:
        Program(ADD.format(float(next(numbers))), "last", service.number("llvm"))(torch.zeros(64))
