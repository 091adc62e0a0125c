"""Products in the steps of a scan: of the input, for several steps at once; sums of several products; unused
columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

import fourfold
from scans import bodies_of_loops, loop

pytestmark = pytest.mark.usefixtures("fresh_steps")
F64 = torch.float64
NEAR = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Node]]:
    return bodies_of_loops(monkeypatch)


def names(nodes: list[Node]) -> list[str]:
    return [str(node.target).removeprefix("aten.").partition(".")[0] for node in nodes]


def gated(weights: Any, h: Tensor, x: Tensor) -> Any:
    """The input's product with a bias and the state's without, as in torch.nn's cells."""
    W, b, U = weights
    update, new = (F.linear(x, W, b) + h @ U).chunk(2, 1)
    h = h + torch.sigmoid(update) * (torch.tanh(new) - h)
    return h, h


def of(weights: Any, step: Callable[..., Any] = gated) -> Callable[..., Any]:
    return lambda h, x: step(weights, h, x)


def drawn(inputs: int, size: int, batch: int, dtype: torch.dtype = F64) -> tuple[list[Tensor], Tensor]:
    weights = [torch.randn(2 * size, inputs), torch.randn(2 * size), torch.randn(size, 2 * size) / size**0.5]
    return [each.to(dtype).requires_grad_() for each in weights], torch.randn(batch, size, dtype=dtype)


def outcome(scan: Callable[..., Any], step: Any, h: Tensor, xs: Tensor, leaves: list[Tensor], **settings: Any) -> Any:
    last, ys = scan(step, h, xs, **settings)
    factor = torch.linspace(-1, 1, ys.numel(), dtype=ys.dtype).view(ys.shape)
    return last, ys, torch.autograd.grad([last.sum() + (ys * factor).sum()], leaves, allow_unused=True)


LAYOUTS = {
    "contiguous": lambda steps, *sizes: torch.randn(steps, *sizes, dtype=F64),
    "batch first": lambda steps, batch, size: torch.randn(batch, steps, size, dtype=F64).transpose(0, 1),
    "features first": lambda steps, batch, size: torch.randn(steps, size, batch, dtype=F64).transpose(1, 2),
    "the same in all steps": lambda steps, *sizes: torch.randn(*sizes, dtype=F64).expand(steps, *sizes),
    "the same in all rows": lambda steps, batch, size: torch.randn(steps, 1, size, dtype=F64).expand(
        steps, batch, size
    ),
    "every other": lambda steps, *sizes: torch.randn(2 * steps, *sizes, dtype=F64)[::2],
}


BATCHES = {"contiguous": (1, 700), "batch first": (3, 201), "features first": (1, 400), "every other": (17, 65)}


@pytest.mark.parametrize(("batch", "size"), [(1, 401), (2, 345)])
def test_few_rows(batch: int, size: int) -> None:
    check_layout("contiguous", batch, size)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_the_input_for_some_steps_at_once(layout: str) -> None:
    check_layout(layout, *BATCHES.get(layout, (3, 210)))


def check_layout(layout: str, batch: int, size: int) -> None:
    """More steps than are computed at once, with one and two threads, forward and reversed."""
    torch.manual_seed(0)
    weights, h = drawn(5, size, batch)
    xs = LAYOUTS[layout](31, batch, 5)
    assert 31 * batch * 2 * size * 8 > 192 * 1024
    for reverse in (False, True):
        expected = outcome(loop, of(weights), h, xs, weights, reverse=reverse)
        for count in (1, 2):
            torch.set_num_threads(count)
            found = outcome(fourfold.scan, of(weights), h, xs, weights, reverse=reverse)
            torch.testing.assert_close(found, expected, **NEAR)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_steps(layout: str) -> None:
    """The buffer has room for all of the input's products."""
    torch.manual_seed(0)
    weights, h = drawn(5, 6, 3)
    xs = LAYOUTS[layout](6, 3, 5)

    def and_as_result(weights: Any, h: Tensor, x: Tensor) -> Any:
        own = F.linear(x, weights[0], weights[1])
        h, _ = two(own + h @ weights[2])
        return h, torch.cat([own, h], 1)

    def doubled(weights: Any, h: Tensor, x: Tensor) -> Any:
        h, _ = two(F.linear(x, weights[0]) + F.linear(x.flip(1), weights[0]) + h @ weights[2])
        return h, h

    other = (and_as_result, False) if list(LAYOUTS).index(layout) % 2 else (doubled, True)
    for step, reverse in ((gated, False), (gated, True), other):
        expected = outcome(loop, of(weights, step), h, xs, weights, reverse=reverse)
        found = outcome(fourfold.scan, of(weights, step), h, xs, weights, reverse=reverse)
        torch.testing.assert_close(found, expected, **NEAR)


@pytest.mark.parametrize(("batch", "dtype"), [(7, F64), (8, torch.float32), (8, F64), (31, torch.float32)])
def test_both_products_in_one_pass(batch: int, dtype: torch.dtype) -> None:
    """From eight rows on; also if the input's product is read twice, which then has its own stage."""

    def reads_twice(weights: Any, h: Tensor, x: Tensor) -> Any:
        own = F.linear(x, weights[0], weights[1])
        h, _ = two(own + h @ weights[2])
        return h, h * own[:, : h.shape[1]]

    tolerance = NEAR if dtype is F64 else {"rtol": 2e-4, "atol": 2e-5}
    for step in (gated, reads_twice):
        torch.manual_seed(0)
        weights, h = drawn(5, 33, batch, dtype)
        xs = torch.randn(9, batch, 5, dtype=dtype)
        expected = outcome(loop, of(weights, step), h, xs, weights)
        for count in (1, 2):
            torch.set_num_threads(count)
            found = outcome(fourfold.scan, of(weights, step), h, xs, weights)
            torch.testing.assert_close(found, expected, **tolerance)


def test_what_runs_in_a_step() -> None:
    def stages(batch: int, steps: int = 9) -> tuple[str, ...]:
        weights, h = drawn(5, 8, batch)
        step, xs = of([each.detach() for each in weights], in_a_chain), torch.randn(steps, batch, 5, dtype=F64)
        explanation = fourfold.explain(lambda xs: fourfold.scan(step, h, xs)[1], xs)
        return explanation.scans[0].forward.loop.stages[:2]

    packed = "addmm with a matrix packed once"
    assert stages(7) == ("addmm for all steps at once", packed)
    assert stages(4, 1000) == (f"{packed}, for {192 * 1024 // (4 * 16 * 8)} steps at once", packed)
    assert stages(8) == ("addmm and addmm in one pass with matrices packed once", "loop_program_0")


def in_a_chain(weights: Any, h: Tensor, x: Tensor) -> Any:
    return two(F.linear(x, weights[0], weights[1]) + h @ weights[2])


def test_they_take_no_memory_for_all_steps() -> None:
    weights, h = drawn(4, 64, 8, torch.float32)
    xs = torch.randn(500, 8, 4)
    with torch.no_grad():
        for _ in range(2):
            fourfold.scan(of(weights), h, xs)
        with torch.profiler.profile(profile_memory=True) as profile:
            fourfold.scan(of(weights), h, xs)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 500 * 8 * 64 * 4 <= largest < 1.5 * 500 * 8 * 64 * 4  # the results; the products are twice as large


@pytest.mark.parametrize(
    "step",
    [
        lambda w, h, x: two(F.linear(x, w[0], w[1]) + F.linear(h, w[2].T, w[1])),
        lambda w, h, x: two(w[1] + (F.linear(x, w[0], w[1]) + h @ w[2]) + h.sum(1, keepdim=True)),
        lambda w, h, x: two(torch.addmm(x[:, :1], h, w[2]) + (h.sin() @ w[2] + x @ w[0].T)),
        lambda w, h, x: two(F.linear(torch.cat([h, x], 1), torch.cat([w[2].T, w[0]], 1), w[1])),
        lambda w, h, x: two(torch.addmm(w[1], h, w[2], alpha=0.5) + h @ w[2]),
    ],
    ids=["cells", "nested", "two of the state", "side by side", "alpha"],
)
def test_sums_of_products(bodies: dict[str, list[Node]], step: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    weights, h = drawn(5, 6, 3)
    xs = torch.randn(9, 3, 5, dtype=F64)
    expected = outcome(loop, of(weights, step), h, xs, weights)
    torch.testing.assert_close(outcome(fourfold.scan, of(weights, step), h, xs, weights), expected, **NEAR)
    assert "mm" not in names(bodies["forward"]) and "cat" not in names(bodies["forward"])


def two(sums: Tensor) -> Any:
    left, right = sums.chunk(2, 1)
    h = torch.tanh(left) * torch.sigmoid(right)
    return h, h


def test_a_bias_takes_no_program_of_its_own(bodies: dict[str, list[Node]]) -> None:
    weights, h = drawn(5, 6, 3)
    fourfold.scan(of(weights, lambda w, h, x: two(h @ w[2] + x @ w[0].T + w[1])), h, torch.randn(4, 3, 5, dtype=F64))
    assert names(bodies["forward"]) == ["addmm", "addmm"]


def test_three_side_by_side_at_a_second_size() -> None:
    for inputs, size, batch in ((5, 6, 3), (4, 7, 2)):
        weights = [torch.randn(2 * size + inputs, 2 * size, dtype=F64).requires_grad_()]
        h, xs = torch.randn(batch, size, dtype=F64), torch.randn(6, batch, inputs, dtype=F64)
        step = of(weights, lambda w, h, x: two(torch.cat([h, x, h.sin()], 1) @ w[0]))
        expected = outcome(loop, step, h, xs, weights)
        torch.testing.assert_close(outcome(fourfold.scan, step, h, xs, weights), expected, **NEAR)


@pytest.mark.parametrize("sizes", [[(5, 6, 3)], [(5, 6, 3), (4, 7, 1)]], ids=["known sizes", "symbolic sizes"])
def test_columns_that_nobody_reads(bodies: dict[str, list[Node]], sizes: list[tuple[int, int, int]]) -> None:
    """The gradient of an input that doesn't need one is not computed, even after a second size made sizes symbolic."""

    def joined(weights: Any, h: Tensor, x: Tensor) -> Any:
        return two(F.linear(torch.cat([h, x], 1), weights[0], weights[1]))

    for inputs, size, batch in sizes:
        torch.manual_seed(0)
        weights = [torch.randn(2 * size, size + inputs, dtype=F64), torch.randn(2 * size, dtype=F64)]
        weights = [each.requires_grad_() for each in weights]
        h, xs = torch.randn(batch, size, dtype=F64), torch.randn(6, batch, inputs, dtype=F64)
        expected = outcome(loop, of(weights, joined), h, xs, weights)
        torch.testing.assert_close(outcome(fourfold.scan, of(weights, joined), h, xs, weights), expected, **NEAR)
    assert names(bodies["forward"])[:2] == ["addmm", "addmm"]
    product = next(node for node in bodies["backward"] if node.target is torch.ops.aten.mm.default)
    assert "slice" not in names(bodies["backward"])
    assert int(product.meta["val"].shape[1]) == size
