"""Random expressions of supported operators, through the backend against eager."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor

from compiled import compiled
from fourfold.compiler.pipeline.record import Record

SHAPES = ((4, 18), (18,), (4, 1), (1, 18), ())
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.bfloat16)


def rotated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([b * 3, a], -1)


# Functions that are defined, and not too steep, for all numbers.
UNARY = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "atan": torch.atan,
    "erf": torch.erf,
    "relu": lambda x: torch.relu(x.float()),
    "neg": lambda x: -(x * 1),
    "abs": lambda x: torch.abs(x * 1),
    "square": lambda x: x.float() ** 2 / 8,
    "softmax": lambda x: torch.softmax(x.float(), -1) if x.dim() else x.float(),
    "centred": lambda x: x.float() - x.float().mean(-1, keepdim=True) if x.dim() else x.float(),
    "row": lambda x: x.float().sum(-1, keepdim=True) / 4 if x.dim() else x.float(),
    "largest": lambda x: x.amax(-1, keepdim=True) if x.dim() else x,
    "transposed": lambda x: x.t() if x.dim() == 2 else x,
    "flat": lambda x: x.reshape(-1),
    "rotated": lambda x: rotated(x) if x.dim() and x.shape[-1] % 2 == 0 else x,
    "columns": lambda x: x.float().sum(0, keepdim=True) / 4 if x.dim() == 2 else x,
    "columns_alone": lambda x: x.sum(0) / 4 if x.dim() == 2 and x.dtype.is_floating_point else x,
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "int64": lambda x: x.float().clamp(-1000, 1000).to(torch.int64) if x.dtype.is_floating_point else x.to(torch.int64),
    "int8": lambda x: x.to(torch.int8) if not x.dtype.is_floating_point else x.float().clamp(-100, 100).to(torch.int8),
    "is_positive": lambda x: x > 0,
}
BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": lambda a, b: a - b if torch.bool not in (a.dtype, b.dtype) else a * 1 - b * 1,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b * 2),
    "less": lambda a, b: a < b,
    "div": lambda a, b: a / (b.float().abs() + 1),
    "joined": lambda a, b: torch.cat([a * 1, b], 0) if a.dim() and a.shape == b.shape and a.dtype == b.dtype else a * 1,
    "hypot": lambda a, b: (a.float() ** 2 + b.float() ** 2 + 1).sqrt(),
}


@st.composite
def expressions(draw: st.DrawFn) -> tuple[list[tuple[tuple[int, ...], torch.dtype]], list[tuple]]:
    """Inputs, and steps: each an operation on earlier values."""
    inputs = draw(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=3))
    steps: list[tuple] = []
    for k in range(draw(st.integers(1, 10))):
        places = st.integers(0, len(inputs) + k - 1)
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(UNARY))), draw(places)))
        else:
            steps.append((draw(st.sampled_from(sorted(BINARY))), draw(places), draw(places)))
    return inputs, steps


def broadcast(a: Tensor, b: Tensor) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape), strict=False))


def evaluate(steps: list[tuple], *inputs: Tensor) -> tuple[Tensor, ...]:
    """All values that no other one uses, and the last."""
    values = list(inputs)
    used = set()
    for name, *places in steps:
        operands = [values[k] for k in places]
        if name in BINARY and broadcast(*operands):
            values.append(BINARY[name](*operands))
        else:
            values.append(UNARY[name](operands[0]) if name in UNARY else operands[0] * 1)
        used.update(places)
    results = [value for k, value in enumerate(values) if k >= len(inputs) and k not in used]
    return tuple(results)


def tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def agree(mine: Tensor, theirs: Tensor) -> None:
    """Within the rounding error of float32, in which values of float64 may be computed from."""
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.stride() == theirs.stride()
    if not theirs.dtype.is_floating_point:
        assert torch.equal(mine, theirs)
        return
    tolerance = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 5e-2}[theirs.dtype]
    scale = max(1.0, theirs.abs().max().item() if theirs.numel() else 1.0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance * scale, equal_nan=True)


@hypothesis.seed(0)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(expressions())
def test_a_random_expression(drawn: tuple) -> None:
    inputs, steps = drawn
    given = [tensor(shape, dtype, k) for k, (shape, dtype) in enumerate(inputs)]
    leaves = [x.requires_grad_(x.dtype.is_floating_point) for x in given]
    expected = evaluate(steps, *leaves)
    record = Record()
    got = compiled(lambda *xs: evaluate(steps, *xs), record)(*leaves)
    for mine, theirs in zip(got, expected, strict=True):
        agree(mine.detach(), theirs.detach())
    differentiable = [k for k, y in enumerate(expected) if y.requires_grad]
    if differentiable:
        wanted = [x for x in leaves if x.requires_grad]
        sums = [sum(ys[k].float().sum() for k in differentiable) for ys in (got, expected)]
        mine, theirs = (torch.autograd.grad(total, wanted, allow_unused=True) for total in sums)
        for a, b in zip(mine, theirs, strict=True):
            if b is not None:
                agree(torch.zeros_like(b) if a is None else a, b)
