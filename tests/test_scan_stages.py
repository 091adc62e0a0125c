"""Loops whose steps have products and other operators: stages with memory that is laid out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fourfold
from scans import Generators, bodies_of_loops

pytestmark = pytest.mark.usefixtures("fresh_steps")
STAGES = "fourfold_loop_in_stages"


def lstm(weights: Any, carry: Any, x: Tensor) -> Any:
    h, c = carry
    i, f, g, o = (F.linear(x, weights["W"]) + F.linear(h, weights["U"]) + weights["b"]).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), h


def joined(weights: Any, carry: Any, x: Tensor) -> Any:
    """As in the tutorial: one product with the concatenated state and input."""
    h, c = carry
    i, o, n = F.linear(torch.cat([h, x], 1), weights["V"], weights["b"][: weights["V"].shape[0]]).chunk(3, 1)
    c = c + F.elu(n) * torch.sigmoid(i)
    h = torch.tanh(c) * torch.sigmoid(o)
    return (h, c), h


def two_products(weights: Any, carry: Any, x: Tensor) -> Any:
    h, c = carry
    f = torch.sigmoid(x @ weights["W"][: h.shape[1]].T + h @ weights["S"])
    n = torch.tanh((f * h) @ weights["S"].T)
    return ((1 - f) * h + f * n, c + n), (f, n)


def blocks(weights: Any, carry: Any, x: Tensor) -> Any:
    """A block-diagonal matrix: a batch of products."""
    h, c = carry
    z = torch.bmm(h.view(h.shape[0], 2, -1).transpose(0, 1), weights["G"]).transpose(0, 1).flatten(1)
    h = torch.tanh(z + x.sum(1, keepdim=True))
    return (h, c + h), z


def of_a_vector(weights: Any, carry: Any, x: Tensor) -> Any:
    h, c = carry
    first = torch.mv(weights["S"], h[0]) + x.mean()
    second = torch.addmv(first, weights["S"].T, h[-1])
    h = torch.cat([torch.tanh(second).unsqueeze(0), h[:-1]])
    return (h, c * 0.5 + h), first


def by_torch(weights: Any, carry: Any, x: Tensor) -> Any:
    """Operators that are neither programs nor products with a constant matrix."""
    h, c = carry
    mixed = h.T @ c
    h = torch.tanh(F.softmax(h @ mixed, -1) + torch.cumsum(c, 1) * 0.1 + x.sum(1, keepdim=True))
    return (h, c * 0.5 + h), torch.cat([h, c], 1)


def passes_through(weights: Any, carry: Any, x: Tensor) -> Any:
    """The new state is the other state; results are views of it."""
    h, c = carry
    z = torch.tanh(h @ weights["S"] + x.sum(1, keepdim=True))
    return (c, z), (z[:, 1:], h)


STEPS = [lstm, joined, two_products, blocks, of_a_vector, by_torch, passes_through]


def weights_of(input_size: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    shapes = {
        "W": (4 * size, input_size),
        "U": (4 * size, size),
        "V": (3 * size, size + input_size),
        "b": (4 * size,),
        "S": (size, size),
        "G": (2, size // 2, size // 2),
    }
    return {name: (torch.randn(shape, dtype=dtype) * 0.4).requires_grad_() for name, shape in shapes.items()}


def loop(step: Callable[..., Any], carry: Any, xs: Tensor, reverse: bool = False) -> Any:
    rows = []
    for x in xs.flip(0) if reverse else xs:
        carry, y = step(carry, x)
        rows.append(y)
    rows.reverse() if reverse else None
    stacked = (
        [torch.stack(each) for each in zip(*rows, strict=True)] if isinstance(rows[0], tuple) else torch.stack(rows)
    )
    return carry, stacked


def outcome(scan: Callable[..., Any], step: Callable[..., Any], weights: Any, *given: Any) -> list[Tensor]:
    """Values and gradients."""
    carry, xs, reverse = given
    carry = tuple(each.clone().requires_grad_() for each in carry)
    leaves = [*carry, xs, *weights.values()]
    last, ys = scan(lambda carry, x: step(weights, carry, x), carry, xs, reverse=reverse)
    outputs = [*last, *(ys if isinstance(ys, (tuple, list)) else [ys])]
    factors = [torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view(each.shape) for each in outputs]
    gradients = torch.autograd.grad(outputs, leaves, factors, allow_unused=True)
    return [each.detach() for each in outputs] + [torch.zeros(()) if g is None else g for g in gradients]


def check(step: Callable[..., Any], steps: int, batch: int, size: int, dtype: torch.dtype, reverse: bool) -> None:
    torch.manual_seed(0)
    weights = weights_of(5, size, dtype)
    carry = tuple(torch.randn(batch, size, dtype=dtype) * 0.5 for _ in range(2))
    xs = torch.randn(steps, batch, 5, dtype=dtype, requires_grad=True)
    expected, found = (outcome(scan, step, weights, carry, xs, reverse) for scan in (loop, fourfold.scan))
    tolerance = {"rtol": 1e-10, "atol": 1e-11} if dtype is torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    torch.testing.assert_close(found, expected, **tolerance)
    with torch.profiler.profile() as profile:
        outcome(fourfold.scan, step, weights, carry, xs, reverse)
    assert (STAGES in {event.key for event in profile.key_averages()}) == (steps >= 4)


@pytest.mark.parametrize(("steps", "batch", "size"), [((1, 3, 9), 17, 6), ((4,), 1, 34), ((12,), 5, 130)])
@pytest.mark.parametrize("step", STEPS)
def test_the_loops_values_and_gradients(
    step: Callable[..., Any], steps: tuple[int, ...], batch: int, size: int
) -> None:
    for each in steps:  # of one capture
        check(step, each, batch, size, torch.float64, reverse=each in (3, 4, 12))


@pytest.mark.parametrize("step", STEPS)
def test_float32_by_each_generator(monkeypatch: pytest.MonkeyPatch, step: Callable[..., Any]) -> None:
    generators = Generators(monkeypatch)
    for generator in ("llvm", "interpreter"):
        generators.use(generator)
        check(step, 7, 4, 8, torch.float32, reverse=False)


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda x: x[..., :1].expand(x.shape),
        lambda x: torch.stack([x, x], -1)[..., 0],
    ],
    ids=["transposed", "expanded", "every other"],
)
@pytest.mark.parametrize("step", [lstm, blocks, by_torch, passes_through])
def test_any_layout_of_states_inputs_and_weights(step: Callable[..., Any], laid_out: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    weights = {
        name: laid_out(each.detach()) if each.dim() > 1 else each for name, each in weights_of(5, 6, F64).items()
    }
    carry = tuple(laid_out(torch.randn(3, 6, dtype=F64)) for _ in range(2))
    xs = laid_out(torch.randn(6, 3, 5, dtype=F64))
    with torch.no_grad():
        expected = loop(lambda carry, x: step(weights, carry, x), carry, xs)
        found = fourfold.scan(lambda carry, x: step(weights, carry, x), carry, xs)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(list(found[1]), list(expected[1]), rtol=1e-10, atol=1e-12)


F64 = torch.float64


def test_the_numbers_do_not_depend_on_the_threads() -> None:
    torch.manual_seed(0)
    weights = weights_of(64, 256, torch.float32)
    carry = tuple(torch.randn(48, 256) for _ in range(2))
    xs = torch.randn(5, 48, 64)
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with torch.no_grad():
                found.append(fourfold.scan(lambda carry, x: lstm(weights, carry, x), carry, xs))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=0, atol=0)


def test_weights_that_change_are_packed_again() -> None:
    weights = weights_of(5, 6, torch.float64)
    carry = tuple(torch.randn(3, 6, dtype=F64) for _ in range(2))
    xs = torch.randn(6, 3, 5, dtype=F64)
    for _ in range(3):
        with torch.no_grad():
            found = fourfold.scan(lambda carry, x: lstm(weights, carry, x), carry, xs)
            torch.testing.assert_close(found, loop(lambda carry, x: lstm(weights, carry, x), carry, xs))
            weights["U"].mul_(1.5)


def loops_of(monkeypatch: pytest.MonkeyPatch, step: Callable[..., Any]) -> dict[str, list[str]]:
    """The names of the operators in the loops of the forward and the backward."""
    found = bodies_of_loops(monkeypatch)
    check(step, 6, 3, 6, torch.float64, reverse=False)
    return {name: [str(node.target) for node in nodes] for name, nodes in found.items()}


@pytest.mark.parametrize("step", [lstm, joined])
def test_the_state_and_the_input_have_a_product_each(monkeypatch: pytest.MonkeyPatch, step: Callable[..., Any]) -> None:
    found = loops_of(monkeypatch, step)
    assert [name for name in found["forward"] if "split" not in name] == ["aten.addmm.default", "aten.addmm.default"]
    assert found["backward"] == ["aten.mm.default"]


def test_a_sum_is_the_beginning_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(weights: Any, carry: Any, x: Tensor) -> Any:
        h, c = carry
        h = torch.tanh(weights["b"][: h.shape[1]] + (h @ weights["S"] + x.sum(1, keepdim=True)) + c)
        return (h, c), h

    found = loops_of(monkeypatch, step)
    assert found["forward"] == ["aten.addmm.default"]
