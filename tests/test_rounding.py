"""Numbers, and tensors of other dtypes, beside tensors of low precision are rounded where eager mode rounds them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiled import compiled

pytestmark = pytest.mark.usefixtures("strict")
LOW = (torch.bfloat16, torch.float16)
SIZE = 256
# Functions of two operands, one of which is a tensor of low precision, x, and of a mask. Results that are only selected
# are converted: otherwise the end of the program would round them.
OF_TWO: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    name: lambda a, b, mask, name=name: getattr(torch, name)(a, b)
    for name in ("add", "sub", "mul", "div", "atan2", "pow", "fmod", "remainder", "hypot", "logaddexp", "le", "eq")
} | {
    "div trunc": lambda a, b, mask: torch.div(a, b, rounding_mode="trunc"),
    "power of abs": lambda a, b, mask: a.abs() ** b,
    "add alpha": lambda a, b, mask: torch.add(a, b, alpha=0.7),
    "sub alpha": lambda a, b, mask: torch.sub(a, b, alpha=0.7),
    "rsub alpha": lambda a, b, mask: torch.rsub(a, b, alpha=0.7),
    "where": lambda a, b, mask: torch.where(mask, a, b).float(),
    "clamp": lambda a, b, mask: a.clamp(max=b).float(),
    "masked_fill": lambda a, b, mask: a.masked_fill(mask, b).float(),
    "lerp": lambda a, b, mask: torch.lerp(a, a + a, b),
    "addcmul": lambda a, b, mask: torch.addcmul(a, a, b),
    "addcdiv": lambda a, b, mask: torch.addcdiv(a, b, a),
}
# Functions of x, a number and the mask.
OF_NUMBERS: dict[str, Callable[[Tensor, float, Tensor], Tensor]] = {
    "clamp_min": lambda x, n, mask: x.clamp(min=n).float(),
    "hardtanh": lambda x, n, mask: F.hardtanh(x, -n, n).float(),
    "threshold": lambda x, n, mask: F.threshold(x, n, n).float(),
    "hardshrink": lambda x, n, mask: F.hardshrink(-x, n).float(),
    "softshrink": lambda x, n, mask: F.softshrink(x, n),
    "leaky_relu": lambda x, n, mask: F.leaky_relu(-x, n),
    "elu": lambda x, n, mask: F.elu(-x, n),
    "softplus": lambda x, n, mask: F.softplus(x, n),
    "addcmul value": lambda x, n, mask: torch.addcmul(x, x, x, value=n),
    "nan_to_num": lambda x, n, mask: torch.nan_to_num(torch.where(mask, x, math.nan), n).float(),
    "full": lambda x, n, mask: torch.full((SIZE,), n, dtype=x.dtype) * x.float(),
    "full_like": lambda x, n, mask: torch.full_like(x, n).float() - x.float(),
    "angle": lambda x, n, mask: torch.angle(-x).float() * x.float(),
}


def others(dtype: torch.dtype) -> list[Tensor | float]:
    return [
        0.3,
        torch.tensor(0.3),
        torch.tensor(0.3, dtype=torch.float64),
        torch.tensor(4099),
        torch.full((1,), 4099),
        torch.randint(4000, 5000, (SIZE,)),
        torch.tensor(0.3, dtype=next(other for other in LOW if other != dtype)),
    ]


def expect_the_bits_of_eager(function: Callable[..., list[Tensor]], *given: Tensor) -> None:
    """Each result is also negated, so that a program computes it."""

    def with_readers(*given: Tensor) -> list[Tensor]:
        results = function(*given)
        return results + [~r if r.dtype == torch.bool else -r for r in results]

    results = compiled(with_readers, dynamic=False)(*given)
    for k, (actual, expected) in enumerate(zip(results, with_readers(*given), strict=True)):
        assert torch.equal(actual, expected), f"case {k}"


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", OF_TWO)
def test_operands_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    function, beside = OF_TWO[name], others(dtype)
    x, mask = (torch.rand(SIZE) * 2 + 0.01).to(dtype), torch.rand(SIZE) < 0.5
    x[::2] = 0.3
    tensors = [other for other in beside if isinstance(other, Tensor)]

    def is_known(*arguments: object) -> bool:
        try:
            return function(*arguments).dtype is not None
        except (TypeError, RuntimeError, AttributeError):
            return False

    firsts = [k for k, other in enumerate(tensors) if is_known(other, x, mask)]
    seconds = [k for k, other in enumerate(tensors) if is_known(x, other, mask)]
    numbers = [0.3] if is_known(x, 0.3, mask) else []

    def of_all(x: Tensor, mask: Tensor, *tensors: Tensor) -> list[Tensor]:
        results = [function(tensors[k], x, mask) for k in firsts]
        return results + [function(x, other, mask) for other in [*(tensors[k] for k in seconds), *numbers]]

    expect_the_bits_of_eager(of_all, x, mask, *tensors)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    x, mask = (torch.rand(SIZE) * 2 + 0.01).to(dtype), torch.rand(SIZE) < 0.5
    x[::2] = 0.3
    expect_the_bits_of_eager(lambda x, mask: [function(x, 0.3, mask) for function in OF_NUMBERS.values()], x, mask)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_numbers_that_each_call_provides(dtype: torch.dtype) -> None:
    """After the first call torch traces the number as an input."""
    x = (torch.rand(SIZE) * 2 + 0.01).to(dtype)

    def function(x: Tensor, n: float) -> list[Tensor]:
        return [-(x - n), -(x * n), -torch.add(x, x, alpha=n), x.clamp(max=n).float() * 0.3]

    of_numbers = compiled(function)
    for number in (0.1, 0.3, 0.7):
        for actual, expected in zip(of_numbers(x, number), function(x, number), strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_norms_scale_is_not_rounded_between_programs(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    norm = torch.nn.BatchNorm2d(16).eval()
    for tensor in (norm.running_mean, norm.running_var, norm.weight.data):
        tensor.uniform_(0.3, 2)
    norm, x = norm.to(dtype), torch.randn(4, 16, 8, 8).to(dtype)

    def function(x: Tensor) -> Tensor:
        return norm(x).relu() + x

    result, eager = compiled(function)(x).double(), function(x).double()
    norm.double()
    exact = function(x.double())
    assert (result - exact).norm() <= 1.02 * (eager - exact).norm()  # both round the result


@pytest.mark.parametrize("scale", [5, 50, 1000])
@pytest.mark.parametrize("dim", [0, -1, (0, 1)], ids=str)
@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_the_gradient_of_logsumexp_is_a_softmax(dtype: torch.dtype, dim: int | tuple[int, ...], scale: int) -> None:
    """exp(x - logsumexp(x)) of an x that is not rounded, as the logsumexp is, would have no bound."""
    torch.manual_seed(scale)
    x, w = (scale * torch.randn(40, 64)).to(dtype).requires_grad_(), torch.rand(64).to(dtype)

    def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return torch.autograd.grad(f(x).sum(), x)[0].double()

    def function(x: Tensor) -> Tensor:
        return torch.logsumexp(x * w.to(x.dtype), dim)

    exact = gradient(function, x.detach().double().requires_grad_())
    eager = (gradient(function, x) - exact).abs().max()
    assert (gradient(compiled(function), x) - exact).abs().max() <= 1.2 * eager + 2**-8
