"""The option round="eager": random graphs of operators, and single operators, have the bits of eager mode."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
from compiled import compiled

pytestmark = pytest.mark.usefixtures("strict")
LOW = (torch.bfloat16, torch.float16)
SIZE = 256
# Operators of the same bits as torch's in float32, so that all differences in low precision are roundings.
OF_ONE: list[Callable[[Tensor], Tensor]] = [
    torch.neg,
    torch.abs,
    torch.square,
    torch.relu,
    torch.reciprocal,
    lambda x: torch.sqrt(x.abs() + 0.1),
    lambda x: x.clamp(-0.7, 0.3),
    lambda x: x * 0.3,
    lambda x: 0.7 - x,
    lambda x: x / 3,
    lambda x: x + 0.1,
    lambda x: F.leaky_relu(x, 0.3),
    F.hardswish,
    F.hardsigmoid,
    F.relu6,
    lambda x: x**3,
    lambda x: torch.floor(x * 4),
    lambda x: x.float().to(x.dtype),
]
OF_TWO: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    lambda a, b: torch.add(a, b, alpha=0.3),
    lambda a, b: torch.where(a > b, a, b * a),
    lambda a, b: a.masked_fill(b > 0.5, 0.3),
    lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: torch.addcmul(a, a, b),
    lambda a, b: F.mse_loss(a, b, reduction="none"),
    lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    lambda a, b: F.huber_loss(a, b, reduction="none"),
]
# Operators whose functions are fourfold's: equal after the rounding, but for few elements.
FUNCTIONS = (torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.sin, torch.log1p, F.silu, F.gelu, F.softplus, F.elu)


def random_graph(seed: int) -> Callable[..., list[Tensor]]:
    rng = random.Random(seed)
    steps = []
    for k in range(rng.randint(4, 12)):
        places = [rng.randrange(2 + k), rng.randrange(2 + k)]
        steps.append((rng.choice(OF_ONE), places[:1]) if rng.random() < 0.4 else (rng.choice(OF_TWO), places))

    def graph(x: Tensor, y: Tensor) -> list[Tensor]:
        values = [x, y]
        for function, places in steps:
            values.append(function(*(values[place] for place in places)))
        return [values[-1], values[len(values) // 2]]

    return graph


def bits(function: Callable[..., list[Tensor]], dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """The results, and the gradients of their weighted sum."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(SIZE, generator=generator).to(dtype).requires_grad_() for _ in range(2)]
    torch.manual_seed(5)
    outputs = function(*inputs)
    smooth = [output for output in outputs if output.requires_grad]
    weights = [torch.randn(SIZE, generator=generator).to(dtype) for _ in smooth]
    gradients = torch.autograd.grad(smooth, inputs, weights, allow_unused=True) if smooth else []
    return [value.detach() for value in (*outputs, *gradients) if value is not None]


def differing(mine: list[Tensor], theirs: list[Tensor]) -> int:
    assert len(mine) == len(theirs)
    pairs = [(a, b, ~(a.isnan() & b.isnan())) for a, b in zip(mine, theirs, strict=True)]
    return sum(int(((a != b) & is_number).sum()) for a, b, is_number in pairs)


def difference(function: Callable, dtype: torch.dtype, seed: int = 0, **options: str) -> int:
    mine = compiled(function, options={"round": "eager", **options}, dynamic=False)
    return differing(bits(mine, dtype, seed), bits(function, dtype, seed))


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int, dtype: torch.dtype) -> None:
    generator = "llvm" if seed % 4 == 0 else "interpreter"
    assert difference(random_graph(seed), dtype, seed, generator=generator) == 0


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_functions(dtype: torch.dtype) -> None:
    """Each reads the result of another operator, and another one reads its result."""

    def graph(x: Tensor, y: Tensor) -> list[Tensor]:
        return [function(x.abs() * 0.3) * y for function in FUNCTIONS]

    assert difference(graph, dtype) <= 2
