"""Calls for which torch's operators raise an error: compiled functions raise the same error instead of computing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from compiled import compiled, programs_of
from compiler_samples import module_of
from fourfold.compiler.lowering.supported_by_eager import eager_supports
from fourfold.compiler.pipeline.entry import backend
from fourfold.compiler.pipeline.record import Record

pytestmark = pytest.mark.usefixtures("strict")

# torch traces these for any dim; its kernels check it.
UNCHECKED: dict[str, Callable] = {
    "softmax": lambda x, dim: F.softmax(x * 2, dim) * 3,
    "softmin": lambda x, dim: F.softmin(x * 2, dim) * 3,
    "log_softmax": lambda x, dim: F.log_softmax(x * 2, dim) * 3,
    "gumbel_softmax": lambda x, dim: F.gumbel_softmax(x, dim=dim),
    "safe_softmax": lambda x, dim: torch.ops.aten._safe_softmax(x * 2, dim),
    "module": lambda x, dim: nn.Softmax(dim)(x),
    "with a dtype": lambda x, dim: torch.softmax(x, dim, dtype=torch.float64),
}


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("dim", [5, -3])
@pytest.mark.parametrize("name", UNCHECKED)
def test_a_dimension_out_of_range(name: str, dim: int) -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        compiled(UNCHECKED[name])(torch.randn(3, 4), dim)


@pytest.mark.parametrize("dim", [0, -1])
def test_a_softmax_of_one_number(dim: int) -> None:
    for function in (F.softmax, F.log_softmax):
        x = torch.tensor(3.0)
        assert compiled(function)(x, dim).equal(function(x, dim))


aten = torch.ops.aten
# Called with 10^5 for float16 and -10^39 for float32; torch's kernels convert them to the dtype.
OF_THE_DTYPE: dict[str, Callable] = {
    "masked_fill": lambda x, number: x.masked_fill(x > 0, number),
    "masked_fill, a tensor": lambda x, number: x.masked_fill(x > 0, torch.tensor(number, dtype=torch.float64)),
    "clamp": lambda x, number: x.clamp(max=number),
    "clamp_min": lambda x, number: x.clamp_min(number),
    "full": lambda x, number: torch.full(x.shape, number, dtype=x.dtype) + x,
    "full_like": lambda x, number: torch.full_like(x, number) + x,
    "new_full": lambda x, number: x.new_full(x.shape, number) + x,
    "fill": lambda x, number: x.clone().fill_(number) + 1,
    "pad": lambda x, number: F.pad(x, (1, 1), value=number) + 1,
    "hardtanh": lambda x, number: F.hardtanh(x, number if number < 0 else -1, abs(number)),
    "threshold": lambda x, number: F.threshold(x, 1, number),
    "hardshrink": lambda x, number: F.hardshrink(x, number),
    "logit": lambda x, number: torch.logit(x, number),
    "alpha": lambda x, number: torch.add(x, x, alpha=number),
}
# Called with 10^39; torch's kernels convert this to float32, also for float16.
OF_FLOAT32: dict[str, Callable] = {
    "where": lambda x, number: torch.where(x > 0, number, number) + x,
    "elu": F.elu,
    "celu": F.celu,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "threshold": lambda x, number: F.threshold(x, number, 1),
    "lerp": lambda x, number: torch.lerp(x, x + 1, number),
    "addcmul": lambda x, number: torch.addcmul(x, x, x, value=number),
    "threshold_backward": lambda x, number: aten.threshold_backward(x, x, number),
    "hardtanh_backward": lambda x, number: aten.hardtanh_backward(x, x, -1.0, number),
}
BEYOND = [
    *((name, function, torch.float16, 1e5) for name, function in OF_THE_DTYPE.items()),
    *((name, function, torch.float32, -1e39) for name, function in OF_THE_DTYPE.items()),
    *((name, function, torch.float16, 1e39) for name, function in OF_FLOAT32.items()),
]


def one_result(function: Callable, x: torch.Tensor, number: float, record: Record | None = None) -> torch.Tensor:
    return backend(module_of(lambda x: [function(x, number)], 1), [x], record=record)(x)[0]


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize(
    ("name", "function", "dtype", "number"), BEYOND, ids=lambda given: None if callable(given) else str(given)
)
def test_a_number_that_overflows(name: str, function: Callable, dtype: torch.dtype, number: float) -> None:
    x = torch.tensor([-1.0, 0.5, 2.0], dtype=dtype)
    with pytest.raises(RuntimeError, match="without overflow") as expected:
        function(x, number)
    with pytest.raises(RuntimeError) as got:
        one_result(function, x, number)
    assert str(got.value) == str(expected.value)


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("number", [math.inf, -65504.0])
def test_infinity_and_the_largest_number_are_held(number: float) -> None:
    x = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float16)
    for function in (OF_THE_DTYPE["masked_fill"], OF_THE_DTYPE["clamp"], OF_THE_DTYPE["threshold"]):
        record = Record()
        assert one_result(function, x, number, record).equal(function(x, number))
        assert programs_of(record) == 1


@pytest.mark.usefixtures("in_programs")
def test_a_float_that_an_integer_does_not_hold() -> None:
    x = torch.tensor([1, 2, 3], dtype=torch.uint8)
    for function in (OF_THE_DTYPE["masked_fill"], OF_THE_DTYPE["full_like"]):
        with pytest.raises(RuntimeError, match="without overflow"):
            function(x, 300.5)
        with pytest.raises(RuntimeError, match="without overflow"):
            one_result(function, x, 300.5)


# Of dtypes or shapes that torch's kernels refuse and formulas would compute; the last ones are computed.
PAIR = torch.tensor([[0.25, 0.75]]), torch.tensor([[1.0, 0.0]])
TRUTH, INTEGERS = torch.tensor([[True, False]]), torch.tensor([[2, 3]])
UNTAKEN: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "abs": (F.softsign, (TRUTH,)),
    "ldexp": (lambda x, y: torch.ldexp(x * 2, y), (PAIR[0], TRUTH)),
    "lerp": (lambda x, y: (x * 2).lerp_(y, 2) + 1, (INTEGERS, INTEGERS)),
    "max": (lambda x: (x * 2).max() + 1, (torch.ones(0, 3),)),
    "mse_loss": (lambda x, y: F.mse_loss(x * 2, y), (PAIR[0], PAIR[1].to(torch.complex64))),
    "huber_loss": (lambda x, y: F.huber_loss(x * 2, y), (PAIR[0].to(torch.complex64), PAIR[1])),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x * 2, y), (PAIR[0].to(torch.complex64), PAIR[1])),
    "smooth_l1_loss of integers": (lambda x: F.smooth_l1_loss(x, x, reduction="none") * 2, (INTEGERS,)),
    "soft_margin_loss": (F.soft_margin_loss, (INTEGERS, PAIR[0])),
    "soft_margin_loss of integers": (F.soft_margin_loss, (INTEGERS, INTEGERS)),
    "soft_margin_loss, more dimensions": (lambda x, y: F.soft_margin_loss(x * 2, y), (PAIR[0][0], PAIR[1])),
    "binary_cross_entropy_with_logits": (
        lambda x, y, w: F.binary_cross_entropy_with_logits(x * 2, y, w),
        (*PAIR, torch.ones(3, 2)),
    ),
    "layer_norm": (lambda x, w: F.layer_norm(x * 2, (2,), w), (PAIR[0], torch.ones(2, dtype=torch.float64))),
    "layer_norm of halves": (lambda x, w: F.layer_norm(x * 2, (2,), w), (PAIR[0].half(), torch.ones(2).bfloat16())),
    "group_norm": (lambda x, w: F.group_norm(x * 2, 1, w, w), (PAIR[0], torch.ones(2).int())),
    "batch_norm": (lambda x, s: F.batch_norm(x * 2, s, s), (PAIR[0], torch.ones(2).half())),
    "batch_norm, trained": (
        lambda x, s: F.batch_norm(x * 2, None, None, s, s, training=True),
        (PAIR[0].expand(3, 2), torch.ones(2).double()),
    ),
    "select": (lambda x: (x * 2).select(-6, 0) * 3, (PAIR[0],)),
}
TAKEN: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "mse_loss": (lambda x, y: F.mse_loss(x * 2, y), (PAIR[0], TRUTH)),
    "huber_loss": (lambda x, y: F.huber_loss(x * 2, y), (PAIR[0], TRUTH)),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x * 2, y), (PAIR[0], TRUTH)),
    "layer_norm": (lambda x, w: F.layer_norm(x * 2, (2,), w), (PAIR[0].half(), torch.ones(2))),
    "batch_norm": (lambda x, s: F.batch_norm(x * 2, s, s), (PAIR[0].bfloat16(), torch.ones(2))),
}


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("name", UNTAKEN)
def test_a_call_that_torchs_kernel_refuses(name: str, low: bool) -> None:
    """low: in bfloat16, rounded like eager mode."""
    function, tensors = UNTAKEN[name]
    tensors = tuple(x.bfloat16() if low and x.dtype == torch.float32 else x for x in tensors)
    settings = {"options": {"round": "eager"}} if low else {}
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*tensors)
    with pytest.raises(type(expected.value)) as got:
        compiled(function, **settings)(*tensors)
    assert str(expected.value)[:20] in str(got.value)


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("name", TAKEN)
def test_a_call_of_two_dtypes_that_torchs_kernel_computes(name: str) -> None:
    function, tensors = TAKEN[name]
    torch.testing.assert_close(compiled(function)(*tensors), function(*tensors))


def test_trials_take_lists_of_tensors_and_sizes() -> None:
    x, parameter = torch.ones(3, 7), torch.ones(7, dtype=torch.float64)
    assert eager_supports(aten.cat.default, ([x, x.int()], 1), {})
    assert not eager_supports(aten.cat.default, ([x, x[0]],), {})
    assert eager_supports(aten.native_layer_norm.default, (x, [7], None, None, 1e-5), {})
    assert not eager_supports(aten.native_layer_norm.default, (x, [7], parameter, None, 1e-5), {})


def test_views_of_integers_and_masks_are_fused() -> None:
    """They name sizes, which no trial has."""
    record = Record()
    i, mask, x = torch.arange(64).view(8, 8), torch.rand(8, 1) > 0.5, torch.randn(4, 16)

    def function(i: torch.Tensor, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where((~mask).expand(8, 8).reshape(4, 16), x, (i * 2).view(4, 16) + 1)

    torch.testing.assert_close(compiled(function, record)(i, mask, x), function(i, mask, x))
    assert programs_of(record) == 1
    assert not record.captured[0].forward.compiled.refusals


def test_trials_draw_no_random_numbers() -> None:
    state = torch.get_rng_state()
    assert eager_supports(aten.native_dropout.default, (torch.ones(3, dtype=torch.bfloat16), 0.5, True), {})
    assert torch.get_rng_state().equal(state)
