"""Loop nests on tensors with interleaved elements, such as x[..., 0::2]: they give the interpreter's bits and read
nothing outside the tensors."""

from __future__ import annotations

import mmap

import pytest
import torch
from torch import Tensor

from guarded_memory import before_a_wall
from nests import DTYPES, drawn, expect_the_interpreters_bits, needs_nests
from programs import HEAD

pytestmark = needs_nests

LENGTHS = (1, 7, 8, 16, 33, 70, 2000)
STEPS = (2, 3, 4, 5, 8, 9)


def interleaved(length: int, step: int, kind: str, rows: int = 1) -> list[Tensor]:
    given = drawn((rows, length, step), DTYPES[kind], special=False)
    guarded = before_a_wall(given.flatten().view(torch.uint8).numpy())
    whole = torch.from_numpy(guarded).view(given.dtype).view(given.shape)
    return [part if rows > 1 else part[0] for part in whole.unbind(-1)]


@pytest.mark.skipif(not hasattr(mmap, "MAP_ANONYMOUS"), reason="memory is guarded by mprotect")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "uint8", "boolean", "int64"])
def test_inputs(kind: str, step: int) -> None:
    type = {"bfloat16": "float32", "uint8": "int32"}.get(kind, kind)
    op = "bitwise_or" if type == "boolean" else "maximum"
    text = (
        f"{HEAD}axes a=x.0\nx: {type} = input {kind} [a]\ny: {type} = input {kind} [a]\n"
        f"z: {type} = {op} x y\noutput z {kind} [a]\n"
    )
    for length in LENGTHS:
        parts = interleaved(length, step, kind)
        expect_the_interpreters_bits(text, (parts[0], parts[-1]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_rows(step: int, threads: int) -> None:
    torch.set_num_threads(threads)
    text = (
        f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ny: float32 = input float32 [a b]\n"
        "u: float32 = mul x y\ns: float32 = sum u\nv: float32 = div u s\noutput [u v] float32 [a b 1] join 2\n"
        "output s float32 [a]\ncolumn_sum v float32 [b]\n"
    )
    for length in LENGTHS:
        parts = interleaved(length, step, "float32", rows=9)
        expect_the_interpreters_bits(text, (parts[-1], parts[0]))


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "uint8", "boolean"])
@pytest.mark.parametrize("parts", STEPS)
def test_results(parts: int, kind: str) -> None:
    """Stacked along the last dimension, and with two axes along others."""
    type = {"float16": "float32", "uint8": "int32"}.get(kind, kind)
    op = "bitwise_and" if type == "boolean" else "mul"
    names = [f"v{k}" for k in range(parts)]
    lines = [f"v0: {type} = {op} x x", *(f"v{k}: {type} = {op} v{k - 1} x" for k in range(1, parts))]
    head = f"{HEAD}axes a=x.0 b=x.1\nx: {type} = input {kind} [a b]\n" + "\n".join(lines)
    joined = f"\noutput [{' '.join(names)}] {kind}"
    for length in LENGTHS:
        x = drawn((3, length), DTYPES[kind], special=False)
        expect_the_interpreters_bits(f"{head}{joined} [a b 1] join 2\n", (x,))
        expect_the_interpreters_bits(f"{head}{joined} [a 1 b] join 1\n", (x,))
        expect_the_interpreters_bits(f"{head}{joined} [a b 1] join 2 order [2 0 1]\n", (x,))
