"""Powers with small whole and half exponents: products, roots and reciprocals, with the values of torch's pow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiled import compiled, programs_of
from fourfold.compiler.ir.powers import MOST
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict")
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.7, 1e-3, -1e4)
EXPONENTS = [n / 2 for n in (*range(-2 * MOST, 2 * MOST + 1, 5), -2, -1, 1, 2, 3, 4, 6, 7)]


def text(record: Record) -> str:
    halves = [half for captured in record.captured for half in (captured.forward, captured.backward) if half]
    return "".join(built.text for half in halves for built in half.compiled.programs)


def numbers(dtype: torch.dtype) -> Tensor:
    x = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    return torch.cat([x, -x, torch.tensor(SPECIAL, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_values(exponent: float, dtype: torch.dtype) -> None:
    record = Record()
    x = numbers(dtype)
    got, expected = compiled(lambda x: (x**exponent).abs() * (x**exponent).sign(), record)(x), x**exponent
    assert programs_of(record) == 1 and " = pow " not in text(record)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0)
    plain = compiled(lambda x: x.neg().neg() ** exponent)(x)
    zeros = (expected == 0) | expected.isinf()
    assert torch.equal(plain[zeros].signbit(), expected[zeros].signbit())


@pytest.mark.parametrize("exponent", [n / 2 for n in range(-2 * MOST, 2 * MOST + 1)])
def test_errors_in_units_of_the_last_place(exponent: float) -> None:
    """4 at most, as for other functions. The range from 1 to 4 has all mantissas with even and odd exponents. Errors
    are largest just above 1, where all floats are tested."""
    x = torch.rand(2**16, generator=torch.Generator().manual_seed(2)) * 3 + 1
    x = torch.cat([x, 1 + torch.arange(2**18) * 2.0**-23])
    exact = x.double() ** exponent
    got = compiled(lambda x: x**exponent)(x).double()
    unit = torch.exp2(exact.log2().floor() - 23)
    assert ((got - exact).abs() / unit).max() <= 4


@pytest.mark.parametrize("exponent", [16.5, -17, 64, 2.25, 1e30, math.inf, math.nan])
def test_other_exponents_are_general_powers(exponent: float) -> None:
    record = Record()
    x = numbers(torch.float32)
    torch.testing.assert_close(compiled(lambda x: x**exponent * 0.5, record)(x), x**exponent * 0.5, equal_nan=True)
    assert " = pow " in text(record)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "power",
    [
        lambda x: x**5,
        lambda x: x**-3,
        lambda x: torch.pow(x, 2.5),
        lambda x: torch.pow(x, torch.full_like(x, 6)),
        lambda x: torch.pow(x, torch.full((8,), 7, dtype=x.dtype)),
        lambda x: x * x**4 + x**-1.5,
        lambda x: torch.pow(x, torch.full((8,), 2, dtype=x.dtype) * 3),
    ],
)
def test_gradients(power: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    record = Record()
    x = torch.linspace(0.3, 2, 24, dtype=dtype).view(3, 8).requires_grad_()
    got, expected = compiled(lambda x: power(x).sqrt(), record)(x), power(x).sqrt()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x) for result in (got, expected)))
    assert programs_of(record) == 2 and " = pow " not in text(record)


def test_a_general_power_of_torchs_is_ours_where_it_is_a_product() -> None:
    counts = []
    for exponent in (2, 5, 2.25):
        record = Record()
        compiled(lambda x, exponent=exponent: x**exponent, record)(torch.rand(8))
        counts.append(programs_of(record))
    assert counts == [0, 1, 0]
