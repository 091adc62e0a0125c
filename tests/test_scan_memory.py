"""The memory of fourfold.scan's results, which are separate and contiguous, as from torch.stack; and steps whose values
share memory, or have only temporary memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fourfold
from scans import B, H, T, check, tensors

pytestmark = pytest.mark.usefixtures("strict")


def test_results_that_are_the_carry_twice_and_the_input() -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        return h, (h, h, x, x[0])

    check(step, torch.zeros(B, H), torch.randn(T, B, H))
    _, (a, b, c, _) = fourfold.scan(step, torch.zeros(B, H), xs := torch.randn(T, B, H))
    a.zero_()
    c.zero_()
    assert b.abs().sum() > 0
    assert xs.abs().sum() > 0


def test_the_last_carry_is_no_view_of_results_or_of_init() -> None:
    init = torch.ones(B, H)
    last, ys = fourfold.scan(lambda h, x: (h * x, h), init, torch.rand(T, B, H))
    assert last.untyped_storage().nbytes() == last.nbytes
    same, _ = fourfold.scan(lambda h, x: (h, x), init, torch.rand(T, B, H))
    same.zero_()
    assert init.sum() == init.numel()
    assert ys.shape == (T, B, H)


def test_results_that_are_views_of_one_value() -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        return h, (h.exp(), h.t(), h[:1], x.t())

    check(step, torch.zeros(B, H), xs := torch.randn(T, B, H))
    _, (_, a, b, c) = fourfold.scan(step, torch.zeros(B, H), xs)
    a.zero_()
    c.zero_()
    assert b.abs().sum() > 0
    assert xs.abs().sum() > 0


def expands(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    return h, (h.expand(2, *h.shape), x.expand(2, *x.shape))


def transposes(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    return h, (h.t(), x.t(), h.t().exp())


def slices(h: Tensor, x: Tensor) -> Any:
    before, h = h, torch.tanh(h + x)
    return h, (before[:, 1:], x[:, ::2], h.chunk(2, 1)[1])


def chunks(h: Tensor, x: Tensor) -> Any:
    first, second = x.chunk(2, 1)
    return h * first.mean(), second


WEIGHT = torch.linspace(-0.5, 0.5, H * H).view(H, H)


class Kept:
    weight = WEIGHT


def gives_a_weights_view(h: Tensor, x: Tensor) -> Any:
    return h + x, Kept.weight.T


@pytest.mark.parametrize("step", [expands, transposes, slices, chunks, gives_a_weights_view])
def test_results_are_contiguous_and_share_no_memory(step: Callable[..., Any]) -> None:
    init, xs = torch.randn(B, H), torch.randn(T, B, H)
    check(step, init, xs)
    given = init, xs, WEIGHT
    results = tensors(fourfold.scan(step, init, xs))
    before = [each.clone() for each in (*given, *results)]
    for k, result in enumerate(results):
        assert result.is_contiguous()
        result.add_(1)
        before[len(given) + k].add_(1)
    torch.testing.assert_close([*given, *results], before, rtol=0, atol=0)


class KeepsItsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(H, H)

    def forward(self, carry: Any, x: Tensor) -> Any:
        a, b = carry
        self.state = torch.tanh(self.linear(a) + x - b)
        return (self.state, self.state), self.state


def pair(carry: Any, x: Tensor) -> Any:
    new = torch.tanh(carry[0] + x - carry[1])
    return (new, new), new


def pair_of_products(carry: Any, x: Tensor) -> Any:
    new = torch.tanh((carry[0] + x) @ WEIGHT - carry[1])
    return (new, new), carry[0].sum(1)


@pytest.mark.parametrize("step", [KeepsItsState(), pair, pair_of_products], ids=["module", "pair", "products"])
def test_two_states_of_one_value(step: Callable[..., Any]) -> None:
    init, xs = (torch.randn(B, H), torch.randn(B, H)), torch.randn(5 * T, B, H)
    check(step, init, xs, list(step.parameters()) if isinstance(step, nn.Module) else [])
    with torch.no_grad():
        (a, b), _ = fourfold.scan(step, init, xs)
    before = b.clone()
    a.add_(1)
    torch.testing.assert_close(b, before, rtol=0, atol=0)


def of_a_convolution(h: Tensor, x: Tensor) -> Any:
    """Its backward has no gradient of the weight."""
    h = torch.tanh(F.conv1d(h, WEIGHT[:, :, None] / 2) + x)
    return h, h


def of_complex_numbers(h: Tensor, x: Tensor) -> Any:
    h = h @ (WEIGHT + 0.5j * WEIGHT.T) + x
    return h, torch.view_as_real(h).sum(-1) * h.real


def of_a_list_of_tensors(h: Tensor, x: Tensor) -> Any:
    a, b = torch.split(h @ WEIGHT, [2, 3], -1)
    h = torch.tanh(h + x + torch.block_diag(a, b)[:B, :H])
    return h, h


@pytest.mark.parametrize(
    ("step", "shape", "dtype"),
    [
        (of_a_convolution, (B, H, 4), torch.float32),
        (of_complex_numbers, (B, H), torch.complex64),
        (of_a_list_of_tensors, (B, H), torch.float32),
    ],
)
def test_values_that_stages_have_no_memory_for(step: Callable[..., Any], shape: Any, dtype: torch.dtype) -> None:
    check(step, torch.randn(shape, dtype=dtype), torch.randn(3 * T, *shape, dtype=dtype))


@pytest.mark.usefixtures("collected")
def test_a_call_leaves_nothing_to_the_garbage_collector() -> None:
    xs, zeros = torch.randn(5, 2, 4), torch.zeros(2, 4)

    def call() -> None:
        with torch.no_grad():
            fourfold.scan(lambda carry, x: ((carry[0] * 0.5 + x, carry[1] + carry[0]), x), (zeros, zeros), xs)

    for _ in range(3):
        call()
    gc.collect()
    gc.disable()
    try:
        call()
        assert gc.collect() == 0
    finally:
        gc.enable()
