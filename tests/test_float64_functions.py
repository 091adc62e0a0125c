"""The float64 elementary functions satisfy the error bounds stated in the headers of cpp/cpu/kernels, for dense, random
and special values; division is exact."""

from __future__ import annotations

import math

import mpmath
import numpy
import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.compiler.pipeline.calling import Program
from programs import elementwise

wide = pytest.mark.skipif(
    numpy.finfo(numpy.longdouble).nmant < 63, reason="the reference is computed in numbers longer than float64"
)
# Below avx2 the C library's functions are used, with errors within 1 ulp for most, 2 for some.
BY_LIBRARY = fourfold.cpu_capability() == "default"
EDGES = (0, 5e-324, 1e-310, 2.0**-1022, 1e-300, 1e-160, 2.0**-60, 1e-8, 0.3, 0.5, 0.5625, 1, 1.5, 2, 26.5432, 27, 28)
EDGES += (
    708.0,
    708.4,
    709.782712893384,
    709.79,
    710.4758600739439,
    710.476,
    745.13,
    745.14,
    746,
    1022,
    1023.9999,
    1024,
)
EDGES += (1074, 1075, 1076, 1e4, 1e10, 2.0**40, 2.0**41, 1e22, 1e154, 1e155, 1e300, 1.7976931348623157e308, math.inf)


def sigmoid(x: numpy.ndarray) -> numpy.ndarray:
    """Zero where exp(-x) is infinite in float64, as in torch."""
    return numpy.where(x < -709.782712893384, 0, 1 / (1 + numpy.exp(-x)))


def of_mpmath(name: str):
    def reference(x: numpy.ndarray) -> numpy.ndarray:
        with mpmath.workprec(100):
            values = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x.clip(-100, 100)]
            return numpy.array([numpy.longdouble(mpmath.nstr(v, 30)) for v in values])

    return reference


# Error bound in ulp, the end of the function's range, and the reference.
FUNCTIONS = {
    "exp": (1, 745, numpy.exp),
    "exp2": (1.2, 1075, numpy.exp2),
    "expm1": (1.5, 710, numpy.expm1),
    "sigmoid": (2.5, 745, sigmoid),
    "tanh": (2, 20, numpy.tanh),
    "log": (1.5, 100, numpy.log),
    "log2": (1.6, 100, numpy.log2),
    "log10": (1.6, 100, numpy.log10),
    "log1p": (1.5, 100, numpy.log1p),
    "sin": (1, 1e6, numpy.sin),
    "cos": (1, 1e6, numpy.cos),
    "tan": (2.5, 1e6, numpy.tan),
    "sinh": (2, 711, numpy.sinh),
    "cosh": (2, 711, numpy.cosh),
    "asin": (1.6, 1, numpy.arcsin),
    "acos": (1.2, 1, numpy.arccos),
    "atan": (1.6, 100, numpy.arctan),
    "asinh": (2.1, 100, numpy.arcsinh),
    "acosh": (2.1, 100, numpy.arccosh),
    "atanh": (2.1, 1, numpy.arctanh),
    "erf": (1.7, 6, of_mpmath("erf")),
    "erfc": (2.8, 28, of_mpmath("erfc")),
}
SLOW = ("erf", "erfc")  # their reference is slow


def numbers(scale: float, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    plain = torch.rand(4, count, generator=generator, dtype=torch.float64)
    magnitudes = torch.exp2(torch.randint(-80, 10, (count,), generator=generator).double())
    bits = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator).view(torch.float64)
    edges = torch.tensor([*EDGES, *(-edge for edge in EDGES), math.nan], dtype=torch.float64)
    near = torch.linspace(-4, 4, count, dtype=torch.float64)
    of_scale, small = scale * (2 * plain[0] - 1), magnitudes * (plain[1] + 1) * (2 * (plain[2] > 0.5) - 1)
    about_one = 1 + (plain[3] - 0.5) * magnitudes.clamp(max=0.5)
    quarters = torch.round(of_scale * 1000) * (math.pi / 2)  # where sines and cosines are nearly zero
    return torch.cat([edges, near, of_scale, small, bits[~bits.isnan()], about_one, quarters])


def assert_within(name: str, got: Tensor, exact: numpy.ndarray, bound: float) -> None:
    with numpy.errstate(all="ignore"):
        expected = exact.astype(numpy.float64)
    got = got.numpy()
    assert (numpy.isnan(got) == numpy.isnan(expected)).all(), name
    finite = numpy.isfinite(expected) & numpy.isfinite(got)
    rest = ~finite & ~numpy.isnan(expected)
    # The last number before infinity may be rounded to either side.
    assert ((got == expected) | (numpy.abs(exact) >= numpy.finfo(numpy.float64).max))[rest].all(), name
    assert (numpy.signbit(got) == numpy.signbit(expected))[finite].all(), name
    unit = numpy.maximum(numpy.spacing(numpy.abs(expected)), 5e-324)
    error = numpy.abs(got[finite].astype(numpy.longdouble) - exact[finite]) / unit[finite]
    assert error.max() <= bound, f"{name}: {error.max()} ulp"


@wide
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_within_its_bound(name: str) -> None:
    bound, scale, reference = FUNCTIONS[name]
    x = numbers(scale, 1000 if name in SLOW else 100_000)
    got = Program(elementwise(name, torch.float64, 1, torch.float64))(x)
    with numpy.errstate(all="ignore"):
        exact = reference(x.numpy().astype(numpy.longdouble))
    assert_within(name, got, exact, max(bound, 2.5) if BY_LIBRARY else bound)


SPECIAL = (0.0, 5e-324, 1e-310, 0.5, 1, 1.5, 2, 3, 1074, 1074.5, 1e3, 2.0**53 - 1, 2.0**53 + 2, 1e308, math.inf)


def pairs() -> tuple[Tensor, Tensor]:
    special = torch.tensor([*SPECIAL, *(-value for value in SPECIAL), math.nan], dtype=torch.float64)
    return torch.cartesian_prod(special, special).unbind(1)


@wide
def test_pow_is_within_its_bound() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(300_000, generator=generator, dtype=torch.float64)
    spread = torch.cat([4 * x[:100_000], 0.7 + x[100_000:200_000], torch.exp2(2000 * x[200_000:] - 1000)])
    y = (torch.rand(len(spread), generator=generator, dtype=torch.float64) * 1490 - 745) / spread.log()
    x, y = (torch.cat(both) for both in zip(pairs(), (spread, y), strict=True))
    got = Program(elementwise("pow", torch.float64, 2, torch.float64))(x, y)
    with numpy.errstate(all="ignore"):
        exact = numpy.power(x.numpy().astype(numpy.longdouble), y.numpy().astype(numpy.longdouble))
    assert_within("pow", got, exact, 1.1)


@wide
def test_atan2_is_within_its_bound() -> None:
    of = pairs()
    x, y = (torch.cat([of[k], numbers(100, 20_000)]) for k in (0, 1))
    y = torch.cat([y[: len(of[0])], y[len(of[0]) :].roll(1234)])
    got = Program(elementwise("atan2", torch.float64, 2, torch.float64))(y, x)
    exact = numpy.arctan2(y.numpy().astype(numpy.longdouble), x.numpy().astype(numpy.longdouble))
    assert_within("atan2", got, exact, 1.6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fmod_is_exact(dtype: torch.dtype) -> None:
    """For quotients of all magnitudes, and for multiples of the divisor and their neighbours."""
    generator = torch.Generator().manual_seed(3)
    count = 200_000
    y = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    multiples = (y * torch.randint(1, 10_000, (count,), generator=generator)).to(dtype)
    sizes = torch.exp2(torch.randint(-60, 60, (count,), generator=generator).double())
    x = torch.cat([multiples, multiples.nextafter(torch.zeros(1, dtype=dtype)), (y.double() * sizes).to(dtype)])
    x = torch.cat([x, pairs()[0].to(dtype)])
    y = torch.cat([y, y, y.roll(1), pairs()[1].to(dtype)])
    with numpy.errstate(all="ignore"):
        expected = numpy.fmod(x.numpy(), y.numpy())
    got = Program(elementwise("fmod", dtype, 2, dtype))(x, y).numpy()
    assert ((got == expected) | numpy.isnan(expected)).all() and (numpy.isnan(got) == numpy.isnan(expected)).all()
    assert (numpy.signbit(got) == numpy.signbit(expected))[~numpy.isnan(expected)].all()


@pytest.mark.parametrize("name", ["floor_divide", "trunc_divide", "remainder", "fmod"])
def test_division_of_int32_is_exact(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randint(-(2**31), 2**31, (2, 200_000), generator=generator) >> torch.randint(0, 31, (2, 200_000))
    edges = torch.tensor([-(2**31), 2**31 - 1, -1, 1, 2, -2, 3, 46341, 0])
    both = torch.cartesian_prod(edges, edges[:-1])
    x, y = torch.cat([x, both[:, 0]]), torch.cat([torch.where(y == 0, 1, y), both[:, 1]])
    expected = {
        "floor_divide": lambda: x.div(y, rounding_mode="floor"),
        "trunc_divide": lambda: x.div(y, rounding_mode="trunc"),
        "remainder": lambda: x.remainder(y),
        "fmod": lambda: x.fmod(y),
    }[name]()
    got = Program(elementwise(f"integer_{name}", torch.int32, 2, torch.int32))(x.int(), y.int())
    assert torch.equal(got, expected.int())
