"""Pointwise programs: what the checker accepts, what each operation computes, and memory layouts."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from fourfold import _C, _native
from fourfold.compiler.calling import Program, ProgramByDispatcher
from program_cases import assert_same_bits, programs
from programs import BINARY, HEAD, KINDS, REDUCTIONS, ROADS, UNARY, elementwise, kind_of, type_of, values

# In float32, units in the last place of the exact result; all other operations are exact.
ULPS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "asin", "acos", "atan"), 2),
    **dict.fromkeys(
        ("tan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "pow", "atan2"), 4
    ),
    "rsqrt": 2,  # of a rounded root
}
SIZES = (0, 1, 7, 64, 1023, 1024, 1025, 5000)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def cases(table):
    return [
        pytest.param(name, dtype, id=f"{name}-{kind_of(dtype)}")
        for name, (_, dtypes) in table.items()
        for dtype in dtypes
    ]


def assert_right(name: str, got: torch.Tensor, operands: list[torch.Tensor], reference) -> None:
    if got.dtype == torch.float32 and name in ULPS:
        exact = reference(*(operand.double() for operand in operands))
        if name == "sigmoid":  # 1 / (1 + exp(-x)), as in torch
            exact = exact.masked_fill(torch.exp(-operands[0]) == torch.inf, 0)
        with_nan = exact.isnan()
        assert torch.equal(got.isnan(), with_nan), name
        expected = exact.float()
        unit = torch.maximum(
            torch.nextafter(expected.abs(), torch.tensor(torch.inf)) - expected.abs(), torch.tensor(1e-45)
        )
        finite = expected.isfinite() & ~with_nan
        error = (got.double() - exact).abs() / unit.double()
        assert error[finite].max().item() <= ULPS[name], f"{name}: {error[finite].max().item()} ulp"
        assert torch.equal(got[~finite & ~with_nan], expected[~finite & ~with_nan])
        zero = (expected == 0) & (got == 0)
        assert torch.equal(got[zero].signbit(), expected[zero].signbit())
    elif got.dtype == torch.float64 and name in ULPS:
        torch.testing.assert_close(got, reference(*operands), rtol=1e-14, atol=1e-300, equal_nan=True)
    else:
        torch.testing.assert_close(got, reference(*operands), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), cases(UNARY))
def test_an_operation_of_one(name: str, dtype: torch.dtype) -> None:
    x = values(dtype, 3000)
    got = ROADS[0](elementwise(name, dtype, 1, dtype))(x)
    assert_right(name, got, [x], UNARY[name][0])


@pytest.mark.parametrize(("name", "dtype"), cases(BINARY))
def test_an_operation_of_two(name: str, dtype: torch.dtype) -> None:
    x, y = values(dtype, 3000, 1), values(dtype, 3000, 2)
    if name.startswith("integer_"):
        y = torch.where(y % 7 == 0, y // (1 << 20) | 1, y)
        y[::5] = -1
    if name.startswith("shift_"):
        y = y % 80 - 8
    result = torch.bool if name in COMPARISONS else dtype
    got = ROADS[0](elementwise(name, dtype, 2, result))(x, y)
    if name.startswith("shift_"):  # in torch a shift by too many bits depends on the processor
        inside = (y >= 0) & (y < x.element_size() * 8)
        got, x, y = got[inside], x[inside], y[inside]
    if name in ("integer_floor_divide", "integer_trunc_divide", "integer_remainder", "integer_fmod"):
        fits = (x != torch.iinfo(dtype).min) | (y != -1)
        got, x, y = got[fits], x[fits], y[fits]
    assert_right(name, got, [x, y], BINARY[name][0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", [name for name in BINARY if name.startswith("integer_")])
def test_nothing_faults_where_integers_are_divided_by_zero(name: str, dtype: torch.dtype) -> None:
    x = values(dtype, 100, 1)
    for road in ROADS:
        assert not road(elementwise(name, dtype, 2, dtype))(x, torch.zeros_like(x)).any()


@pytest.mark.parametrize("dtype", KINDS)
def test_a_choice(dtype: torch.dtype) -> None:
    program = (
        f"{HEAD}axes a=m.0\nm: boolean = input boolean [a]\nx: {type_of(dtype)} = input {kind_of(dtype)} [a]\n"
        f"y: {type_of(dtype)} = input {kind_of(dtype)} []\nr: {type_of(dtype)} = where m x y\n"
        f"output r {kind_of(dtype)} [a]\n"
    )
    mask, x, y = values(torch.bool, 500), values(dtype, 500), values(dtype, 20, 3)[7]
    for road in ROADS:
        torch.testing.assert_close(road(program)(mask, x, y), torch.where(mask, x, y), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("dtype", KINDS)
def test_a_conversion(dtype: torch.dtype, to: torch.dtype) -> None:
    """Values that the other dtype can represent: other conversions depend on the processor."""
    x = values(dtype, 1000)
    if dtype.is_floating_point and not to.is_floating_point and to != torch.bool:
        x = x.nan_to_num(1, 100, 50).abs().clamp(0, 100)
    narrow = {torch.uint8: "to_uint8", torch.int8: "to_int8", torch.int16: "to_int16"}.get(to)
    wide = type_of(to)
    program = f"{HEAD}axes a=x.0\nx: {type_of(dtype)} = input {kind_of(dtype)} [a]\ny: {wide} = to_{wide} x\n"
    program += f"z: {wide} = {narrow} y\n" if narrow else ""
    program += f"output {'z' if narrow else 'y'} {kind_of(to)} [a]\n"
    torch.testing.assert_close(ROADS[0](program)(x), x.to(to), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_rounding(to: torch.dtype) -> None:
    x = values(torch.float32, 2000)
    got = ROADS[0](elementwise(f"to_{kind_of(to)}", torch.float32, 1, torch.float32))(x)
    torch.testing.assert_close(got, x.to(to).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", (1, 3, 60, 700, 1500, 20_000))
@pytest.mark.parametrize(("name", "dtype"), cases(REDUCTIONS))
def test_a_reduction(name: str, dtype: torch.dtype, columns: int) -> None:
    rows = 1 if columns > 10_000 else 40
    x = values(dtype, rows * columns).view(rows, columns)
    if dtype.is_floating_point and name in ("sum", "prod"):
        x = torch.randn(rows, columns, dtype=dtype) * (1 if name == "sum" else 0.1) + (name == "prod")
    program = f"{HEAD}axes a=x.0 | b=x.1\nx: {type_of(dtype)} = input {kind_of(dtype)} [a b]\n"
    program += f"r: {type_of(dtype)} = {name} x\noutput r {kind_of(dtype)} [a]\noutput r {kind_of(dtype)} [a b]\n"
    reference = REDUCTIONS[name][0]
    exact = reference(x.double()).to(dtype) if dtype == torch.float32 else reference(x)
    got, spread = ROADS[0](program)(x)
    tolerance = (
        {"rtol": 2e-6 if name == "prod" else 1e-6, "atol": 1e-5} if dtype.is_floating_point else {"rtol": 0, "atol": 0}
    )
    torch.testing.assert_close(got, exact, equal_nan=True, **tolerance)
    assert torch.equal(spread.nan_to_num(), got.nan_to_num()[:, None].expand(rows, columns))


SOFTMAX = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nm: float32 = amax x\nd: float32 = sub x m\n"
    "e: float32 = exp d\ns: float32 = sum e\ny: float32 = div e s\noutput y float32 [a b]\n"
)


@pytest.mark.parametrize(
    "shape", [(0, 5), (5, 0), (1, 1), (7, 3), (50, 60), (9, 1000), (3, 3000), (1, 40_000), (2, 20_000)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_in_stages(shape: tuple[int, int], transposed: bool) -> None:
    x = torch.randn(shape[::-1]).t() if transposed else torch.randn(shape)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results += [road(SOFTMAX)(x) for road in ROADS]
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
    for road in ROADS:
        s, r, other = road(program)(x, w, c, t, 2.5)
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
    for road in ROADS:
        z, two, one = road(program)(x, x.view(20, 3), 6)
        torch.testing.assert_close(z, (2 * x).view(4, 15))
        assert two.item() == 7
        assert torch.equal(one, torch.ones(3, 4, 5))


def test_an_integer_that_no_64_bits_hold() -> None:
    text = f"{HEAD}axes a=x.0\nx: int64 = input int64 [a]\nn: int64 = number\nz: int64 = add x n\noutput z int64 [a]\n"
    for road in ROADS:
        program = road(text)
        assert program(torch.zeros(2, dtype=torch.int64), -(2**63)).tolist() == [-(2**63)] * 2
        with pytest.raises(OverflowError):
            program(torch.zeros(2, dtype=torch.int64), 2**63)


@pytest.mark.skipif(Program is ProgramByDispatcher, reason="this build has no calls compiled for this torch")
def test_what_was_never_made_or_is_made_again() -> None:
    unmade = Program.__new__(Program)
    with pytest.raises(TypeError):
        unmade(torch.ones(1))
    text = f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\noutput x float32 [a]\n"
    made = Program(text)
    for again in (text, "no program"):
        with pytest.raises(TypeError, match="program: expected to be made once"):
            made.__init__(again)
    assert made(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(TypeError, match="expected a Graph that was made of a function"):
        _native.module.Compiled(_native.module.Graph.__new__(_native.module.Graph), None, [], [])


@pytest.mark.skipif(Program is ProgramByDispatcher, reason="this build has no calls compiled for this torch")
def test_graphs_and_compiled_functions_that_were_never_made_or_are_made_again() -> None:
    kinds = _native.module.Graph, _native.module.Compiled, _native.module.Call
    for kind in kinds:
        with pytest.raises(TypeError):
            kind.__new__(kind)([torch.ones(1)])
    graph = _native.module.Graph(lambda inputs: (inputs[0] + 1,), None, [], [])
    compiled = _native.module.Compiled(graph, None, [], [False])
    call = _native.module.Call("fourfold::softshrink", 0, None, None)
    for made, again, name in (
        (graph, (len, None, [], []), "graph"),
        (compiled, (graph, None, [], []), "compiled function"),
        (call, ("fourfold::gru", 1, None, None), "call"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected to be made once$"):
            made.__init__(*again)
    assert graph([torch.ones(1)])[0].item() == compiled(torch.ones(1))[0].item() == 2
    assert call(torch.ones(1), 0.5).item() == 0.5


@pytest.mark.skipif(Program is ProgramByDispatcher, reason="this build has no calls compiled for this torch")
def test_calls_of_what_could_not_be_made() -> None:
    for kind, wrong in (
        (_native.module.Graph, (len, [None], [], [])),
        (_native.module.Compiled, (None, None, [], [])),
        (_native.module.Call, ("fourfold::nothing", 0, None, None)),
    ):
        made = kind.__new__(kind)
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            made.__init__(*wrong)
        with pytest.raises(TypeError):
            made([torch.ones(1)])


def test_the_number_of_columns_and_a_kept_row() -> None:
    """Three passes: the second needs the first one's sum, the third both results, with an output of each."""
    program = (
        f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input bfloat16 [a b]\nn: float32 = columns\nt: float32 = sum x\n"
        "m: float32 = div t n\nd: float32 = sub x m\ne: float32 = exp d\nv: float32 = sum e\nr: float32 = div e v\n"
        "output m float32 [a 1]\noutput e bfloat16 [a b]\noutput r float32 [b a]\n"
    )
    for shape in ((6, 11), (3, 5000), (1, 30_000)):
        x = torch.randn(shape).bfloat16()
        m, e, r = ROADS[0](program)(x)
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
    for road in ROADS:
        s, z = road(program)(torch.empty(*outer, 0), torch.empty(*outer, 1))
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
            straight, across, transposed = ROADS[0](program)(x, t)
            for got in (straight, across, transposed.t()):
                torch.testing.assert_close(got, chosen, rtol=0, atol=0, equal_nan=True)


def test_what_lies_across_in_each_of_several_matrices() -> None:
    program = (
        f"{HEAD}axes n=x.0 a=x.1 | b=x.2\nx: float32 = input float32 [n a b]\ns: float32 = sum x\n"
        "z: float32 = sub x s\noutput z float32 [n a b] order [0 2 1]\n"
    )
    x = torch.randn(3, 50, 45).transpose(1, 2)
    torch.testing.assert_close(ROADS[0](program)(x), x - x.sum(-1, keepdim=True))


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
        for road in ROADS:
            y, joined, same = road(program)(x)
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
    for road in ROADS:
        rows, numbers = road(program)(x)
        torch.testing.assert_close(rows, torch.cat([x.sum(-1), x.amax(-1)]))
        assert torch.equal(numbers, torch.ones(2))


@pytest.mark.parametrize("columns", [1, 7, 16, 20, 33, 100])
@pytest.mark.parametrize("name", ["sum", "amax", "amin", "prod"])
def test_a_row_alone_and_among_others(name: str, columns: int) -> None:
    """Rows are reduced side by side; the other rows change no bit, and no row's NaN or sign."""
    program = ROADS[0](
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
            results += [road(program)(x, w, c)[:5] for road in ROADS]
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
    for road in ROADS:
        transposed, half, flat = road(program)(x)
        torch.testing.assert_close(transposed, exact.t())
        torch.testing.assert_close(half, exact[:, None].bfloat16(), rtol=1e-2, atol=1e-2)
        assert half.stride(0) == 1
        torch.testing.assert_close(flat, exact.flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_operations_at_once(dtype: torch.dtype) -> None:
    """Each rounds separately, whichever operand of the second the first one is; also with scalars."""
    kind = kind_of(dtype)
    apply = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
    lines, expected = [], []
    x, y, z = (values(dtype, 3000, seed) for seed in (1, 2, 3))
    three = {"x": x, "y": y, "z": z, "k": torch.tensor(1.1, dtype=dtype)}
    for inner, outer in itertools.product(apply, apply):
        for a, b, c in ("xyz", "kyz", "xkz", "xyk"):
            made = apply[inner](three[a], three[b])
            for swapped in (False, True):
                name = f"r{len(expected)}"
                lines += [f"i_{name}: {kind} = {inner} {a} {b}"]
                lines += [f"{name}: {kind} = {outer} {f'{c} i_{name}' if swapped else f'i_{name} {c}'}"]
                expected.append(apply[outer](*((three[c], made) if swapped else (made, three[c]))))
    inputs = "".join(f"{name}: {kind} = input {kind} [a]\n" for name in "xyz")
    outputs = "".join(f"output r{k} {kind} [a]\n" for k in range(len(expected)))
    program = f"{HEAD}axes a=x.0\n{inputs}k: {kind} = constant 1.1\n" + "\n".join(lines) + f"\n{outputs}"
    for got, exact in zip(ROADS[0](program)(x, y, z), expected, strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=0, equal_nan=True)


def test_the_sine_and_cosine_of_one_argument_are_computed_together() -> None:
    program = (
        f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\nc: float32 = cos x\ns: float32 = sin x\n"
        "output s float32 [a]\noutput c float32 [a]\n"
    )
    x = torch.cat([values(torch.float32, 2000), torch.tensor([1e5, 1e9, 3e38, -7e20])])
    s, c = ROADS[0](program)(x)
    assert_right("sin", s, [x], torch.sin)
    assert_right("cos", c, [x], torch.cos)


CASES = {name: (text, draw) for name, text, draw in programs()}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_from_any_number_of_threads_however_it_is_called(name: str) -> None:
    text, draw = CASES[name]
    made = [road(text) for road in ROADS]
    for size in (0, 1, 17, 1025, 60_000) if name in ("norm", "column_sums", "sine_and_cosine") else (0, 1, 17, 1025):
        given = draw(size)
        torch.set_num_threads(1)
        expected = made[0](*given)
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            for program in made:
                assert_same_bits(program(*given), expected)


def test_dtypes_are_torchs() -> None:
    known = _C.dtypes()
    assert {getattr(torch, name) for name, *_ in known} == set(KINDS)
    for name, kind, computed, number, size in known:
        dtype = getattr(torch, name)
        assert (kind, computed, size) == (kind_of(dtype), type_of(dtype), dtype.itemsize)
        assert torch.ops.aten.empty.memory_format([0], dtype=number).dtype == dtype


def test_operations_are_those_that_are_tested() -> None:
    known = {name: (operands, rule, cost) for name, operands, rule, cost in _C.operations()}
    pointwise = {name: one for name, one in known.items() if one[1] not in ("conversion", "narrow", "rounding")}
    assert set(pointwise) == {*UNARY, *BINARY, *REDUCTIONS, "where"}
    for table, operands in ((UNARY, 1), (BINARY, 2), (REDUCTIONS, 1)):
        assert all(known[name][0] == operands for name in table)
    assert {name for name, (_, rule, _) in known.items() if rule == "comparison"} == set(COMPARISONS)
    assert all(cost > 0 for _, _, cost in known.values())


X = "x: float32 = input float32 [a]\n"
REFUSED = [
    ("", "line 1: expected 'fourfold program 1'"),
    ("fourfold program 2\n", "line 1: expected 'fourfold program 1'"),
    (HEAD, "line 2: expected 'axes'"),
    (f"{HEAD}axes a=x.0\n", "line 2: expected an input's dimension, but got 'x.0'"),
    (f"{HEAD}axes a=3\n", "expected an output, and there is none"),
    (f"{HEAD}axes a=-3\n", "line 2: expected a size of at least 0, but got '-3'"),
    (f"{HEAD}axes a=3 a=4\n", "line 2: expected each axis once, but got 'a'"),
    (f"{HEAD}axes a=3 | b=3 | c=3\n", "line 2: expected one |, but got '|'"),
    (
        f"{HEAD}axes a=x.1\n{X}output x float32 [a]\n",
        "expected a dimension that runs along this axis alone, but got 'x.1'",
    ),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = sinus x\n", "line 4: expected an operation, but got 'sinus'"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = add x\n", "line 4: expected 2 operands of add, but got 'x'"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = sin z\n", "line 4: expected a value that stands above, but got 'z'"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = sin y\n", "line 4: expected a value that stands above, but got 'y'"),
    (f"{HEAD}axes a=x.0\n{X}x: float32 = sin x\n", "line 4: expected a name that is not taken, but got 'x'"),
    (f"{HEAD}axes a=x.0\n{X}y: float64 = sin x\n", "line 4: expected float32, but got 'float64'"),
    (
        f"{HEAD}axes a=x.0\n{X}y: float32 = bitwise_not x\n",
        "line 4: expected a type that bitwise_not takes, but got 'x'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}y: float32 = sum x\n",
        "line 4: expected a reduction in a program that has rows only, but got 'sum'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}y: float32 = where x x x\n",
        "line 4: expected a boolean as where's first operand, but got 'x'",
    ),
    (f"{HEAD}axes a=x.0\n{X}k: int32 = constant 9999999999\n", "line 4: expected 32 bits, but got '9999999999'"),
    (f"{HEAD}axes a=x.0\n{X}k: float32 = constant 1,5\n", "line 4: expected a number, but got '1,5'"),
    (f"{HEAD}axes a=x.0\n{X}output x float64 [a]\n", "line 4: expected a dtype of the value's type, but got 'float64'"),
    (
        f"{HEAD}axes a=x.0 b=3\n{X}output x float32 [a]\n",
        "line 4: expected all the axes, or all that number the rows, or none",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}output x float32 [a a]\n",
        "line 4: expected an axis that this tensor does not have yet, but got 'a'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}output x float32 []\n",
        "line 4: expected the dimensions that the value differs along, but got 'x'",
    ),
    (f"{HEAD}axes a=x.0\n{X}output x float32 [a] order [1]\n", "line 4: expected each dimension once, but got '1'"),
    (f"{HEAD}axes a=x.0\n{X}output x float32 [a\n", "line 4: expected ]"),
    (
        f"{HEAD}axes a=x.0\nx: float16 = input float16 [a]\n",
        "line 3: expected boolean, int32, int64, float32 or float64, but got",
    ),
    (f"{HEAD}axes a=x.0\nx: int32 = input float32 [a]\n", "line 3: expected float32, but got 'int32'"),
    (f"{HEAD}axes a=x.0\n{X}9: float32 = sin x\n", "line 4: expected a name of letters, digits and _, but got '9'"),
    (f"{HEAD}axes a=x.0\n{X}n: float32 = columns\n", "line 4: expected columns in a program that has rows, alone"),
    (f"{HEAD}axes a=x.0\n{X}output [x x] float32 [a]\n", "line 4: expected join, and the dimension"),
    (
        f"{HEAD}axes a=x.0\n{X}output [x x] float32 [a] join 1\n",
        "line 4: expected a dimension that the parts have, but got '1'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}output [] float32 [a] join 0\n",
        "line 4: expected an output's value, dtype and dimensions",
    ),
    (f"{HEAD}axes a=x.0\n{X}output [x\n", "line 4: expected an output's value, dtype and dimensions, but got '[x'"),
    (
        f"{HEAD}axes a=x.0\n{X}output [x y] float32 [a] join 0\n",
        "line 4: expected a value that stands above, but got 'y'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}column_sum x float32 [a]\n",
        "line 4: expected a column sum in a program that has rows only",
    ),
    (
        f"{HEAD}axes a=x.0 | b=3\nx: float32 = input float32 [a b]\ncolumn_sum x float32 [a]\n",
        "line 4: expected all the axes of the columns, but got 'x'",
    ),
    (
        f"{HEAD}axes a=x.0 | b=3\nx: float32 = input float32 [a b]\ncolumn_sum x float64 [b]\n",
        "line 4: expected a floating dtype of the value's type, but got 'float64'",
    ),
    (
        f"{HEAD}axes a=x.0 | b=3\nx: int32 = input int32 [a b]\ncolumn_sum x int32 [b]\n",
        "line 4: expected a floating dtype of the value's type, but got 'int32'",
    ),
    (f"{HEAD}axes {' '.join(f'a{k}=2' for k in range(25))}\n", "line 2: expected at most 24 axes, but got 'a24'"),
]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_what_is_no_program_is_refused(text: str, sentence: str, road: type) -> None:
    with pytest.raises(ValueError) as error:
        road(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize("road", ROADS)
def test_tensors_that_are_not_the_programs_are_refused(road: type) -> None:
    program = road(f"{HEAD}axes a=x.0\n{X}y: float32 = input float32 [a]\nz: float32 = add x y\noutput z float32 [a]\n")
    x = torch.randn(4)
    refused = [
        ((x,), TypeError, "expected 2 inputs, but got 1"),
        ((x, x[:3]), ValueError, "expected dimension 0 of y to have size 4, but got 3"),
        ((x, x.double()), ValueError, "expected another dtype of y"),
        ((x, x[None]), ValueError, "expected y to have 1 dimensions, but got 2"),
        ((x, x.to(torch.complex64)), ValueError, "program: expected"),
        ((x, x.to_sparse()), ValueError, "program: expected a"),
        ((x, torch.empty(4, device="meta")), ValueError, "program: expected a"),
    ]
    for arguments, kind, sentence in refused:
        with pytest.raises(kind, match=sentence):
            program(*arguments)
    torch.testing.assert_close(program(x, x), x + x)


ADD = f"{HEAD}axes a=x.0\n{X}k: float32 = number\nn: int32 = number\nm: float32 = to_float32 n\n" + (
    "y: float32 = add x k\nz: float32 = add y m\noutput z float32 [a]\n"
)

# 3 times b overflows to 2 in 64 bits: memory for two elements.
OVERFLOWING = f"{HEAD}axes a=3 | b=6148914691236517206\nc: float32 = constant 1.0\noutput c float32 [a*b]\n"


@pytest.mark.parametrize(
    ("text", "tensors", "floats", "integers", "sentence"),
    [
        (ADD, [], [1.0], [2], "expected more tensors than the 0"),
        (ADD, [torch.ones(2)], [], [2], "expected more floats than the 0"),
        (ADD, [torch.ones(2)], [1.0], [], "expected more integers than the 0"),
        (ADD, [torch.ones(2)] * 2, [1.0], [2], "expected 1 tensors, 1 floats and 1 integers, but got 2, 1 and 1"),
        (ADD, [torch.ones(2)], [1.0], [2**31], "expected an integer of 32 bits, but got 2147483648"),
        (ADD, [torch.ones(2, dtype=torch.complex64)], [1.0], [2], "expected a dtype that programs support"),
        (ADD, [torch.ones(2).to_sparse()], [1.0], [2], "expected strided tensors"),
        (ADD, [torch.empty(2, device="meta")], [1.0], [2], "no backend runs programs on torch's device type"),
        ("no program", [torch.ones(2)], [], [], "line 1: expected 'fourfold program 1'"),
        (OVERFLOWING, [], [], [], "expected axes whose sizes have a product below 2"),
    ],
)
def test_the_operator_rejects_wrong_arguments(
    text: str, tensors: list[torch.Tensor], floats: list[float], integers: list[int], sentence: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^program: .*{sentence}"):
        torch.ops.fourfold._run_program(text, tensors, floats, integers)
    (out,) = torch.ops.fourfold._run_program(ADD, [torch.ones(2)], [0.5], [-(2**31)])
    assert torch.equal(out, torch.full((2,), 1.5 - 2.0**31))


def test_numbers_keep_their_bits_however_a_program_is_called() -> None:
    text = f"{HEAD}axes a=1\nd: float64 = number\nn: int64 = number\nb: boolean = number\n" + (
        "output d float64 [a]\noutput n int64 [a]\noutput b boolean [a]\n"
    )
    for road in ROADS:
        d, n, b = road(text)(0.1, 2**63 - 1, True)
        assert (d.item(), n.item(), b.item()) == (0.1, 2**63 - 1, True)


def test_a_negative_view_is_read_as_it_is() -> None:
    """The imaginary part of a conjugated tensor shares torch's memory and must be negated when it is read."""
    x = torch.randn(5, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    program = f"{HEAD}axes a=x.0\n{X}y: float32 = abs x\nz: float32 = add x y\noutput z float32 [a]\n"
    for road in ROADS:
        torch.testing.assert_close(road(program)(x), x + x.abs())


WHOLE = [
    SOFTMAX,
    elementwise("pow", torch.float32, 2, torch.float32),
    f"{HEAD}axes a=x.0 b=4 | c=2\nx: int32 = input int8 [a 1 c]\ny: int32 = to_int8 x\n"
    "output y int8 [c b a] order [2 0 1]\n",
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ny: float32 = neg x\n"
    "output [x y] float32 [a b] join 1 order [1 0]\ncolumn_sum y float32 [b]\ncolumn_sum x float16 [1 b] order [1 0]\n",
]


@pytest.mark.parametrize("seed", range(12))
def test_broken_programs_crash_nothing(seed: int) -> None:
    """Letters, words and lines deleted, duplicated and swapped: an error, or a program that runs or rejects its
    tensors."""
    rng = random.Random(seed)
    ran = 0
    for _ in range(250):
        text = broken(rng, rng.choice(WHOLE))
        try:
            program = ROADS[0](text)
        except ValueError as error:
            assert str(error).startswith("program: line "), (text, error)
            continue
        try:
            program(*(torch.ones(3, 2) for _ in range(text.count("= input"))))
        except (ValueError, TypeError) as error:
            assert str(error).startswith("program: expected"), (text, error)
        ran += 1
    assert ran > 0


def broken(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 3)):
        separator = rng.choice(["", " ", "\n"])
        parts = list(text) if not separator else text.split(separator)
        k = rng.randrange(len(parts))
        change = rng.randrange(4)
        if change == 0:
            del parts[k]
        elif change == 1:
            parts.insert(k, rng.choice(parts))
        elif change == 2:
            other = rng.randrange(len(parts))
            parts[k], parts[other] = parts[other], parts[k]
        else:
            parts[k] = rng.choice(["0", "9" * 30, "\x00", "é", "a", "|", "[", "]", "*", ".", "=", "-1", "input", "sum"])
        text = separator.join(parts)
    return text
