"""Sums of equal, of huge and of tiny numbers: means, variances and norms, by both generators, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiled import compiled
from fourfold.compiler.nest.jit import service
from fourfold.compiler.pipeline.calling import Program
from nests import GENERATORS, INTERPRETER, drawn, expect_the_interpreters_bits, needs_nests
from program_cases import assert_same_bits
from programs import HEAD

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EQUAL = (0.1, 1e-3, 1e3, 1e30, 8.5e37, 3e38, -3e38, 1e-30, 1e-40, 0.0)
COLUMNS = (1, 5, 31, 33, 200, 1000, 5000)
SUMS = (
    f"{HEAD}axes a=x.0 b=x.1 | c=x.2 d=x.3\nx: float32 = input float32 [a b c d]\nw: bfloat16 = input bfloat16 [c]\n"
    "p: float32 = mul x w\ns: float64 = sum_float64 p\nm: float32 = amax x\nu: float32 = sub x m\n"
    "t: float64 = sum_float64 u\nr: float32 = sum u\ns32: float32 = to_float32 s\nv: float32 = sub x s32\n"
    "output s float64 [a b]\noutput t float64 [b a]\noutput r float32 [a b]\noutput v float32 [a b c d]\n"
).replace("w: bfloat16", "w: float32")
SIDE_BY_SIDE = (
    f"{HEAD}axes n=x.0 r=x.2 | c=x.1\nx: float32 = input float32 [n c r]\nk: float64 = columns\n"
    "s: float64 = sum_float64 x\nq: float64 = div s k\nm: float32 = to_float32 q\nd: float32 = sub x m\n"
    "e: float32 = mul d d\nv: float64 = sum_float64 e\nz: float32 = sum d\noutput d float32 [n c r]\n"
    "output s float64 [n r]\noutput v float64 [n r]\noutput z float32 [n r]\n"
)
MEAN = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ns: float64 = sum_float64 x\nn: float64 = columns\n"
    "m: float64 = div s n\noutput m float64 [a]\n"
)


@needs_nests
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (40, 3, 1, 9), (1, 1, 40, 1000), (1, 2, 3, 9000), (17, 1, 64, 4)])
def test_nests_add_in_the_interpreters_order(shape: tuple[int, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    for special in (False, True):
        expect_the_interpreters_bits(SUMS, (drawn(shape, torch.float32, special), torch.randn(shape[2]).bfloat16()))
    expect_the_interpreters_bits(
        SUMS, (torch.randn(shape[:3])[..., None].expand(shape), torch.randn(shape[2]).bfloat16())
    )


@needs_nests
@pytest.mark.parametrize("shape", [(3, 2, 16), (1, 17, 70), (2, 65, 16), (1, 300, 40), (2, 1500, 17), (2, 31, 33)])
def test_rows_side_by_side_add_in_the_interpreters_order(shape: tuple[int, ...]) -> None:
    for special in (False, True):
        expect_the_interpreters_bits(SIDE_BY_SIDE, (drawn(shape, torch.float32, special),))


@pytest.mark.parametrize("generator", [INTERPRETER, pytest.param(2, marks=needs_nests)])
@pytest.mark.parametrize("columns", COLUMNS)
def test_the_sum_of_equal_numbers_is_exact(columns: int, generator: int) -> None:
    x = torch.tensor(EQUAL[:-2]).unsqueeze(1).expand(-1, columns).contiguous()
    assert Program(MEAN, "mean", generator)(x).tolist() == x[:, 0].double().tolist()


ELEMENTARY = ["sin", "cos", "tan", "exp", "exp2", "expm1", "sinh", "cosh", "tanh", "sigmoid"]


@pytest.mark.parametrize("generator", GENERATORS)
def test_sums_do_not_depend_on_what_else_a_program_computes(generator: str) -> None:
    """Whatever memory the other values need."""
    alone = f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ns: float32 = sum x\n"
    names = [f"e{k}" for k in range(40)]
    others = [f"{name}: float32 = {op} x\n" for name, op in zip(names, 4 * ELEMENTARY, strict=True)]
    stored = [f"output {name} float32 [a b]\n" for name in names]
    x = torch.randn(3, 5000)
    number = service.number(generator)
    expected = Program(f"{alone}output s float32 [a]\n", "sum", number)(x)
    found = Program("".join([alone, *others, *stored, "output s float32 [a]\n"]), "more", number)(x)
    assert_same_bits(found[-1], expected)


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]).relu(),
    "group norm": lambda x: F.group_norm(x.unsqueeze(0), x.shape[0]).relu(),
    "instance norm": lambda x: F.instance_norm(x.unsqueeze(0)).relu(),
    "batch norm": lambda x: F.batch_norm(x.unsqueeze(0), None, None, training=True).relu(),
    "variance": lambda x: x.var(-1),
    "deviation": lambda x: x.std(-1),
    "variance and mean": lambda x: torch.var_mean(x, -1)[0] + 0,
    "variance of columns": lambda x: x.t().contiguous().var(0),
    "few columns": lambda x: x[:, :5].contiguous().var(-1),
    "own norm": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5),
}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_of_equal_numbers(name: str, dtype: torch.dtype, generator: str) -> None:
    limit = torch.finfo(dtype).max
    values = [value for value in (*EQUAL, limit, limit / 4, -limit) if abs(value) <= limit]
    x = torch.tensor(values, dtype=torch.float64).to(dtype).unsqueeze(1)
    call = compiled(OF_ROWS[name], options={"generator": generator})
    is_own = name == "own norm" and dtype == torch.float64  # its mean is a sum and a division
    for columns in (64, 200, 1000):
        result = call((x[4:7] * 0 + x[:3] if is_own else x).expand(-1, columns).contiguous())
        assert result.abs().max() <= (1e-9 if is_own else 1e-39), result  # a quarter of a subnormal number is rounded


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_rows_of_equal_numbers(dtype: torch.dtype, generator: str) -> None:
    """Without deviations, a norm's gradient is that of its scale, 1 / sqrt(eps)."""
    limit = torch.finfo(dtype).max
    x = torch.tensor([1e3, -1e30, limit, limit / 4], dtype=dtype)[:, None].expand(-1, 200).contiguous().requires_grad_()
    weight = torch.linspace(-1, 1, 200, dtype=dtype)
    call = compiled(lambda x: F.layer_norm(x, (200,)) * weight, options={"generator": generator})
    (gradient,) = torch.autograd.grad(call(x).sum(), x)
    expected = ((weight - weight.mean()) * 1e-5**-0.5).expand(4, -1)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_threads_share(threads: int, generator: str) -> None:
    torch.set_num_threads(threads)
    x = torch.full((1, 70_000), 3e38)
    call = compiled(lambda x: F.layer_norm(x, x.shape[-1:]).relu(), options={"generator": generator})
    assert call(x).eq(0).all()


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(
    ("scale", "shift"), [(1, 0), (1, 1e4), (1, 1e6), (1e25, 0), (1e18, 0), (1e-30, 0), (1e37, 0), (1e-3, 1e3)]
)
def test_variances_have_the_range_and_the_digits_of_eager_mode(scale: float, shift: float, generator: str) -> None:
    x = (torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)) * scale + shift).float()

    def moments(x: Tensor) -> tuple[Tensor, ...]:
        return (x.var(-1), x.std(-1), x.var(-1, correction=0), *torch.var_mean(x, -1), *torch.std_mean(x, -1))

    results = compiled(moments, options={"generator": generator})(x)
    for result, exact in zip(results, moments(x.double()), strict=True):
        torch.testing.assert_close(result, exact.float(), rtol=3e-7, atol=1e-7 * scale)


@pytest.mark.parametrize("generator", GENERATORS)
def test_infinities_and_nan_stay(generator: str) -> None:
    x = torch.randn(4, 200)
    x[0, 3], x[1, 0], x[2, :2], x[3, 100] = torch.inf, torch.nan, torch.tensor([torch.inf, -torch.inf]), -torch.inf

    def moments(x: Tensor) -> tuple[Tensor, ...]:
        return x.mean(-1), x.var(-1), F.layer_norm(x, (200,)).relu().amax(-1)

    torch.testing.assert_close(compiled(moments, options={"generator": generator})(x), moments(x), equal_nan=True)
