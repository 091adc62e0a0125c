"""Random expressions of supported operators, through the backend against eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import seeds
from compiled import compiled

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


def expression(choose: random.Random) -> tuple[list[tuple[tuple[int, ...], torch.dtype]], list[tuple]]:
    """Inputs, and steps: each an operation on earlier values, of which every other one reads the last."""
    inputs = [(choose.choice(SHAPES), choose.choice(DTYPES)) for _ in range(choose.randint(1, 3))]
    steps: list[tuple] = []
    for last in range(len(inputs) - 1, len(inputs) + choose.randint(1, 9)):
        place, other = choose.choice((last, choose.randint(0, last))), choose.randint(0, last)
        is_unary = choose.random() < 0.5
        steps.append((choose.choice(list(UNARY)), place) if is_unary else (choose.choice(list(BINARY)), place, other))
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


class Inexact(TorchDispatchMode):
    """Changes each operator's results by a few roundings of the least exact dtype that takes part, at random, forward
    and backward. In bfloat16 exact operators too, since a program may read a value before its rounding."""

    BY = {torch.float64: 2**-49, torch.float32: 2**-20, torch.bfloat16: 2**-7}
    EXACT = {f"aten.{name}" for name in ("abs", "amax", "cat", "clone", "maximum", "neg", "relu", "where")}

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, operator: OpOverload, types: object, args: tuple = (), kwargs: dict | None = None):
        result = operator(*args, **(kwargs or {}))
        by = max(self.BY.get(x.dtype, 0) for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor))
        is_exact = operator.is_view or (str(operator.overloadpacket) in self.EXACT and by < 2**-7)
        if is_exact or not isinstance(result, Tensor) or not result.dtype.is_floating_point:
            return result
        signs = torch.randint(2, result.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        return (result.double() * (1 + by * signs)).to(result.dtype)


def results_of(call: Callable, leaves: list[Tensor]) -> list[Tensor | None]:
    """All results, and the gradients of their sum."""
    results = call(*leaves)
    smooth, wanted = ([x for x in xs if x.requires_grad] for xs in (results, leaves))
    total = sum(y.float().sum() for y in smooth)
    gradients = torch.autograd.grad(total, wanted, allow_unused=True) if smooth else []
    return [x if x is None else x.detach() for x in (*results, *gradients)]


def strides_of(x: Tensor) -> list[int]:
    """Of dimensions where they matter."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def agree(mine: Tensor, theirs: Tensor, inexact: list[Tensor]) -> None:
    """Up to twice the differences that roundings make, element by element. Integers, infinities and NaN must be equal
    where roundings don't change them."""
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    a, b, others = mine.double(), theirs.double(), torch.stack(inexact).double()
    floor = 0.0
    if theirs.dtype.is_floating_point:  # the last conversion's rounding, and sums of exact inputs in another order
        floor = (2**-7 if theirs.dtype == torch.bfloat16 else 1e-5) * b.abs().clamp(min=1)
    spread = (others - b).abs().amax(0)
    is_near = (a - b).abs() <= 2 * spread + floor
    is_same = (a == b) | (a.isnan() & b.isnan())
    is_known = ((others == b) | (others.isnan() & b.isnan())).all(0) | spread.isfinite()
    if not theirs.dtype.is_floating_point:
        is_known, is_near = spread == 0, is_same
    if (wrong := is_known & ~is_same & ~is_near).any():
        raise AssertionError(f"{a[wrong]} instead of {b[wrong]}, to which roundings add {spread[wrong]}")


def test_random_expressions() -> None:
    for seed in seeds.of_this_run(least=10):
        inputs, steps = expression(random.Random(seed))
        print(inputs, steps)
        check(steps, [tensor(shape, dtype, seed + k) for k, (shape, dtype) in enumerate(inputs)])


def check(steps: list[tuple], inputs: list[Tensor]) -> None:
    leaves = [x.requires_grad_(x.dtype.is_floating_point) for x in inputs]

    def call(*leaves: Tensor) -> tuple[Tensor, ...]:
        return evaluate(steps, *leaves)

    expected, inexact = results_of(call, leaves), []
    for seed in range(12):
        with Inexact(seed):
            inexact.append(results_of(call, leaves))
    got = results_of(compiled(call), leaves)
    for mine, theirs in zip(got, call(*leaves), strict=False):  # gradients have the strides that are traced
        assert strides_of(mine) == strides_of(theirs)
    for mine, theirs, *others in zip(got, expected, *inexact, strict=True):
        if theirs is not None:
            agree(torch.zeros_like(theirs) if mine is None else mine, theirs, others)
