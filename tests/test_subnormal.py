"""Subnormal numbers: the results are those of eager code, and products, quotients and conversions compute with
subnormal numbers only where eager code does, because processors take a hundred times as long for those."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
from assists import DENORMAL_OPERAND, UNDERFLOW, flags_of, with_flags
from fourfold.compiler.pipeline.calling import Program
from machine import ROOT
from programs import HEAD, elementwise

SMALLEST = 2.0**-126
FALLING = -88.73  # exp of its opposite is infinite: sigmoid is zero
BEYOND = [(-20, 20), (-80, -20), (FALLING, -80), (-104, FALLING), (-1e4, -104), (-3e38, -1e4)]
BEYOND += [(80, 89), (89, 1e4), (1e4, 3e38)]
LOWEST = "avx2"  # the lowest level with functions of its own; the one below uses the C library's


of_this_level = pytest.mark.skipif(fourfold.cpu_capability() == "default", reason="functions are the C library's")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def numbers(low: float, high: float, count: int = 640) -> Tensor:
    return torch.linspace(low, high, count)


# Functions of one number whose exponential, or that of its square, may be nearly zero.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "softplus": F.softplus,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "softmax": lambda x: torch.softmax(below_zero(x), -1),
    "log_softmax": lambda x: torch.log_softmax(below_zero(x), -1),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
}


def below_zero(x: Tensor) -> Tensor:
    """Rows of negative numbers and a zero."""
    return F.pad(-x.abs().view(-1, 64), (1, 0))


def gradient(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        result = function(x)
        result.backward(torch.ones_like(result))
        return x.grad

    return call


def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    torch.compiler.reset()
    return torch.compile(function, backend="fourfold")


# Of these functions, none raises a flag; erfc's difference from 2 has a subnormal operand, as any sum may, at no cost.
CLEAN = ("exp", "exp2", "expm1", "sigmoid", "erf", "tanh", "sinh", "cosh")


@with_flags
@of_this_level
@pytest.mark.parametrize("name", CLEAN)
def test_no_operation_meets_a_subnormal_number(name: str) -> None:
    program = Program(elementwise(name, torch.float32, 1, torch.float32))
    for low, high in BEYOND:
        assert flags_of(program, numbers(low, high)) == 0, (low, high)
    assert flags_of(program, torch.tensor([-torch.inf, torch.inf, torch.finfo(torch.float32).min] * 20)) == 0


@with_flags
@of_this_level
@pytest.mark.parametrize("name", CLEAN)
def test_no_operation_of_float64_meets_a_subnormal_number(name: str) -> None:
    """Except for squares of numbers below 2^-511, which few tensors have."""
    program = Program(elementwise(name, torch.float64, 1, torch.float64))
    ranges = [(-20, 20), (-700, -20), (-709.7, -700), (-745, -709.7), (-1e4, -746), (-1e300, -1e4)]
    for low, high in [*ranges, (20, 700), (700, 709.7), (710, 1e4), (1e4, 1e300)]:
        flags = flags_of(program, torch.linspace(low, high, 640, dtype=torch.float64))
        # The logistic function adds 1 to a nearly zero number, at no cost.
        assert flags & ~(DENORMAL_OPERAND if name == "sigmoid" else 0) == 0, (low, high)
    assert flags_of(program, torch.tensor([-torch.inf, torch.inf] * 20, dtype=torch.float64)) == 0


@with_flags
@of_this_level
def test_no_operation_meets_what_exp_leaves() -> None:
    """log1p of a nearly zero number, whose square is smaller."""
    text = f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\ne: float32 = exp x\nr: float32 = log1p e\n"
    program = Program(f"{text}output r float32 [a]\n")
    for low, high in [(-20, 20), (-86, -20), (-1e4, -104), (-3e38, -1e4)]:
        assert flags_of(program, numbers(low, high)) == 0, (low, high)
    assert not flags_of(program, numbers(-104, FALLING)) & UNDERFLOW  # 1 + e is a sum
    erfc = Program(elementwise("erfc", torch.float32, 1, torch.float32))
    for low, high in [(-20, 20), (-1e4, 1e4), (9, 11)]:
        assert not flags_of(erfc, numbers(low, high)) & UNDERFLOW


@with_flags
@of_this_level
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("of", [lambda f: f, gradient], ids=["value", "gradient"])
def test_no_function_meets_more_than_eager_code(name: str, of: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    eager, ours = of(FUNCTIONS[name]), of(compiled(FUNCTIONS[name]))
    for low, high in BEYOND:
        x = numbers(low, high)
        ours(x), eager(x)  # torch.compile itself computes with such numbers
        flags = flags_of(ours, x)
        # silu is a product with a sigmoid; erfc of negative numbers is a sum, which costs nothing.
        if name == "erfc" or (name == "silu" and low == FALLING):
            flags &= ~DENORMAL_OPERAND
        assert not flags & ~flags_of(eager, x), (low, high)


def classes(x: Tensor) -> tuple[Tensor, Tensor]:
    return x == 0, (x != 0) & (x.abs() < SMALLEST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("of", [lambda f: f, gradient], ids=["value", "gradient"])
def test_subnormal_results_are_eagers(
    name: str, of: Callable[..., Callable[[Tensor], Tensor]], dtype: torch.dtype
) -> None:
    eager, ours = of(FUNCTIONS[name]), of(compiled(FUNCTIONS[name]))
    for low, high in BEYOND:
        x = numbers(low, high).to(dtype)
        expected, got = eager(x).float(), ours(x).float()
        # Eager code's intermediate roundings: in bfloat16 even of the squares that exp takes, in float32 of sums with
        # one.
        unit, relative, lost = (2.0**-149, 1e-5, 1e-6) if dtype == torch.float32 else (2.0**-133, 0.5, 1e-2)
        units = 200 if name == "mish" else 2  # x times a subnormal number
        zero, subnormal = classes(expected)
        near = (got - expected).abs() <= units * unit + relative * expected.abs()
        assert near[subnormal].all(), (low, high)
        assert (got.abs() <= lost)[zero].all(), (low, high)
        if not subnormal.any():
            assert not classes(got)[1].any(), (low, high)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("spread", [5, 12, 40, 100])
def test_no_gradient_is_subnormal(name: str, spread: float) -> None:
    x = spread * torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert not classes(gradient(compiled(FUNCTIONS[name]))(x))[1].any()


@with_flags
@of_this_level
@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min])
def test_masked_rows_meet_no_subnormal_number(hidden: float) -> None:
    mask = torch.zeros(64, 65).masked_fill(torch.rand(64, 65) < 0.4, hidden)
    mask[:, 0] = 0
    x = torch.randn(64, 65)
    for of in (lambda f: f, gradient):
        call = of(compiled(lambda x: torch.softmax(x + mask, -1)))
        call(x)
        assert flags_of(call, x) == 0


@with_flags
@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh"])
def test_a_perceptron_of_large_activations_meets_none(activation: str) -> None:
    one = torch.ones(1, 1)
    for low, high in [(-70, 86), (-1e4, -90), (90, 1e4)]:
        x = numbers(low, high).unsqueeze(1).requires_grad_()
        for grad in (1.0, 1e-6):

            def call(x: Tensor = x, grad: float = grad) -> None:
                result = fourfold.mlp_layers(x, [one, one], None, activation)
                torch.autograd.grad(result, x, torch.full_like(result, grad))

            call()
            assert flags_of(call) == 0, (low, high, grad)


@pytest.mark.skipif(fourfold.cpu_capability() in ("default", LOWEST), reason="there is no lower level of its own")
@pytest.mark.skipif(
    LOWEST not in fourfold._C.build_info()["cpu_levels"], reason="only FOURFOLD_CPU_LEVELS=ON builds it"
)
def test_the_same_on_avx2() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"FOURFOLD_CPU_CAPABILITY": LOWEST},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT / "tests",
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
