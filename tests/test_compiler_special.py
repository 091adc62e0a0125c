"""Cases in which torch's decompositions and tracing differ from its kernels, or a program could differ from both:
special values, step functions in low precision, dtypes of losses, layouts, tensors without elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from compiled import assert_same, compiled, programs_of, results_of
from compiler_samples import module_of
from fourfold.compiler.pipeline.entry import backend
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict", "in_programs")
LOW = (torch.bfloat16, torch.float16)

# For values next to these, roundings to bfloat16 lie on the other side of a step.
BESIDE = (0.5, -0.5, 1.0, -1.0, 1.5, 2.0, 2.5, -2.5, 3.0, -3.0, 6.0, 7.0, 20.0, 127.0, -129.0, 255.0, 0.0, 1e-3)
STEPS: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "round", "frac")},
    "decimals": lambda x: torch.round(x, decimals=1),
    "remainder": lambda x: x % 1,
    "remainder_of_three": lambda x: x % 3,
    "remainder_of_a_rounded_number": lambda x: x % 0.7,
    "fmod": lambda x: torch.fmod(x, 1),
    "fmod_of_a_rounded_number": lambda x: torch.fmod(x, 0.7),
    "floor_divide": lambda x: x // 0.5,
    "floor_divide_by_an_unrounded_number": lambda x: x // 0.1,
    "floor_divide_by_an_unrounded_tensor": lambda x: torch.div(x, torch.tensor(0.3), rounding_mode="floor"),
    "trunc_divide": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "threshold": lambda x: F.threshold(x, 1, 7),
    "hardshrink": lambda x: F.hardshrink(x, 0.5),
    "heaviside": lambda x: torch.heaviside(x * 1e-20 * 1e-20, x),
    "overflow": lambda x: torch.isinf(x * torch.finfo(x.dtype).max),
    "finite": lambda x: torch.isfinite(x * torch.finfo(x.dtype).max),
    "not_a_number": lambda x: torch.nan_to_num(x * torch.finfo(x.dtype).max, posinf=3.0, neginf=-3.0).abs() == 3,
    "underflow": lambda x: (x * 1e-30 * 1e-30).bool(),
    "sign_of_an_underflow": lambda x: torch.sign(x * 1e-20 * 1e-20),
    "logic": lambda x: torch.logical_not(x * 1e-20 * 1e-20),
    "sum_to_bool": lambda x: (x * 1e-20 * 1e-20).sum(0, dtype=torch.bool),
    "prod_to_bool": lambda x: torch.prod(x * 2, 0, dtype=torch.bool),
    "count": lambda x: torch.count_nonzero(x * 1e-20 * 1e-20),
    **{
        f"to_{str(dtype).removeprefix('torch.')}": lambda x, dtype=dtype: x.to(dtype)
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
    },
}


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_taken_of_what_is_rounded(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(BESIDE, dtype=dtype)
    if name in ("to_int8", "to_uint8", "to_int16"):
        x = x[:-6].abs()  # the others have none there
    eps = torch.finfo(dtype).eps  # so that eager, which rounds numbers too, adds and multiplies by the same values
    for change in (lambda x: x * (1 + eps), lambda x: x + (0.5 - eps / 4), lambda x: x):

        def function(x: torch.Tensor, change: Callable = change) -> list[torch.Tensor]:
            return [STEPS[name](change(x))]

        record = Record()
        (got,) = backend(module_of(function, 1), [x], record=record)(x)
        torch.testing.assert_close(got, function(x)[0], rtol=0, atol=0, equal_nan=True)
        assert programs_of(record) == 1


SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)
# A single element runs torch's scalar loop for remainders; its vector loops treat NaN differently in some functions.
ACTIVATIONS: dict[str, Callable] = {
    **{
        name: getattr(F, name)
        for name in ("elu", "selu", "celu", "hardtanh", "relu6", "hardswish", "hardsigmoid", "leaky_relu", "relu")
    },
    "elu_of_a_negative": lambda x: F.elu(x, -0.7),
    "logit": torch.logit,
    "logit_within": lambda x: torch.logit(x, 0.1),
    "softshrink": lambda x: torch.ops.aten.softshrink_backward(torch.ones_like(x), x, 0.5),
    "hardshrink": lambda x: torch.ops.aten.hardshrink_backward(torch.ones_like(x), x, 0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_special_values(name: str, dtype: torch.dtype) -> None:
    call = compiled(ACTIVATIONS[name])
    for value in SPECIAL:
        x = torch.tensor([value], dtype=dtype, requires_grad=True)
        assert_same(results_of(call, (x,)), results_of(ACTIVATIONS[name], (x,)))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_gradient_of_smooth_l1_loss_at_special_values(reduction: str, dynamic: bool | None) -> None:
    values = torch.tensor([*SPECIAL, 0.3, -0.3, 0.7, 5.0, -5.0])
    x, y = values.repeat(10).requires_grad_(), values.repeat_interleave(10)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.smooth_l1_loss(x, y, reduction=reduction, beta=0.7)

    assert_same(results_of(compiled(loss, dynamic=dynamic), (x, y)), results_of(loss, (x, y)))


def test_the_gradient_of_smooth_l1_loss_without_a_square_part() -> None:
    x, y = torch.tensor([1.0, 2.0, -3.0], requires_grad=True), torch.ones(3)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.smooth_l1_loss(x, y, 0, 0.0)

    assert_same(results_of(compiled(loss), (x, y)), results_of(loss, (x, y)))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtypes", list(itertools.product((torch.float32, torch.float64, torch.bfloat16), repeat=2)))
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_huber_loss_has_its_inputs_dtype(dtypes: tuple[torch.dtype, torch.dtype], reduction: str) -> None:
    x = torch.tensor([[0.25, 3.0], [-1.5, 0.0]], dtype=dtypes[0])
    for target in (torch.tensor(0.5, dtype=dtypes[1]), torch.ones(2, 2, dtype=dtypes[1])):

        def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.huber_loss(x, target, reduction=reduction) * 2

        assert_same([compiled(loss)(x, target)], [loss(x, target)])


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "rows": lambda: torch.linspace(-2, 2, 12).view(3, 4),
    "columns": lambda: torch.linspace(-2, 3, 12).view(4, 3).t(),
    "repeated": lambda: torch.linspace(-1, 2, 4).expand(3, 4),
    "row": lambda: torch.linspace(-1, 2, 4),
    "column": lambda: torch.linspace(-1, 2, 3).view(3, 1),
    "number": lambda: torch.tensor(-0.5),
    "apart": lambda: torch.linspace(-2, 2, 24).view(3, 8)[:, ::2],
}


@pytest.mark.parametrize("is_mask", [False, True])
@pytest.mark.parametrize("function", [torch.copysign, torch.xlogy, torch.special.xlog1py])
def test_layouts_where_torch_traces_others(function: Callable, is_mask: bool) -> None:
    """All pairs of layouts, half of them with a mask and half without."""
    for x, y in list(itertools.product(LAYOUTS, repeat=2))[is_mask::2]:
        a, b = LAYOUTS[x](), LAYOUTS[y]()
        b = b > 0 if is_mask else b
        torch._dynamo.reset()
        assert_same([torch.compile(function, backend="fourfold")(a, b)], [function(a, b)])


def test_the_layout_of_a_power_of_a_number() -> None:
    x = LAYOUTS["columns"]()
    assert_same([compiled(lambda x: 2**x)(x)], [2**x])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_dropout_of_no_elements(p: float, dynamic: bool | None, whose: str) -> None:
    x = torch.empty(0, 4, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), p) * 2

    assert_same(results_of(compiled(function, dynamic=dynamic), (x,)), results_of(function, (x,)))


def test_a_part_that_broadcasts_by_a_guard() -> None:
    """Half of three is one: torch adds a guard for the broadcast, but keeps the symbolic size."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = x.shape[0] // 2
        a, b = x.split([half, x.shape[0] - half])
        return (y - 2) * a, torch.cat([a.sin(), (x * 2)[:half].cos(), b]) + 1, b.sum() * a.exp()

    record = Record()
    call = compiled(function, record, dynamic=True)
    for size in (3, 2, 3):
        x, y = (torch.linspace(-1, k, size, requires_grad=True) for k in (1, 2))
        if size == 2:
            y = y[:1]  # so that it doesn't broadcast the part
        assert_same(results_of(call, (x, y)), results_of(function, (x, y)))
