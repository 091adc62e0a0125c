"""fourfold.scan of steps that change or read outside state: buffers, attributes, random numbers, modes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fourfold
from scans import B, H, T, check, loop, outcome

pytestmark = pytest.mark.usefixtures("strict")


def test_changes_of_carry_and_x_in_place_stay_within_the_step() -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        x.mul_(2)
        h.add_(x)
        return h, torch.sigmoid(h)

    init, xs = torch.zeros(B, H), torch.randn(T, B, H)
    before = init.clone(), xs.clone()
    found = fourfold.scan(step, init, xs)
    torch.testing.assert_close((init, xs), before)
    torch.testing.assert_close(found, loop(step, init.clone(), xs.clone()))


def test_batch_norm_counts_every_step() -> None:
    def run(scan: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(H)

        def step(h: Tensor, x: Tensor) -> Any:
            h = torch.tanh(norm(x + h))
            return h, h

        out = outcome(scan, step, torch.zeros(B, H), torch.randn(T, B, H), list(norm.parameters()))
        return out, list(norm.buffers())

    torch.testing.assert_close(run(fourfold.scan), run(loop), rtol=1e-4, atol=1e-5)


def test_attributes_have_the_last_steps_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cell(nn.Module):
        def forward(self, h: Tensor, x: Tensor) -> Any:
            self.seen = torch.tanh(h + x)
            return self.seen, x

    class Unchanged(Cell):
        def forward(self, h: Tensor, x: Tensor) -> Any:
            super().forward(h, x)
            return self.seen, None

    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    fourfold.scan(Unchanged(), torch.zeros(B, H), torch.randn(T, B, H))  # a state and an attribute are one value
    cells = Cell(), Cell()
    init, xs = torch.zeros(B, H), torch.randn(T, B, H, requires_grad=True)
    gradients = []
    for cell, scan in zip(cells, (fourfold.scan, loop), strict=True):
        scan(cell, init, xs)
        gradients.append(torch.autograd.grad(cell.seen.sum(), xs)[0])
    torch.testing.assert_close(cells[0].seen, cells[1].seen)
    torch.testing.assert_close(*gradients)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.is_odd, self.before, self.seen = 0, False, None, []
        self.linear = nn.Linear(H, H)

    def counts(self, carry: Tensor, x: Tensor) -> Any:
        self.count += 1
        return carry * self.count + x, carry

    def alternates(self, carry: Tensor, x: Tensor) -> Any:
        self.is_odd = not self.is_odd
        return carry + x if self.is_odd else carry - x, carry

    def begins(self, carry: Tensor, x: Tensor) -> Any:
        if self.before is None:
            self.before = carry
        return carry + x * self.before, carry

    def appends(self, carry: Tensor, x: Tensor) -> Any:
        self.seen.append(carry)
        return carry + x, carry

    def hooked(self, carry: Tensor, x: Tensor) -> Any:
        return self.linear(carry) + x, carry

    def count_up(self, *given: Any) -> None:
        self.count += 1


CHANGING = {"counts": "count", "alternates": "is_odd", "begins": "before is None", "appends": "seen", "hooked": "count"}


@pytest.mark.parametrize("name", CHANGING)
def test_python_objects_that_a_step_changes_and_depends_on_are_refused(name: str) -> None:
    module = Counting()
    module.linear.register_forward_hook(module.count_up)
    init, xs = torch.zeros(B, H), torch.randn(4, B, H)
    for _ in range(1 if name == "begins" else 4):  # after the first step `before` is a tensor, as if it were set before
        with pytest.raises(RuntimeError, match=f"changes Python objects .*{CHANGING[name]}.* part of the carry"):
            fourfold.scan(getattr(module, name), init, xs)


def test_an_attribute_that_is_read_and_replaced_is_refused() -> None:
    class Leaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mem = torch.zeros(B, H)

        def forward(self, carry: Tensor, x: Tensor) -> Any:
            self.mem = self.mem * 0.5 + x
            return carry, self.mem

    total = torch.zeros(B, H)

    def step(carry: Tensor, x: Tensor) -> Any:
        nonlocal total
        total = total + x
        return carry, total

    for each, name in ((Leaky(), "step.mem"), (step, "total")):
        with pytest.raises(RuntimeError, match=f"the step reads {name} and replaces it; make it part of the carry"):
            fourfold.scan(each, torch.zeros(()), torch.randn(T, B, H))


class Buffered(nn.Module):
    """As snntorch's neurons: the state is a buffer, and an argument."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.linear, self.reads = nn.Linear(H, H), reads
        self.register_buffer("mem", torch.zeros(0), False)

    def forward(self, x: Tensor, mem: Tensor) -> Tensor:
        if self.reads and self.mem.shape != x.shape:
            mem = mem + 1
        self.mem = mem
        self.mem = self.linear(x) + 0.5 * self.mem
        return self.mem


def test_a_buffer_that_the_step_only_replaces_has_the_last_steps_value() -> None:
    module, xs = Buffered(), torch.randn(T, B, H)

    def step(mem: Tensor, x: Tensor) -> Any:
        mem = module(x, mem)
        return mem, mem

    for grad in (True, False):  # before the first scan the buffer has another shape, and needs no gradient
        with torch.set_grad_enabled(grad):
            last, _ = fourfold.scan(step, torch.zeros(B, H), xs)
        torch.testing.assert_close(module.mem, last)
        check(step, torch.zeros(B, H), xs, list(module.parameters()))


def test_a_buffer_whose_shape_the_step_reads_is_refused() -> None:
    module = Buffered(reads=True)
    with pytest.raises(RuntimeError, match="changes Python objects .*mem.* part of the carry"):
        fourfold.scan(lambda mem, x: (module(x, mem),) * 2, torch.zeros(B, H), torch.randn(4, B, H))


def test_random_numbers_differ_from_step_to_step() -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        mask = F.dropout(x, 0.5)
        inner = F.dropout(h, 0.5)
        return h * 0.5 + mask, (mask, inner)

    _, (masks, inner) = fourfold.scan(step, torch.ones(B, 50), torch.ones(T, B, 50))
    for each in (masks, inner[1:]):
        patterns = {tuple((row == 0).flatten().tolist()) for row in each}
        assert len(patterns) == len(each)
    assert 0.4 < (masks == 0).float().mean() < 0.6


def test_gradients_of_dropout_are_those_of_the_same_masks() -> None:
    xs = torch.ones(T, B, 50, requires_grad=True)
    _, ys = fourfold.scan(lambda h, x: (h, F.dropout(x, 0.5)), torch.zeros(()), xs)
    (gradient,) = torch.autograd.grad(ys.sum(), xs)
    torch.testing.assert_close(gradient, ys.detach())


def test_autocast_and_no_grad_within_the_step() -> None:
    linear = nn.Linear(H, H)

    def step(h: Tensor, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x)
        with torch.no_grad():
            scale = h.abs().mean()
        return torch.tanh(h.detach() * scale + h + y.float()), y

    # torch rounds a bfloat16 product differently if it has more rows.
    check(step, torch.zeros(B, H), torch.randn(T, B, H), list(linear.parameters()), tolerance=0.02)


def test_random_steps_with_layer_norm_convolution_and_gather() -> None:
    norm, conv = nn.LayerNorm(H), nn.Conv1d(1, 1, 3, padding=1)

    def step(carry: Any, xs: Any) -> Any:
        h, last = carry
        x, index = xs
        h = norm(h + conv(x[:, None])[:, 0])
        picked = h.gather(1, index)
        return (torch.softmax(h, -1) + x.cumsum(-1), picked.sum(1)), (picked, last.sort()[0], h.amax(1))

    xs = torch.randn(T, B, H), torch.randint(0, H, (T, B, 2))
    check(step, (torch.randn(B, H), torch.zeros(B)), xs, [*norm.parameters(), *conv.parameters()])


def test_numbers_that_the_step_closes_over() -> None:
    for k in (2, 1, 3, 0, 0.5):
        check(lambda h, x, k=k: (h * 0.2 + x * k, h), torch.zeros(B, H), torch.randn(T, B, H))


def test_a_float64_tensor_of_no_dimensions_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch loses the change."""
    count = torch.zeros((), dtype=torch.float64)

    def step(h: Tensor, x: Tensor) -> Any:
        count.add_(1)
        return h + x, h

    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    with pytest.warns(RuntimeWarning, match="a float64 tensor of no dimensions"):
        fourfold.scan(step, torch.zeros(3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))
    assert count == 4


def test_float64_tensors_of_no_dimensions_that_are_parts_of_others() -> None:
    xs, zero = torch.arange(5, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    check(lambda h, x: (h + x * 2, h), zero, xs[1:])
    check(lambda h, x, factor=xs[2]: (h + x * factor, h), zero, xs, reverse=True)


DRAWN: list[Callable[[Tensor], Tensor]] = [
    lambda h: torch.bernoulli(torch.full_like(h, 0.5)),
    lambda h: torch.bernoulli(torch.ones_like(h) * 0.5),
    lambda h: torch.multinomial(torch.ones_like(h), 2),
    lambda h: torch.normal(torch.ones_like(h), 1.0),
    lambda h: torch.poisson(torch.ones_like(h)),
    lambda h: F.rrelu(-h.abs(), training=True),
]


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("draw", DRAWN, ids=range(len(DRAWN)))
def test_numbers_drawn_like_the_state(draw: Callable[[Tensor], Tensor], changes: bool) -> None:
    """Every row and every step has its own numbers."""
    init, xs = torch.ones(4, 6), torch.ones(30, 4, 6)
    _, y = fourfold.scan(lambda h, x: (h + x if changes else h, draw(h)), init, xs)
    assert y.shape == (30, *draw(init).shape)
    assert not y[:, 0].equal(y[:, 1])
    assert not y[0].equal(y[1])


def test_objects_with_the_names_of_our_own() -> None:
    class Settings:
        structure: Any

    settings, settings.structure = Settings(), Settings()
    settings.structure.carry_spec = settings.structure.has_x = 2.0

    def step(h: Tensor, x: Tensor) -> Any:
        return h * settings.structure.carry_spec + x, h * settings.structure.has_x

    init, xs = torch.randn(B, H), torch.randn(3, B, H)
    check(step, init, xs)
    settings.structure.carry_spec = 0.5
    check(step, init, xs)
    settings.structure.has_x = 3.0
    check(step, init, xs)


def test_threads() -> None:
    def run(k: int) -> Tensor:
        return fourfold.scan(lambda h, x: (torch.tanh(h * k + x), h), torch.zeros(B, H + k), torch.ones(T, B, H + k))[0]

    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(run, range(4))):
            torch.testing.assert_close(found, run(k))
