"""The option round="eager": random graphs of operators, and single operators, have the bits of eager mode."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
import seeds
from compiled import compiled, draw

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
    lambda x: x - 0.5,
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
# Operators that are one kernel or several in eager mode, some of which round each of their steps.
OF_STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse_loss": F.mse_loss,
    "huber_loss": lambda a, b: F.huber_loss(a, b, delta=0.3, reduction="none"),
    "huber_loss mean": lambda a, b: F.huber_loss(a, b, delta=0.3),
    "smooth_l1_loss": lambda a, b: F.smooth_l1_loss(a, b, beta=0.3, reduction="none"),
    "binary_cross_entropy": lambda a, b: F.binary_cross_entropy(a, b.detach()),
    "binary_cross_entropy_with_logits": lambda a, b: F.binary_cross_entropy_with_logits(
        a, b, pos_weight=b[:1].detach()
    ),
    "soft_margin_loss": lambda a, b: F.soft_margin_loss(a, b.detach().round(), reduction="none"),
    "logit": lambda a, b: torch.logit(a),
    "logit eps": lambda a, b: torch.logit(a, 0.3),
    "xlogy": torch.xlogy,
    "entr": lambda a, b: torch.special.entr(a),
    "ldexp": torch.ldexp,
    "rsqrt": lambda a, b: a.rsqrt() * b,
    "dropout": lambda a, b: F.dropout(a * b, 0.1),
    "glu": lambda a, b: F.glu(a),
    "sigmoid": lambda a, b: (a * 8 - 4).sigmoid(),
    "softmax": lambda a, b: F.softmax(a.view(-1, 16), -1),
    "log_softmax": lambda a, b: F.log_softmax(a.view(-1, 16), -1),
    "batch_norm": lambda a, b: F.batch_norm(a.view(2, 16, 2, 4), *b.detach().view(16, 16)[:2], b[:16], b[16:32]),
    "lerp": lambda a, b: torch.lerp(a * 8, b * 8, 0.3) + torch.lerp(a, b * 8, 0.7) + torch.lerp(a * 8, b, b.detach()),
    "prelu": lambda a, b: F.prelu(a - 0.5, b[:1].detach()),
}
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
    inputs = [(torch.rand(SIZE, generator=generator) * 0.9 + 0.05).to(dtype).requires_grad_() for _ in range(2)]
    torch.manual_seed(5)
    outputs = function(*inputs)
    smooth = [output for output in outputs if output.requires_grad]
    weights = [torch.randn(output.shape, generator=generator).to(dtype) for output in smooth]
    gradients = torch.autograd.grad(smooth, inputs, weights, allow_unused=True) if smooth else []
    return [value.detach() for value in (*outputs, *gradients) if value is not None]


def differing(mine: list[Tensor], theirs: list[Tensor]) -> int:
    assert len(mine) == len(theirs)
    pairs = [(a, b, ~(a.isnan() & b.isnan())) for a, b in zip(mine, theirs, strict=True)]
    return sum(int(((a != b) & is_number).sum()) for a, b, is_number in pairs)


def difference(function: Callable, dtype: torch.dtype, seed: int = 0, **options: str) -> int:
    mine = compiled(function, options={"round": "eager", **options}, dynamic=False)
    return differing(bits(mine, dtype, seed), bits(function, dtype, seed))


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_random_graphs(dtype: torch.dtype) -> None:
    for seed in seeds.of_this_run(least=4):
        generator = "llvm" if seed % 4 == 0 else "interpreter"
        assert difference(random_graph(seed), dtype, seed, generator=generator) == 0


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", OF_STEPS)
def test_operators_of_steps(name: str, dtype: torch.dtype) -> None:
    few = 2 if name in ("softmax", "log_softmax", "logit eps") else 0  # sums in another order; exp and log
    assert difference(lambda x, y: [OF_STEPS[name](x, y) * 1.5], dtype) <= few


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_functions(dtype: torch.dtype) -> None:
    """Each reads the result of another operator, and another one reads its result."""

    def graph(x: Tensor, y: Tensor) -> list[Tensor]:
        return [function(x.abs() * 0.3) * y for function in FUNCTIONS]

    assert difference(graph, dtype) <= 2


def polynomial(x: Tensor) -> Tensor:
    return (x * 0.3 + 0.1) * x - 0.7


def test_the_environment_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(SIZE, dtype=torch.bfloat16, gradient=False)
    stored = polynomial(x.float()).bfloat16()
    monkeypatch.setenv("FOURFOLD_ROUND", "eager")
    assert torch.equal(compiled(polynomial)(x), polynomial(x)) and not torch.equal(polynomial(x), stored)
    assert not torch.equal(compiled(polynomial, options={"round": "stored"})(x), polynomial(x))
    assert "They round float16 and bfloat16 after each operator." in fourfold.explain(polynomial, x).runner
    monkeypatch.setenv("FOURFOLD_ROUND", "even")
    with pytest.raises(Exception, match="expected FOURFOLD_ROUND to be one of stored, eager, but got 'even'"):
        compiled(polynomial)(x)


def test_scans_and_saved_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOURFOLD_ROUND", "eager")
    xs = draw(9, SIZE, dtype=torch.bfloat16, gradient=False)

    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        carry = carry * 0.3 + polynomial(x)
        return carry, carry * 0.7 - x

    carry, expected = xs[0], []
    for x in xs:
        carry, y = step(carry, x)
        expected.append(y)
    last, ys = fourfold.scan(step, xs[0], xs)
    assert torch.equal(last, carry) and torch.equal(ys, torch.stack(expected))

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return polynomial(x) + F.mse_loss(x, x * 0.3, reduction="none")

    fourfold.save(torch.export.export(Model(), (xs,)), tmp_path / "model.ff")
    monkeypatch.delenv("FOURFOLD_ROUND")
    assert torch.equal(fourfold.load(tmp_path / "model.ff")(xs), Model()(xs))
