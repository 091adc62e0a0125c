"""Rows of few columns, or of a fixed number, have the interpreter's bits, in groups and across the lanes."""

from __future__ import annotations

import mmap

import pytest
import torch

from fourfold import _C
from guarded_memory import before_a_wall
from nests import OF_FIXED_COLUMNS, SHORT, expect_the_interpreters_bits, needs_nests
from programs import HEAD

pytestmark = needs_nests


@pytest.mark.parametrize("has_column_sum", [False, True])
@pytest.mark.parametrize("columns", [2, 4, 5, 7, 8, 12, 16, 17, 20, 24, 25, 33, 64, 100, 256, 257])
@pytest.mark.parametrize("rows", [(1, 70), (70, 1), (37, 3), (5, 18)])
def test_rows_of_fixed_columns(rows: tuple[int, int], columns: int, has_column_sum: bool) -> None:
    """In groups, or across the lanes; axes of rows that merge for all tensors, or don't."""
    a, b = rows
    text = f"{HEAD}axes a={a} b={b} | c={columns}\n{OF_FIXED_COLUMNS}" + "column_sum d float32 [c]\n" * has_column_sum
    for threads in (1, 2):
        torch.set_num_threads(threads)
        x, y, w = torch.randn(a, b, columns), torch.randn(a, 1, columns).bfloat16(), torch.randn(columns).half()
        r, t = torch.randn(1, b, 1), torch.rand(a, b, 1) > 0.5
        expect_the_interpreters_bits(text, (x, y, w, r, t, 0.7))
        x[0, 0], y[0] = torch.nan, -0.0
        expect_the_interpreters_bits(text, (torch.randn(a, b, columns + 3)[..., 1:-2], y, w, r, t, 0.7))
        expect_the_interpreters_bits(text, (x.transpose(0, 1).contiguous().transpose(0, 1), y, w, r, t, 0.7))


def test_sums_over_rows_of_one_column() -> None:
    text = (
        f"{HEAD}axes a=40 |\nx: float32 = input float32 [a]\ns: float32 = sum x\nz: float32 = sin x\n"
        "output s float32 [a]\ncolumn_sum z float32 []\ncolumn_sum s float32 []\n"
    )
    expect_the_interpreters_bits(text, (torch.randn(40),))


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((3, 16), 1), ((1, 70), 3), ((5, 37), 4), ((2, 17), 9), ((2, 18), 16), ((40, 3), 5), ((3, 33), 17)],
)
def test_rows_of_few_columns(rows: tuple[int, int], columns: int) -> None:
    """Many rows at once, with sums in the order of longer rows."""
    a, b = rows
    for threads in (1, 2):
        torch.set_num_threads(threads)
        x, y, z = torch.randn(a, b, columns), torch.randn(a, 1, columns), torch.randn(b, columns).bfloat16()
        r, t = torch.randn(a, b, 1), torch.randn(columns, b).double()
        expect_the_interpreters_bits(SHORT, (x, y, z, r, t))
        x[0, 0], y[0] = torch.nan, -0.0
        expect_the_interpreters_bits(SHORT, (torch.randn(a, b, 2 * columns)[..., ::2], y, z, r, t))
        expect_the_interpreters_bits(SHORT, (x.transpose(0, 1).contiguous().transpose(0, 1), y, z, r, t))


def test_rows_lie_along_their_longest_axis() -> None:
    """Of 40 x 3 rows, 40 are computed together, not 3."""
    text = (
        f"{HEAD}axes a=40 b=3 | c=5\nx: float32 = input float32 [a b c]\ny: float32 = input float32 [a 1 c]\n"
        "z: float32 = mul x y\ns: float32 = sum z\noutput s float32 [a b]\n"
    )
    layout = _C.program_layout(text, 0, 0, [(6, (40, 3, 5), (15, 5, 1), 0), (6, (40, 1, 5), (5, 5, 1), 0)])
    assert layout == "s2x5:nn1,0c1,1n0"


@pytest.mark.skipif(not hasattr(mmap, "MAP_ANONYMOUS"), reason="memory is guarded by mprotect")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [3, 5, 6, 7, 9, 15, 20])
def test_nothing_is_read_behind_the_last_row(columns: int, dtype: torch.dtype) -> None:
    """Vectors that are longer than a row read the next one too."""
    kind = str(dtype).removeprefix("torch.")
    text = (
        f"{HEAD}axes a=x.0 | b={columns}\nx: float32 = input {kind} [a b]\nm: float32 = amax x\n"
        "e: float32 = sub x m\ns: float32 = sum e\noutput s float32 [a]\noutput e float32 [a b]\n"
    )
    for rows in (16, 32, 37):
        drawn = torch.randn(rows, columns).to(dtype)
        guarded = torch.from_numpy(before_a_wall(drawn.flatten().view(torch.uint8).numpy()))
        expect_the_interpreters_bits(text, (guarded.view(dtype).view(rows, columns),))
