"""fourfold.scan against a Python loop over the same step, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fourfold
from fourfold.scanning.capture import CapturedStep
from fourfold.scanning.fakes import Fakes
from scans import B, H, T, check, loop, module_steps, outcome, spiking

pytestmark = pytest.mark.usefixtures("strict")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("index", range(3), ids=["gru", "lstm", "rnn"])
def test_torchs_cells(index: int, reverse: bool) -> None:
    _, cell, step, init = list(module_steps())[index]
    check(step, init, torch.randn(T, B, H), list(cell.parameters()), reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_spiking_neuron_with_a_surrogate_gradient(reverse: bool) -> None:
    check(spiking, (torch.zeros(B, H), torch.zeros(B, H)), torch.randn(T, B, H) * 4, reverse=reverse)


def test_the_tutorials_lltm() -> None:
    weights, bias = nn.Parameter(torch.randn(3 * H, 2 * H) / 3), nn.Parameter(torch.randn(3 * H) / 3)

    def step(carry: Any, x: Tensor) -> Any:
        h, c = carry
        i, o, g = F.linear(torch.cat([h, x], 1), weights, bias).chunk(3, 1)
        c = c + F.elu(g) * torch.sigmoid(i)
        h = torch.tanh(c) * torch.sigmoid(o)
        return (h, c), h

    check(step, (torch.zeros(B, H), torch.zeros(B, H)), torch.randn(T, B, H), [weights, bias])


def test_a_selective_scan() -> None:
    log, skip = nn.Parameter(torch.rand(H, 4)), nn.Parameter(torch.ones(H))

    def step(h: Tensor, xs: Any) -> Any:
        x, dt, b, c = xs
        h = torch.exp(-dt[:, :, None] * torch.exp(log)) * h + dt[:, :, None] * b[:, None, :] * x[:, :, None]
        return h, (h @ c[:, :, None])[:, :, 0] + skip * x

    xs = (torch.randn(T, B, H), torch.rand(T, B, H), torch.randn(T, B, 4), torch.randn(T, B, 4))
    check(step, torch.zeros(B, H, 4), xs, [log, skip])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_any_dimension(dim: int) -> None:
    def step(s: Tensor, x: Tensor) -> Any:
        s = 0.9 * s + x
        return s, torch.sin(s)

    sizes = [B, H]
    sizes.insert(dim % 3, T)
    xs = torch.randn(sizes)
    found, expected = (
        outcome(scan, step, torch.zeros(B, H), xs, [], dim=dim % 3 if scan is loop else dim)
        for scan in (fourfold.scan, loop)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    def step(s: Tensor, x: Tensor) -> Any:
        s = torch.tanh(s) + x
        return s, s * x

    init, xs = torch.zeros(B, H, dtype=dtype), torch.randn(T, B, H).to(dtype)
    tolerance = (
        {} if dtype in (torch.float32, torch.float64) else {"rtol": 0.05, "atol": 0.05}
    )  # for sums of 16-bit gradients
    found, expected = (outcome(scan, step, init, xs, []) for scan in (fourfold.scan, loop))
    torch.testing.assert_close(found, expected, **tolerance)


def test_carries_that_are_passed_through_swapped_or_replaced() -> None:
    def step(carry: Any, x: Tensor) -> Any:
        a, b, c, d = carry
        return (b, a, c, x), a + b + c + d

    init = tuple(torch.randn(B, H) for _ in range(4))
    check(step, init, torch.randn(T, B, H))


def test_integer_boolean_and_none_leaves() -> None:
    def step(carry: Any, x: Any) -> Any:
        value, rest = x
        h, count, seen = carry["h"], carry["count"], carry["seen"]
        assert carry["none"] is None
        assert rest is None
        h = torch.where(value > 0, h * 0.5 + value, h)
        return {"h": h, "count": count + 1, "seen": seen | (value > 1), "none": None}, {
            "h": h,
            "n": count,
            "two": 2,
            "no": None,
        }

    init = {"h": torch.zeros(B, H), "count": torch.zeros((), dtype=torch.int64)}
    init |= {"seen": torch.zeros(B, H, dtype=torch.bool), "none": None}
    check(step, init, (torch.randn(T, B, H), None))


def test_numbers_as_carry() -> None:
    (total, count), ys = fourfold.scan(lambda c, x: ((c[0] + x, c[1] + 1), c[0]), (0.0, 0), torch.arange(4.0))
    assert (float(total), int(count)) == (6.0, 4)
    assert count.dtype == torch.int64
    assert ys.tolist() == [0.0, 0.0, 1.0, 3.0]


def test_no_steps() -> None:
    linear = nn.Linear(H, 2 * H)

    def step(h: Tensor, x: Tensor) -> Any:
        return h + linear(x)[:, :H], linear(x)

    init = torch.randn(B, H, requires_grad=True)
    carry, ys = fourfold.scan(step, init, torch.randn(0, B, H))
    assert ys.shape == (0, B, 2 * H)
    torch.testing.assert_close(carry, init)
    assert torch.autograd.grad(carry.sum(), init)[0].sum() == init.numel()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps(steps: int) -> None:
    _, cell, step, init = next(module_steps())
    check(step, init, torch.randn(steps, B, H), list(cell.parameters()))


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[CapturedStep]:
    """The traces of steps, in order."""
    found: list[CapturedStep] = []
    of = CapturedStep.of
    monkeypatch.setattr(CapturedStep, "of", lambda *given: found.append(of(*given)) or found[-1])
    return found


def test_lengths_and_batch_sizes_share_a_trace(traces: list[CapturedStep]) -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        return torch.tanh(h + x), h

    for steps in (2, 3, 10, 100):
        check(step, torch.zeros(B, H), torch.randn(steps, B, H))
    assert len(traces) == 2  # with gradients and without
    for batch in (2, 3, 4, 9, 19):
        check(step, torch.zeros(batch, H), torch.randn(T, batch, H))
    assert len(traces) == 4  # with a dynamic batch


@torch.no_grad()
def test_fresh_functions_with_the_same_code_share_a_trace(traces: list[CapturedStep]) -> None:
    """One for each default of an argument, also for more than Dynamo's own limit of 8."""
    for k in (*range(9), 8, 0):
        carry, _ = fourfold.scan(lambda h, x, k=k: (h + k * x, None), torch.zeros(3), torch.ones(T, 3))
        assert carry.tolist() == [k * T] * 3
    assert len(traces) <= 9


@torch.no_grad()
def test_many_shapes_of_one_step() -> None:
    """More than Dynamo's own limit of 8."""
    for rank in range(1, 4):
        for dtype in (torch.float32, torch.float64, torch.int64):
            init = torch.zeros([2] * rank, dtype=dtype)
            carry, _ = fourfold.scan(lambda h, x: (h + x, None), init, torch.ones([T] + [2] * rank, dtype=dtype))
            assert carry.flatten()[0] == T


def test_sizes_that_no_tensor_has(traces: list[CapturedStep]) -> None:
    """With a dynamic batch: products of sizes, means, and values that are the same in every step."""
    weight = nn.Parameter(torch.randn(H, H) / 3)

    def step(h: Tensor, x: Tensor) -> Any:
        both = torch.cat([torch.eye(H), weight], 1)
        pairs = h @ h.T  # (batch, batch)
        h = torch.tanh((x @ weight).reshape(-1, H) + h.mean(0, keepdim=True) + (h @ both)[:, :H])
        return h, (pairs.mean(), pairs.reshape(-1).sum(0), h.mean(), both)

    for batch in (3, 4, 2, 6):
        check(step, torch.randn(batch, H), torch.randn(T, batch, H), [weight])
    assert len(traces) <= 4


def test_numbers_returned_as_carry_are_of_its_kind() -> None:
    last, _ = fourfold.scan(lambda c, x: (0.5, c + x), torch.zeros((), dtype=torch.float64), torch.ones(3))
    assert (float(last), last.dtype) == (0.5, torch.float64)
    for init in (0, torch.zeros(2, 3)):
        with pytest.raises(ValueError, match="leaf 0 of the carry"):
            fourfold.scan(lambda c, x: (0.5, x), init, torch.ones(3))


def halves(weight: Tensor, h: Tensor, x: Tensor) -> Any:
    gate, new = (x @ weight).chunk(2, 1)
    h = torch.lerp(h, new, gate.sigmoid())
    return h, h


def thirds(weight: Tensor, h: Tensor, x: Tensor) -> Any:
    new, forget, out = (x @ weight).split(weight.shape[1] // 3, -1)
    h = torch.lerp(new, h, forget.sigmoid())
    return h, h * out.sigmoid()


SIZES = ((3, 4, 5), (6, 7, 33), (2, 9, 16), (1, 7, 8), (4, 1, 6), (3, 4, 1))  # batch, inputs, hidden


@pytest.mark.parametrize(
    ("step", "parts", "trained", "others"), [(halves, 2, SIZES, SIZES[:2]), (thirds, 3, SIZES[:2], SIZES)]
)
def test_sizes_that_are_dynamic_from_the_first_trace(
    step: Callable[..., Any], parts: int, trained: Any, others: Any
) -> None:
    """Layers of several sizes share one code object. trained: the sizes with gradients; others: those without."""
    for (batch, inputs, hidden), grad in (*zip(trained, repeat(True)), *zip(others, repeat(False))):
        weight = nn.Parameter(torch.randn(inputs, parts * hidden))
        init, xs = torch.randn(batch, hidden), torch.randn(T, batch, inputs)
        with torch.set_grad_enabled(grad):
            given = lambda h, x, weight=weight: step(weight, h, x), init, xs
            found, expected = (outcome(scan, *given, [weight]) for scan in (fourfold.scan, loop))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_comparisons_with_numbers(dtype: torch.dtype) -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.where(h > 0.3, h * 0.5, x)
        return h, h

    check(step, torch.randn(B, H, dtype=dtype), torch.randn(T, B, H, dtype=dtype))


@pytest.mark.parametrize(("batch", "size"), [(0, H), (B, 0)])
def test_tensors_without_elements(batch: int, size: int) -> None:
    weight, empty = nn.Parameter(torch.randn(size + H, H)), torch.empty(0)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(torch.cat([x, empty, h], 1) @ weight)
        return h, h

    check(step, torch.randn(batch, H), torch.randn(T, batch, size), [weight])


def test_products_of_two_series() -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        return torch.tanh(h + 0.1), (torch.addmm(h, x[:H], x[H:]), torch.addmm(x[H:], h, x[:H]))

    check(step, torch.randn(H, H), torch.randn(T, 2 * H, H))


def test_attention_to_a_state_that_stays() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def step(memory: Tensor, x: Tensor) -> Any:
        found, _ = attention(x[None, None], memory[None], memory[None], need_weights=False)
        return memory, found[0, 0]

    check(step, torch.randn(5, 4), torch.randn(T, 4), list(attention.parameters()))


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_complex_values_that_a_step_passes_on(order: tuple[int, int]) -> None:
    init, xs = torch.randn(3, dtype=torch.complex128), torch.randn(T, 3, dtype=torch.complex128)
    check(lambda h, x: ((h, x)[order[0]], (h, x)[order[1]]), init, xs)


def test_a_size_that_an_operator_fixes_is_noticed() -> None:
    """Even if no symbol alone has that value, as for the size of a chunk."""
    fakes = Fakes(T)
    size = fakes.new_symbol("size", 33)
    assert fakes.are_general
    assert (size + 1) // 2 == 17
    assert not fakes.are_general
