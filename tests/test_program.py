"""What each operation of a program computes, and that threads and ways of calling change no bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from fourfold import _C
from program_cases import COMPARISONS, assert_same_bits, programs
from programs import BINARY, HEAD, KINDS, PATHS, REDUCTIONS, UNARY, elementwise, kind_of, type_of, values

# In float32, units in the last place of the exact result; all other operations are exact.
ULPS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "asin", "acos", "atan"), 2),
    **dict.fromkeys(
        ("tan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "pow", "atan2"), 4
    ),
    "rsqrt": 2,  # of a rounded root
}


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
    got = PATHS[0](elementwise(name, dtype, 1, dtype))(x)
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
    got = PATHS[0](elementwise(name, dtype, 2, result))(x, y)
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
    for path in PATHS:
        assert not path(elementwise(name, dtype, 2, dtype))(x, torch.zeros_like(x)).any()


@pytest.mark.parametrize("dtype", KINDS)
def test_a_choice(dtype: torch.dtype) -> None:
    program = (
        f"{HEAD}axes a=m.0\nm: boolean = input boolean [a]\nx: {type_of(dtype)} = input {kind_of(dtype)} [a]\n"
        f"y: {type_of(dtype)} = input {kind_of(dtype)} []\nr: {type_of(dtype)} = where m x y\n"
        f"output r {kind_of(dtype)} [a]\n"
    )
    mask, x, y = values(torch.bool, 500), values(dtype, 500), values(dtype, 20, 3)[7]
    for path in PATHS:
        torch.testing.assert_close(path(program)(mask, x, y), torch.where(mask, x, y), rtol=0, atol=0, equal_nan=True)


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
    torch.testing.assert_close(PATHS[0](program)(x), x.to(to), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_rounding(to: torch.dtype) -> None:
    x = values(torch.float32, 2000)
    got = PATHS[0](elementwise(f"to_{kind_of(to)}", torch.float32, 1, torch.float32))(x)
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
    got, spread = PATHS[0](program)(x)
    tolerance = (
        {"rtol": 2e-6 if name == "prod" else 1e-6, "atol": 1e-5} if dtype.is_floating_point else {"rtol": 0, "atol": 0}
    )
    torch.testing.assert_close(got, exact, equal_nan=True, **tolerance)
    assert torch.equal(spread.nan_to_num(), got.nan_to_num()[:, None].expand(rows, columns))


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
    for got, exact in zip(PATHS[0](program)(x, y, z), expected, strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=0, equal_nan=True)


def test_the_sine_and_cosine_of_one_argument_are_computed_together() -> None:
    program = (
        f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\nc: float32 = cos x\ns: float32 = sin x\n"
        "output s float32 [a]\noutput c float32 [a]\n"
    )
    x = torch.cat([values(torch.float32, 2000), torch.tensor([1e5, 1e9, 3e38, -7e20])])
    s, c = PATHS[0](program)(x)
    assert_right("sin", s, [x], torch.sin)
    assert_right("cos", c, [x], torch.cos)


CASES = {name: (text, draw) for name, text, draw in programs()}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_from_any_number_of_threads_however_it_is_called(name: str) -> None:
    text, draw = CASES[name]
    made = [path(text) for path in PATHS]
    for size in (0, 1, 17, 1025, 60_000) if name in ("norm", "column_sums", "sine_and_cosine") else (0, 1, 17, 1025):
        given = draw(size)
        torch.set_num_threads(1)
        expected = made[0](*given)
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            for program in made:
                assert_same_bits(program(*given), expected)


def test_dtypes_equal_eager_mode() -> None:
    known = _C.dtypes()
    assert {getattr(torch, name) for name, *_ in known} == set(KINDS)
    for name, kind, computed, number, size in known:
        dtype = getattr(torch, name)
        assert (kind, computed, size) == (kind_of(dtype), type_of(dtype), dtype.itemsize)
        assert torch.ops.aten.empty.memory_format([0], dtype=number).dtype == dtype


def test_operations_are_those_that_are_tested() -> None:
    known = {name: (operands, rule, cost) for name, operands, rule, cost in _C.operations()}
    others = ("conversion", "narrow", "rounding", "widening")
    pointwise = {name: one for name, one in known.items() if one[1] not in others}
    assert set(pointwise) == {*UNARY, *BINARY, *REDUCTIONS, "where"}
    for table, operands in ((UNARY, 1), (BINARY, 2), (REDUCTIONS, 1)):
        assert all(known[name][0] == operands for name in table)
    assert {name for name, (_, rule, _) in known.items() if rule == "comparison"} == set(COMPARISONS)
    assert all(cost > 0 for _, _, cost in known.values())


def test_numbers_keep_their_bits_however_a_program_is_called() -> None:
    text = f"{HEAD}axes a=1\nd: float64 = number\nn: int64 = number\nb: boolean = number\n" + (
        "output d float64 [a]\noutput n int64 [a]\noutput b boolean [a]\n"
    )
    for path in PATHS:
        d, n, b = path(text)(0.1, 2**63 - 1, True)
        assert (d.item(), n.item(), b.item()) == (0.1, 2**63 - 1, True)
