"""Functions of elementwise operators and row reductions, written as users write them, by name. The benchmarks and tests
of torch.compile's backend "fourfold" use them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

WIDTH = 1000  # of a row, if there are enough elements for a hundred rows
GRID = 64  # the Mandelbrot step uses multiples of 1/64, so that float32 squares and sums them exactly

Draw = Callable[[int, Generator], tuple[Tensor, ...]]  # (number of elements, generator) -> arguments


@dataclass(frozen=True)
class Function:
    """call: takes the tensors that ``draw(count, generator)`` returns for a number of elements; the first ``gradients``
    of them require a gradient. Returns a tensor, or a tuple of tensors. terms(count): the length of the longest sum in
    it and in its gradients."""

    name: str
    call: Callable[..., Tensor | tuple[Tensor, ...]]
    draw: Draw
    gradients: int
    terms: Callable[[int], int] = lambda count: 1

    def results(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        results = self.call(*arguments)
        return results if isinstance(results, tuple) else (results,)


def sin2_cos2(x: Tensor) -> Tensor:
    return torch.sin(x) ** 2 + torch.cos(x) ** 2


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_erf(x: Tensor) -> Tensor:
    return F.gelu(x)


def silu_gating(x: Tensor, gate: Tensor) -> Tensor:
    return x * F.silu(gate)


def swiglu(x: Tensor) -> Tensor:
    """The gate and the value are the halves of each row, as one product computes them."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def black_scholes(price: Tensor, strike: Tensor, years: Tensor, volatility: Tensor) -> tuple[Tensor, Tensor]:
    """Values of a European call and put, at 2 % interest."""
    spread = volatility * torch.sqrt(years)
    d1 = (torch.log(price / strike) + (0.02 + volatility**2 / 2) * years) / spread
    d2 = d1 - spread
    discounted = strike * torch.exp(-0.02 * years)
    call = price * normal_cdf(d1) - discounted * normal_cdf(d2)
    return call, call - price + discounted


def normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama computes it."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def adam(p: Tensor, gradient: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tenth step, with Adam's default rates: new parameter, first and second moment."""
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient * gradient
    root = torch.sqrt(v / (1 - 0.999**10)) + 1e-8
    return p - 1e-3 / (1 - 0.9**10) * m / root, m, v


def mandelbrot(x: Tensor, y: Tensor, c: Tensor, d: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """z = z² + c with z = x + iy and c = c + id where |z| ≤ 2, and the number of steps for which that held."""
    x2, y2 = x * x, y * y
    bounded = x2 + y2 <= 4
    return torch.where(bounded, x2 - y2 + c, x), torch.where(bounded, 2 * x * y + d, y), steps + bounded


def width(count: int) -> int:
    """Row width: few elements make ten rows."""
    return max(1, min(WIDTH, count // 10))


def rows(count: int) -> int:
    return count // width(count)


def longest(count: int) -> int:
    """The longest sum: over a row, or over the rows in the gradient of a vector that all rows share."""
    return max(width(count), rows(count))


def draw_normal(tensors: int) -> Draw:
    return lambda count, generator: tuple(torch.randn(count, generator=generator) for _ in range(tensors))


def draw_rows(count: int, generator: Generator, times: int = 1) -> Tensor:
    return torch.randn(rows(count), times * width(count), generator=generator)


def draw_layer(count: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    weight, bias = (torch.randn(width(count), generator=generator) for _ in range(2))
    return draw_rows(count, generator), weight, bias


def draw_labels(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    return draw_rows(count, generator), torch.randint(width(count), (rows(count),), generator=generator)


def draw_adam(count: int, generator: Generator) -> tuple[Tensor, ...]:
    p, gradient, m, v = draw_normal(4)(count, generator)
    return p, gradient, 0.1 * m, 0.01 * v**2


def draw_market(count: int, generator: Generator) -> tuple[Tensor, ...]:
    ranges = ((50, 150), (50, 150), (0.1, 2), (0.1, 0.5))
    return tuple(low + (high - low) * torch.rand(count, generator=generator) for low, high in ranges)


def draw_points(count: int, generator: Generator) -> tuple[Tensor, ...]:
    steps = torch.randint(10, (count,), generator=generator)
    numbers = (torch.randint(-m * GRID, m * GRID + 1, (count,), generator=generator) / GRID for m in (2, 2, 1, 1))
    return *numbers, steps


FUNCTIONS = {
    function.name: function
    for function in (
        Function("sin2_cos2", sin2_cos2, draw_normal(1), 1),
        Function("gelu_tanh", gelu_tanh, draw_normal(1), 1),
        Function("gelu_erf", gelu_erf, draw_normal(1), 1),
        Function("silu_gating", silu_gating, draw_normal(2), 2),
        Function("swiglu", swiglu, lambda count, generator: (draw_rows(count, generator, 2),), 1),
        Function("black_scholes", black_scholes, draw_market, 4),
        Function("layer_norm", layer_norm, draw_layer, 3, longest),
        Function("rms_norm", rms_norm, lambda *drawn: draw_layer(*drawn)[:2], 2, longest),
        Function("cross_entropy", cross_entropy, draw_labels, 1, longest),
        Function("adam", adam, draw_adam, 0),
        Function("mandelbrot", mandelbrot, draw_points, 0),
    )
}
