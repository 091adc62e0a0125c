"""Sums over rows, kept for each column: 16 rows of a chunk are added in float32, these sums in float64, and the chunks
in order. Nests and the interpreter have the same bits for any layout and number of threads."""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import Tensor

from fourfold import _C
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir import reading
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nest.print import c
from fourfold.compiler.pipeline.calling import Program
from nests import INTERPRETER, expect_the_interpreters_bits, needs_nests
from program_cases import assert_same_bits
from programs import HEAD
from seeds import of_this_run

ROWS_OF_SUM, CHUNKS = _C.nest_limits()["rows_of_sum"], 32
X = "x: float32 = input float32 [a b]\nr: float32 = input float32 [a]\ny: float32 = mul x r\n"
ALONE = f"{HEAD}axes a=x.0 | b=x.1\n{X}column_sum y float32 [b]\n"
BESIDE = f"{HEAD}axes a=x.0 | b=x.1\n{X}z: float32 = exp x\noutput z float32 [a b]\ncolumn_sum y float32 [b]\n"
REDUCED = (
    f"{HEAD}axes a=x.0 | b=x.1\n{X}s: float32 = sum y\nz: float32 = mul x s\noutput z float32 [a b]\n"
    "column_sum y float32 [b]\ncolumn_sum z float32 [b]\n"
)
FIXED = REDUCED.replace("b=x.1", "b=70")
PROGRAMS = {"alone": ALONE, "beside": BESIDE, "reduced": REDUCED, "fixed": FIXED}


def added(y: Tensor) -> Tensor:
    """The sum of the rows in the order of a column sum."""
    total = torch.zeros(y.shape[1], dtype=torch.float64)
    for chunk in y.split(max(ROWS_OF_SUM, -(-y.shape[0] // CHUNKS))):
        of_chunk = torch.zeros_like(total)
        for rows in chunk.split(ROWS_OF_SUM):
            part = torch.zeros(y.shape[1])
            for row in rows:
                part = part + row
            of_chunk += part.double()
        total += of_chunk
    return total.float()


@pytest.mark.parametrize("generator", [INTERPRETER, "llvm"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_order(name: str, generator: object) -> None:
    number = service.number("llvm") if generator == "llvm" else INTERPRETER
    for rows in (1, 5, 16, 17, 600, 1111):
        x, r = torch.randn(rows, 70), torch.randn(rows)
        results = Program(PROGRAMS[name], "", number)(x, r)
        results = results if isinstance(results, tuple) else (results,)
        assert_same_bits(results[1 if len(results) > 1 else 0], added(x * r[:, None]))


@needs_nests
def test_random_programs() -> None:
    for seed in of_this_run():
        draw = random.Random(seed)
        torch.manual_seed(seed)
        text, kind = draw.choice((ALONE, BESIDE, REDUCED)), draw.choice(("float32", "bfloat16", "float64"))
        rows, columns = draw.choice((1, 7, 16, 40, 300, 513)), draw.choice((1, 5, 17, 64, 100, 300, 1030))
        dtype, of_rows = getattr(torch, kind), torch.float64 if kind == "float64" else torch.float32
        if kind == "float64":
            text = text.replace("float32", kind)
        text = text.replace("x: float32 = input float32", f"x: float32 = input {kind}")
        x, r = torch.randn(rows, 2 * columns).to(dtype), torch.randn(rows, dtype=of_rows)
        torch.set_num_threads(draw.choice((1, 2)))
        for given in (x[:, :columns].contiguous(), x[:, ::2], x.t().contiguous().t()[:, :columns]):
            expect_the_interpreters_bits(text, (given, r))


@pytest.mark.parametrize("threads", [1, 2])
@needs_nests
def test_rows_that_threads_share(threads: int) -> None:
    torch.set_num_threads(threads)
    for rows in (1, 17, 40):
        expect_the_interpreters_bits(BESIDE, (torch.randn(rows, 20_000), torch.randn(rows)))
        expect_the_interpreters_bits(REDUCED, (torch.randn(rows, 20_000), torch.randn(rows)))


@pytest.mark.parametrize(("name", "layout"), [("alone", "r1:n1,10,00"), ("fixed", "r1x70:n1,10,n1,00,00")])
def test_sums_stay_in_registers(name: str, layout: str) -> None:
    """The loop over rows neither loads nor stores the sums of the stage without reductions."""
    text = c.print_nest(build.build(reading.read(PROGRAMS[name]), Layout.of(layout), 8))
    rows = re.findall(r"for \(int64 row = 0; row < rows; \+\+row\) \{\n(.*?)\n *\}\n", text, re.DOTALL)
    held = [body for body in rows if "_sum = " in body or "_sum_2 = " in body]
    name = "y_out" if name == "alone" else "z_out_2"
    assert held
    assert not any(re.search(rf"(load|store)\(.*{name}\b", body) for body in held)
