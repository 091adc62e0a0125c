"""Waits for the loop nests that a row requested: fourfold compiles them in the background of its first calls."""

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
    """Wait until all are compiled: they are compiled in the order of the requests, so running the program requested
    last waits for all."""
    if service.service.thread is not None:
        Program(ADD.format(float(next(numbers))), "last", service.number("llvm"))(torch.zeros(64))
