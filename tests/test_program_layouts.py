"""Programs over tensors of every layout: rows, columns, transposed and joined ones, and sums over the rows."""

from __future__ import annotations

import pytest
import torch

from program_cases import SOFTMAX
from programs import HEAD, PATHS, kind_of, type_of, values

SIZES = (0, 1, 7, 64, 1023, 1024, 1025, 5000)


@pytest.mark.parametrize(
    "shape", [(0, 5), (5, 0), (1, 1), (7, 3), (50, 60), (9, 1000), (3, 3000), (1, 40_000), (2, 20_000)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_in_stages(shape: tuple[int, int], transposed: bool) -> None:
    x = torch.randn(shape[::-1]).t() if transposed else torch.randn(shape)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results += [path(SOFTMAX)(x) for path in PATHS]
    torch.testing.assert_close(results[0], torch.softmax(x, -1) if x.numel() else x.contiguous())
    assert all(torch.equal(result, results[0]) for result in results), "the same bits from any number of threads"


@pytest.mark.parametrize("size", SIZES)
def test_elements_that_lie_apart(size: int) -> None:
    """Rows, columns, a transposed matrix, every second element, a scalar; results in another order of dimensions."""
    program = (
        f"{HEAD}axes a=x.0 b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input float32 [b]\n"
        "c: float32 = input float32 [a 1]\nt: float32 = input float32 [b a]\nk: float32 = number\n"
        "p: float32 = mul x w\nq: float32 = add p c\nr: float32 = add q t\ns: float32 = mul r k\n"
        "output s float32 [a b]\noutput r float32 [b a]\noutput q float32 [a b] order [1 0]\n"
    )
    x, w = torch.randn(6, 2 * size)[:, ::2], torch.randn(size)
    c, t = torch.randn(6, 1), torch.randn(size, 6)
    q = x * w + c
    for path in PATHS:
        s, r, other = path(program)(x, w, c, t, 2.5)
        torch.testing.assert_close(s, (q + t.t()) * 2.5)
        torch.testing.assert_close(r, (q + t.t()).t())
        torch.testing.assert_close(other, q)
        assert other.stride() == (1, 6) or size < 2
        assert r.is_contiguous()


def test_axes_together_and_numbers_alone() -> None:
    program = (
        f"{HEAD}axes a=x.0 b=x.1 c=3\nx: float32 = input float32 [a b c]\ny: float32 = input float32 [a*b c]\n"
        "z: float32 = add x y\none: float32 = constant 1.0\nn: int64 = number\nm: float32 = to_float32 n\n"
        "two: float32 = add one m\noutput z float32 [a b*c]\noutput two float32 []\noutput one float32 [c a b]\n"
    )
    x = torch.randn(4, 5, 3)
    for path in PATHS:
        z, two, one = path(program)(x, x.view(20, 3), 6)
        torch.testing.assert_close(z, (2 * x).view(4, 15))
        assert two.item() == 7
        assert torch.equal(one, torch.ones(3, 4, 5))


def test_the_number_of_columns_and_a_kept_row() -> None:
    """Three passes: the second needs the first one's sum, the third both results, with an output of each."""
    program = (
        f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input bfloat16 [a b]\nn: float32 = columns\nt: float32 = sum x\n"
        "m: float32 = div t n\nd: float32 = sub x m\ne: float32 = exp d\nv: float32 = sum e\nr: float32 = div e v\n"
        "output m float32 [a 1]\noutput e bfloat16 [a b]\noutput r float32 [b a]\n"
    )
    for shape in ((6, 11), (3, 5000), (1, 30_000)):
        x = torch.randn(shape).bfloat16()
        m, e, r = PATHS[0](program)(x)
        exact = (x.float() - x.float().mean(-1, keepdim=True)).exp()
        torch.testing.assert_close(m, x.float().mean(-1, keepdim=True), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(e, exact.bfloat16(), rtol=1e-2, atol=0)
        torch.testing.assert_close(r, (exact / exact.sum(-1, keepdim=True)).t())


@pytest.mark.parametrize("outer", [(), (3,)])
def test_rows_without_columns(outer: tuple[int, ...]) -> None:
    """A broadcast input without elements has no memory to read."""
    rows = "a=x.0 | b=0" if outer else "| b=0"
    dims, kept = ("a b", "a") if outer else ("b", "")
    program = (
        f"{HEAD}axes {rows}\nx: float32 = input float32 [{dims}]\nw: float32 = input float32 [{kept} 1]\n"
        f"m: float32 = mul x w\ns: float32 = sum m\nz: float32 = add m s\noutput s float32 [{kept}]\n"
        f"output z float32 [{dims}]\n"
    )
    for path in PATHS:
        s, z = path(program)(torch.empty(*outer, 0), torch.empty(*outer, 1))
        assert torch.equal(s, torch.zeros(outer)) and z.shape == (*outer, 0)


@pytest.mark.parametrize(
    "shape", [(8, 9), (33, 40), (40, 33), (100, 600), (64, 5000), (3000, 17), (7, 50), (2, 70_000), (0, 9), (9, 0)]
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.float64])
def test_what_lies_across(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """A matrix and a transposed one, with elements of every size, into results of both layouts; with rows and
    without."""
    kind, type = kind_of(dtype), type_of(dtype)
    x, t = (values(dtype, max(1, torch.Size(shape).numel()), seed) for seed in (1, 2))
    x, t = x[: torch.Size(shape).numel()].view(shape), t[: torch.Size(shape).numel()].view(shape[::-1])
    chosen = torch.where(x.ne(t.t()), t.t(), x)
    for rows in ("", "| "):
        program = (
            f"{HEAD}axes a=x.0 {rows}b=x.1\nx: {type} = input {kind} [a b]\nt: {type} = input {kind} [b a]\n"
            f"m: boolean = ne x t\nz: {type} = where m t x\n"
            f"output z {kind} [a b]\noutput z {kind} [a b] order [1 0]\noutput z {kind} [b a]\n"
        )
        for threads in (1, 2):
            torch.set_num_threads(threads)
            straight, across, transposed = PATHS[0](program)(x, t)
            for got in (straight, across, transposed.t()):
                torch.testing.assert_close(got, chosen, rtol=0, atol=0, equal_nan=True)


def test_what_lies_across_in_each_of_several_matrices() -> None:
    program = (
        f"{HEAD}axes n=x.0 a=x.1 | b=x.2\nx: float32 = input float32 [n a b]\ns: float32 = sum x\n"
        "z: float32 = sub x s\noutput z float32 [n a b] order [0 2 1]\n"
    )
    x = torch.randn(3, 50, 45).transpose(1, 2)
    torch.testing.assert_close(PATHS[0](program)(x), x - x.sum(-1, keepdim=True))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
@pytest.mark.parametrize("join", [0, 1, 2])
def test_one_tensor_of_several_values(join: int, order: list[int]) -> None:
    program = (
        f"{HEAD}axes a=x.0 b=x.1 c=x.2\nx: float32 = input float32 [a b c]\ny: float32 = neg x\n"
        f"k: float32 = constant 2.0\noutput y float32 [b a c]\n"
        f"output [y k x] bfloat16 [a b c] join {join} order [{' '.join(map(str, order))}]\noutput x float32 [a b c]\n"
    )
    for shape in ((5, 6, 7), (2, 3, 2000), (300, 2, 3), (0, 4, 4)):
        x = torch.randn(shape)
        for path in PATHS:
            y, joined, same = path(program)(x)
            assert torch.equal(joined, torch.cat([-x, torch.full_like(x, 2), x], join).bfloat16())
            assert torch.equal(y, -x.transpose(0, 1)) and torch.equal(same, x)
            longest = [joined.stride(d) for d in order]
            assert longest == sorted(longest, reverse=True) or x.numel() == 0


def test_one_tensor_of_rows_and_numbers() -> None:
    program = (
        f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ns: float32 = sum x\nm: float32 = amax x\n"
        "one: float32 = constant 1.0\noutput [s m] float32 [a] join 0\noutput [one one] float32 [1] join 0\n"
    )
    x = torch.randn(40, 50)
    for path in PATHS:
        rows, numbers = path(program)(x)
        torch.testing.assert_close(rows, torch.cat([x.sum(-1), x.amax(-1)]))
        assert torch.equal(numbers, torch.ones(2))


@pytest.mark.parametrize("columns", [1, 7, 16, 20, 33, 100])
@pytest.mark.parametrize("name", ["sum", "amax", "amin", "prod"])
def test_a_row_alone_and_among_others(name: str, columns: int) -> None:
    """Rows are reduced side by side; the other rows change no bit, and no row's NaN or sign."""
    program = PATHS[0](
        f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ns: float32 = {name} x\noutput s float32 [a]\n"
    )
    x = values(torch.float32, 53 * columns).view(53, columns)
    x[::3] = torch.randn(x[::3].shape, generator=torch.Generator().manual_seed(columns))
    x[5], x[6], x[7, -1] = 0.0, -0.0, torch.nan
    together, alone = program(x), torch.cat([program(row) for row in x.split(1)])
    assert torch.equal(together.isnan(), alone.isnan())
    assert together[7].isnan() and torch.equal(together[~alone.isnan()], alone[~alone.isnan()])
    assert torch.equal(together[~alone.isnan()].signbit(), alone[~alone.isnan()].signbit())
    torch.testing.assert_close(together[::3], getattr(x[::3].double(), name)(-1).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (15, 3), (17, 300), (600, 40), (70, 3000), (2, 40_000)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_over_the_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Of an operation's result, of an input, of one that broadcasts along rows or columns, of a constant; contiguous
    and transposed."""
    kind, type = kind_of(dtype), type_of(dtype)
    program = (
        f"{HEAD}axes a=x.0 | b=x.1\nx: {type} = input {kind} [a b]\nw: {type} = input {kind} [b]\n"
        f"c: {type} = input {kind} [a 1]\nk: {type} = constant 0.5\nm: {type} = amax x\nd: {type} = sub x m\n"
        f"p: {type} = mul d w\n"
        + "".join(f"column_sum {name} {kind} [b]\n" for name in "xwckp")
        + f"output p {kind} [a b]\n"
    )
    torch.manual_seed(0)
    rows, columns = shape
    for x in (torch.randn(shape, dtype=dtype), torch.randn(columns, rows, dtype=dtype).t()):
        w, c = torch.randn(columns, dtype=dtype), torch.randn(rows, 1, dtype=dtype)
        exact, whole = x.double(), torch.ones(shape, dtype=torch.float64)
        p = (exact - exact.amax(-1, keepdim=True)) * w if columns else exact
        summed = [each.sum(0).to(dtype) for each in (exact, whole * w, whole * c, whole / 2, p)]
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results += [path(program)(x, w, c)[:5] for path in PATHS]
        for got, expected, mine in zip(results[0], summed, (x, w, c, x, p), strict=True):
            unit = 8 * torch.finfo(dtype).eps * max(1, rows) * (mine.abs().max().item() if mine.numel() else 1)
            torch.testing.assert_close(got, expected, rtol=torch.finfo(dtype).eps, atol=unit)
        for others in results[1:]:
            assert all(map(torch.equal, others, results[0])), "the same bits from any number of threads"


def test_sums_over_the_rows_of_several_columns_axes() -> None:
    program = (
        f"{HEAD}axes a=x.0 b=x.1 | c=x.2 d=x.3\nx: float32 = input float32 [a b c d]\n"
        "column_sum x float32 [d c]\ncolumn_sum x bfloat16 [c 1 d] order [2 1 0]\ncolumn_sum x float32 [c*d]\n"
    )
    x = torch.randn(5, 6, 7, 300)
    exact = x.double().sum((0, 1)).float()
    for path in PATHS:
        transposed, half, flat = path(program)(x)
        torch.testing.assert_close(transposed, exact.t())
        torch.testing.assert_close(half, exact[:, None].bfloat16(), rtol=1e-2, atol=1e-2)
        assert half.stride(0) == 1
        torch.testing.assert_close(flat, exact.flatten())


def test_a_negative_view_is_read_as_it_is() -> None:
    """The imaginary part of a conjugated tensor shares torch's memory and must be negated when it is read."""
    x = torch.randn(5, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    program = (
        f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\ny: float32 = abs x\nz: float32 = add x y\n"
        "output z float32 [a]\n"
    )
    for path in PATHS:
        torch.testing.assert_close(path(program)(x), x + x.abs())
