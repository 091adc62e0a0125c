"""Functions that together use every kind of GPU kernel that programs have, and their expected results. The simulators
and the machines with a GPU compile and run the same table (test_gpu_programs.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
from compiled import compiled, programs_of
from fourfold.compiler.pipeline.record import Record
from op_cases import largest
from scans import loop
from simulated import FULL

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Relative to the largest value. A program rounds its results to 16 bits, and saved values that the backward reads once
# more; eager in float32 doesn't.
ROUNDED = {torch.float16: 2**-9, torch.bfloat16: 2**-6}
# For sums in another order, over the longest rows and columns here.
SUMS = 2e-5
# A mean of 300 is rounded to 3e-5.
VARIANCES = 1e-4


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randint(0 if dtype == torch.uint8 else -100, 100, shape, generator=generator, dtype=dtype)


@dataclass(frozen=True)
class Function:
    """arguments: on the CPU; those that are floating point require a gradient. runs: whether a program has anything to
    compute. dynamic: whether it is compiled with dynamic sizes. races: whether the race detector runs it too.
    definition: the eager definition of a function that compiles its own steps."""

    name: str
    call: Callable
    arguments: tuple[object, ...]
    tolerance: float = SUMS
    runs: bool = True
    dynamic: bool = False
    races: bool = False
    definition: Callable | None = None

    def check(self, device: str = "cpu") -> None:
        """Compares with eager on the CPU, in float32 for narrower arguments."""
        record = Record()
        call = self.call if self.definition else compiled(self.call, record, dynamic=self.dynamic)
        got = results_of(call, self.on(device))
        expected = results_of(self.definition or self.call, self.on("cpu", wide=True))
        assert len(got) == len(expected)
        for mine, theirs in zip(got, expected, strict=True):
            near = {"rtol": 0, "atol": 0}
            if mine.is_floating_point():
                near = {"rtol": self.tolerance, "atol": self.tolerance * largest(theirs)}
            torch.testing.assert_close(mine.cpu(), theirs.to(mine.dtype), equal_nan=True, **near)
        assert programs_of(record) or self.definition or not self.runs, "no program ran"

    def on(self, device: str, wide: bool = False) -> list[object]:
        def one(given: object) -> object:
            if not isinstance(given, Tensor):
                return given
            dtype = torch.float32 if wide and given.is_floating_point() else given.dtype
            made = given.to(device, dtype, copy=True)
            return made.requires_grad_(made.is_floating_point())

        return [one(given) for given in self.arguments]


def results_of(function: Callable, arguments: list[object]) -> list[Tensor]:
    """A call's results, and the gradients of all arguments that require one."""
    given = function(*arguments)
    outputs = list(given) if isinstance(given, (tuple, list)) else [given]
    smooth = [o for o in outputs if o.requires_grad]
    if smooth:
        weights = [draw(*o.shape, seed=7).to(o.device, o.dtype) for o in smooth]
        torch.autograd.backward(smooth, weights)
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    return (
        [o.detach() for o in outputs] + [t.grad for t in tensors if t.grad is not None] + [t.detach() for t in tensors]
    )


def of_every_float(name: str, call: Callable, *shapes: tuple[int, ...], **settings: object) -> list[Function]:
    return [
        Function(
            f"{name}_{str(dtype).removeprefix('torch.')}",
            call,
            tuple(draw(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes)),
            ROUNDED.get(dtype, SUMS),
            **settings,
        )
        for dtype in FLOATS
    ]


def of_steps(name: str, call: Callable, *arguments: Tensor) -> Function:
    return Function(name, partial(call, fourfold.scan), arguments, definition=partial(call, loop), races=True)


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2 + y).tanh() * torch.where(x > y, x, y.exp()) - F.gelu(x)


def in_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return torch.sigmoid(x @ w) * x


def mixed(x: Tensor, h: Tensor, b: Tensor, i: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    total = x * h.float() + b.float()
    return torch.where(m, total, i.float()), (total > 0) & m, (i * 3 + 1) % 7, total.half(), total.bfloat16()


def integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * y + 3, torch.where(x > y, x, y) // 3, x.amax(-1) + y.sum(-1, dtype=x.dtype), (x != y) & (x > 5)


def long_integers(x: Tensor) -> tuple[Tensor, ...]:
    large = x * 3_000_000_019
    return large - 1, (large % 1_000_003).sum(-1), large.amin(0)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b).sin()


def normalised_columns(x: Tensor) -> Tensor:
    return F.softmax(x.sin(), 0) * 2


def masked(rows: int, columns: int) -> Tensor:
    """Rows that begin or end with infinities or NaN, and a row of -inf."""
    x = draw(rows, columns) * 40
    for k, value in enumerate((-torch.inf, torch.inf, torch.nan)):
        x[2 * k % rows, : columns // 2] = value
        x[(2 * k + 1) % rows, columns // 2 :] = value
    x[-1] = -torch.inf
    if rows > 8:  # beside each other in one vector
        for k, numbers in enumerate(((torch.inf, -torch.inf), (torch.inf, -200.0), (200.0, 50.0))):
            x[10 + k, 0], x[10 + k, 1] = numbers
        x[12, columns // 2] = torch.inf
    return x


def sums_of_exponentials(x: Tensor, dim: int = -1) -> tuple[Tensor, ...]:
    return F.softmax(x, dim), x.logsumexp(dim), (x - x.amax(dim, keepdim=True)).exp().sum(dim)


def variances(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Far from zero: squares of the elements have no digits left for their variance."""
    far = x * 0.25 + 300
    return far.var(dim), far - far.mean(dim, keepdim=True)


def sums_of_columns(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x * w).sum(0), (x.exp() + 1).sum(0)


def statistics(x: Tensor) -> tuple[Tensor, ...]:
    return x.sin().mean(-1), (x * 2).amax(-1), (x * x).sum(-1).sqrt(), (x > 1).any(-1), (x < 9).all(-1), x.logsumexp(-1)


def strided(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, 1::3] * 2 + y[1:, :].t()).sin()


def shifted(x: Tensor, y: Tensor) -> Tensor:
    """The arguments are not aligned to 16 bytes."""
    return x[1:] * 2 + y[3:].cos()


def broadcast(x: Tensor, row: Tensor, column: Tensor, one: Tensor) -> Tensor:
    return (x * row + column).sigmoid() * one


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.sin() * 2, y.cos() + 1, x * y], -1) * 3


def taking_turns(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x * 2 - y, y.exp() + x], -1).flatten(-2)


def in_place(x: Tensor) -> Tensor:
    state = x.detach()
    state.mul_(0.5).add_(x.detach().sin())
    return state * 2


def with_numbers(x: Tensor, n: int, m: int) -> Tensor:
    return (x * n + m).relu() * x.shape[-1]


def recurrence(scan: Callable, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A loop over time whose states stay in registers."""

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = (h * 0.9 + x.tanh()).sigmoid()
        return h, h * 2

    return scan(step, h, x)


def counted(scan: Callable, x: Tensor) -> tuple[Tensor, Tensor]:
    """A loop whose states have two types."""

    def step(carry: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        level, count = carry
        level = level * 0.5 + x
        count = count + (level > 1)
        return (level, count), level * count

    init = torch.zeros_like(x[0]), torch.zeros_like(x[0], dtype=torch.int64)
    (level, count), y = scan(step, init, x)
    return level, count, y


ODD, SMALL = draw(5, 37), draw(3, 4)
FUNCTIONS = [
    *of_every_float("pointwise", pointwise, (1031,), (1031,)),
    *of_every_float("softmax", lambda x: F.softmax(x * 2, -1), (7, 40)),
    *of_every_float("layer_norm", layer_norm, (70, 96), (96,), (96,)),
    Function("vectors", pointwise, (draw(16, 64), draw(16, 64, seed=1)), races=True),
    Function("mixed", mixed, (ODD, draw(5, 37, dtype=torch.float16), draw(5, 37, dtype=torch.bfloat16),
                              draw(5, 37, dtype=torch.int32), draw(5, 37, dtype=torch.bool)), ROUNDED[torch.bfloat16]),
    *(Function(f"{t}".replace("torch.", "integers_"), integers, (draw(5, 48, dtype=t), draw(5, 48, dtype=t, seed=1)))
      for t in INTEGERS),
    Function("long_integers", long_integers, (draw(17, 33, dtype=torch.int64),)),
    Function("booleans", lambda x, y: ((x & ~y) | (x ^ y), (x & y).any(-1)), (draw(4, 64, dtype=torch.bool),
                                                                            draw(4, 64, dtype=torch.bool, seed=1))),
    Function("broadcast", broadcast, (draw(6, 5, 20), draw(20), draw(6, 1, 1), draw())),
    Function("strided", strided, (draw(9, 40), draw(14, 9))),
    Function("shifted", shifted, (draw(1001), draw(1003))),
    Function("transposed", lambda x, y: (x.t() * 2 + y).sin(), (draw(40, 24), draw(24, 40))),
    Function("permuted", lambda x, y: x.sin().permute(2, 0, 1) * y, (draw(4, 5, 12), draw(12, 4, 5))),
    Function("statistics_of_3", statistics, (draw(50, 3),)),
    Function("statistics_of_37", statistics, (ODD,)),
    Function("statistics_of_2000", statistics, (draw(9, 2000),), races=True),
    Function("statistics_of_30000", statistics, (draw(2, 30_000),)),
    Function("statistics_of_all", lambda x: ((x * 2).sum(), x.abs().amax(), (x * x).mean()), (draw(300, 70),)),
    Function("log_softmax", lambda x: F.log_softmax(x.sin(), -1) * 2, (draw(6, 3000),), races=True),
    Function("cross_entropy", lambda x: F.cross_entropy(x * 2, torch.arange(8, device=x.device)), (draw(8, 33),)),
    Function("softmax_side_by_side", normalised_columns, (draw(9, 130),), races=True),
    Function("softmax_side_by_side_long", normalised_columns, (draw(500, 40),)),
    # Rows that are too long for registers, each computed by one block and by several; and their columns.
    Function("exponentials_of_long_rows", sums_of_exponentials, (masked(65, 40_004),)),
    Function("exponentials_of_few_long_rows", sums_of_exponentials, (masked(3, 40_004),)),
    Function("exponentials_of_columns", partial(sums_of_exponentials, dim=0), (masked(2050, 66).t().contiguous(),),
             races=True),
    Function("variances_of_long_rows", variances, (draw(65, 8195),), VARIANCES),
    Function("variances_of_few_long_rows", variances, (draw(3, 40_004),), VARIANCES),
    Function("variances_of_columns", partial(variances, dim=0), (draw(66, 2050),), VARIANCES),
    Function("variances_of_few_columns", partial(variances, dim=0), (draw(500, 40),), VARIANCES),
    # Of a long column each thread has hundreds of elements, whose deviations are 10,000 times as small as their mean.
    Function("variances_far_from_zero", lambda x: (x + 10_000).var(0), (draw(8000, 40),)),
    Function("layer_norm_of_few", layer_norm, (draw(4, 5), draw(5), draw(5))),
    Function("layer_norm_of_many", layer_norm, (draw(300, 64), draw(64), draw(64)), races=True),
    # So many rows that a block which sums columns has several in flight.
    Function("layer_norm_of_thousands", layer_norm, (draw(4203, 128), draw(128), draw(128))),
    Function("layer_norm_of_long_rows", layer_norm, (draw(3, 5000), draw(5000), draw(5000))),
    Function("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b) * 2, (draw(2, 6, 5, 7), draw(6), draw(6))),
    Function("sums_of_columns", sums_of_columns, (draw(1000, 70), draw(1000, 1)), races=True),
    Function("sums_of_few_rows", sums_of_columns, (draw(3, 1000), draw(1000))),
    Function("joined", joined, (draw(5, 12), draw(5, 12, seed=1))),
    Function("joined_odd", joined, (ODD, draw(5, 37, seed=1))),
    Function("taking_turns", taking_turns, (draw(5, 12), draw(5, 12, seed=1))),
    Function("in_place", in_place, (draw(9, 33),)),
    Function("with_numbers", with_numbers, (ODD, 3, 70_000), dynamic=True),
    Function("special_values", lambda x: (x.exp() - 1, x.log() * 2, torch.minimum(x, x * 2), x.amax(), x.sum()),
             (torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0]),)),
    Function("in_autocast", in_autocast, (draw(20, 16), draw(16, 16)), ROUNDED[torch.bfloat16]),
    of_steps("recurrence", recurrence, draw(7, 3, 20), draw(3, 20)),
    Function("powers", lambda x, y: torch.hypot(x, y) + x**6 - y.abs() ** 4.5, (draw(40), draw(40, seed=1))),
    of_steps("counted", counted, draw(6, 50)),
    Function("no_elements", lambda x: x.sin() * 2, (draw(0, 4),), runs=False),
    Function("sums_of_nothing", lambda x: ((x * 2).sum(0), (x * 3).sum(-1)), (draw(0, 4),)),
    Function("rows_of_nothing", lambda x: ((x * 2).sum(-1), (x * 3).sum(0)), (draw(4, 0),)),
]  # fmt: skip


# A sample of torch's operator samples (test_compiler_operators.py).
OPERATORS = (
    *("addcmul", "amax", "atan2", "erf", "logsumexp", "masked.std", "softmax", "var_mean", "where"),
    *(f"nn.functional.{name}" for name in ("binary_cross_entropy", "cross_entropy", "gelu", "layer_norm")),
)
SAMPLES = ["test_compiler_operators.py"]
if not FULL:
    SAMPLES = [f"{SAMPLES[0]}::test_samples_are_as_eager[{name}-float32]" for name in OPERATORS]


def is_simulated() -> bool:
    """Whether simulated GPU kernels run the programs of CPU tensors."""
    return "FOURFOLD_SIMULATED_PROGRAMS" in os.environ
