"""fourfold.scan against a Python loop over the same step, in values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold
from fourfold.scanning.capture import Captured

B, H, T = 3, 5, 7
Step = Callable[[Any, Any], tuple[Any, Any]]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that runs in Python raises, where a user is warned."""
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    torch.manual_seed(0)


def loop(step: Step, init: Any, xs: Any, dim: int = 0, reverse: bool = False, **others: Any) -> tuple[Any, Any]:
    steps = next(leaf.shape[dim] for leaf in pytree.tree_leaves(xs) if leaf is not None)
    ys = []
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        init, y = step(init, pytree.tree_map_only(Tensor, lambda leaf, t=t: leaf.select(dim, t), xs))
        ys.append(y)
    if reverse:
        ys.reverse()

    def stacked(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        rows = torch.stack([leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in leaves])
        return rows.movedim(0, dim) if dim < rows.dim() else rows

    return init, pytree.tree_map(stacked, *ys)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def outcome(scan: Callable[..., Any], step: Step, init: Any, xs: Any, parameters: list[Tensor], **settings: Any) -> Any:
    """Results and gradients of all floating-point tensors."""

    def fresh(leaf: Tensor) -> Tensor:
        return leaf.detach().clone().requires_grad_(leaf.is_floating_point())

    init, xs = pytree.tree_map_only(Tensor, fresh, (init, xs))
    carry, y = scan(step, init, xs, **settings)
    results = tensors((carry, y))
    wanted = [leaf for leaf in [*tensors((init, xs)), *parameters] if leaf.requires_grad]
    weights = [torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view(r.shape) for r in results if r.requires_grad]
    loss = sum((r * w).sum() for r, w in zip([r for r in results if r.requires_grad], weights, strict=True))
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True) if isinstance(loss, Tensor) else []
    return carry, y, [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, wanted, strict=False)]


def check(
    step: Step, init: Any, xs: Any, parameters: list[Tensor] | None = None, tolerance: float = 1e-5, **settings: Any
) -> None:
    given = (step, init, xs, parameters or [])
    expected, found = outcome(loop, *given, **settings), outcome(fourfold.scan, *given, **settings)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        expected, found = loop(step, init, xs, **settings), fourfold.scan(step, init, xs, **settings)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return g / (1 + (math.pi * v) ** 2)


def spiking(carry: Any, x: Tensor) -> Any:
    v, i = carry
    i = i + 0.2 * (x - i)
    v = v + 0.1 * (i - v)
    spike = Spike.apply(v - 0.1)
    return (v * (1 - spike), i), spike


def module_steps() -> Iterator[tuple[str, nn.Module, Step, Any]]:
    gru, lstm, rnn = nn.GRUCell(H, H), nn.LSTMCell(H, H), nn.RNNCell(H, H)

    def gru_step(h: Tensor, x: Tensor) -> Any:
        h = gru(x, h)
        return h, h

    def lstm_step(carry: Any, x: Tensor) -> Any:
        h, c = lstm(x, carry)
        return (h, c), h

    def rnn_step(h: Tensor, x: Tensor) -> Any:
        h = rnn(x, h)
        return h, {"h": h, "twice": 2 * h}

    yield "gru", gru, gru_step, torch.randn(B, H)
    yield "lstm", lstm, lstm_step, (torch.randn(B, H), torch.randn(B, H))
    yield "rnn", rnn, rnn_step, torch.randn(B, H)


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
    )  # sums of 16-bit gradients
    found, expected = (outcome(scan, step, init, xs, []) for scan in (fourfold.scan, loop))
    torch.testing.assert_close(found, expected, **tolerance)


def test_carries_that_are_passed_through_swapped_or_replaced() -> None:
    def step(carry: Any, x: Tensor) -> Any:
        a, b, c, d = carry
        return (b, a, c, x), a + b + c + d

    init = tuple(torch.randn(B, H) for _ in range(4))
    check(step, init, torch.randn(T, B, H))


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
    for _ in range(1 if name == "begins" else 4):  # behind one step `before` is a tensor, as if it were set before
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

    # torch rounds a product in bfloat16 differently if it has more rows.
    check(step, torch.zeros(B, H), torch.randn(T, B, H), list(linear.parameters()), tolerance=0.02)


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
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """The traces of steps, as they come."""
    found: list[Captured] = []
    of = Captured.of
    monkeypatch.setattr(Captured, "of", lambda *given: found.append(of(*given)) or found[-1])
    return found


def test_lengths_and_batch_sizes_share_a_trace(traces: list[Captured]) -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        return torch.tanh(h + x), h

    for steps in (2, 3, 10, 100, 1000):
        check(step, torch.zeros(B, H), torch.randn(steps, B, H))
    assert len(traces) == 2  # with gradients and without
    for batch in range(2, 20):
        check(step, torch.zeros(batch, H), torch.randn(T, batch, H))
    assert len(traces) == 4  # with a dynamic batch


def test_fresh_functions_with_the_same_code_share_a_trace() -> None:
    for k in range(12):
        carry, _ = fourfold.scan(lambda h, x, k=k: (h + k * x, None), torch.zeros(3), torch.ones(T, 3))
        assert carry.tolist() == [k * T] * 3


def test_many_shapes_of_one_step() -> None:
    for rank in range(1, 5):
        for dtype in (torch.float32, torch.float64, torch.int64):
            init = torch.zeros([2] * rank, dtype=dtype)
            carry, _ = fourfold.scan(lambda h, x: (h + x, None), init, torch.ones([T] + [2] * rank, dtype=dtype))
            assert carry.flatten()[0] == T


@pytest.mark.parametrize("every", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_checkpoints(every: int, reverse: bool) -> None:
    _, cell, step, init = list(module_steps())[1]
    check(step, init, torch.randn(T, B, H), list(cell.parameters()), checkpoint_every=every, reverse=reverse)


def test_second_derivatives() -> None:
    cell = nn.GRUCell(H, H).double()

    def run(init: Tensor, xs: Tensor, *weights: Tensor) -> Any:
        return fourfold.scan(lambda h, x: (cell(x, h),) * 2, init, xs)

    given = [torch.randn(B, H, dtype=torch.float64, requires_grad=True), torch.randn(3, B, H).double().requires_grad_()]
    assert torch.autograd.gradcheck(run, (*given, *cell.parameters()))
    assert torch.autograd.gradgradcheck(run, (*given, *cell.parameters()))


def test_functorch_and_forward_mode() -> None:
    cell = nn.Linear(2 * H, H)

    def last(init: Tensor, xs: Tensor, scan: Callable[..., Any] = fourfold.scan) -> Tensor:
        return scan(lambda h, x: (torch.tanh(cell(torch.cat([x, h], -1))), None), init, xs)[0]

    init, xs = torch.randn(B, H), torch.randn(T, B, H)
    for of in (fourfold.scan, loop):
        expected = [
            torch.vmap(lambda i, x: last(i[None], x[:, None], loop), (0, 1))(init, xs),
            torch.func.grad(lambda i: last(i, xs, loop).sum())(init),
            torch.func.jvp(lambda i: last(i, xs, loop), (init,), (init,))[1],
        ]
        found = [
            torch.vmap(lambda i, x, of=of: last(i[None], x[:, None], of), (0, 1))(init, xs),
            torch.func.grad(lambda i, of=of: last(i, xs, of).sum())(init),
            torch.func.jvp(lambda i, of=of: last(i, xs, of), (init,), (init,))[1],
        ]
        torch.testing.assert_close(found, expected)


def test_results_do_not_depend_on_threads() -> None:
    _, cell, step, init = next(module_steps())
    xs = torch.randn(T, B, H)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(outcome(fourfold.scan, step, init, xs, list(cell.parameters())))
    torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_results_that_are_needed_must_not_be_changed_in_place() -> None:
    xs = torch.randn(T, B, H, requires_grad=True)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + x)
        return h, h

    _, ys = fourfold.scan(step, torch.zeros(B, H), xs)
    ys.detach().zero_()
    with pytest.raises(RuntimeError, match="modified (by an )?inplace"):
        ys.sum().backward()


def of_another_shape(h: Tensor, x: Tensor) -> Any:
    wide = torch.cat([h, x], 1)
    return wide, x


def test_errors_name_the_line() -> None:
    init, xs = torch.zeros(B, H), torch.randn(T, B, H)
    with pytest.raises(
        ValueError, match=r"leaf 0 of the carry as float32 of shape \(3, 5\).*\(3, 10\).*wide = torch.cat"
    ):
        fourfold.scan(of_another_shape, init, xs)
    with pytest.raises(ValueError, match="leaf 0 of the carry as float32.*float64"):
        fourfold.scan(lambda h, x: (h.double(), x), init, xs)
    with pytest.raises(TypeError, match="return a carry like init"):
        fourfold.scan(lambda h, x: ((h, h), x), init, xs)
    with pytest.raises(TypeError, match="return a carry like init"):
        fourfold.scan(lambda pair, x: ([pair[0]], x), [init, init], xs)

    def branches(h: Tensor, x: Tensor) -> Any:
        if h.sum() > 0:
            h = h + 1
        return h, x

    with pytest.raises(RuntimeError, match=r"can't be traced at .*test_scan.py:\d+, .if h.sum\(\) > 0:"):
        fourfold.scan(branches, init, xs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, torch.zeros(2), torch.zeros(3, 2)), "expected step to be callable"),
        ((lambda h, x: (h, x), torch.zeros(2), None), "at least one tensor"),
        ((lambda h, x: (h, x), torch.zeros(2), 3.0), "expected xs to be tensors"),
        ((lambda h, x: (h, x), torch.zeros(2), torch.zeros(3), 1), "with dimension 1"),
        (
            (lambda h, x: (h, x), torch.zeros(2), (torch.zeros(3), torch.zeros(4))),
            r"one size in dimension 0, but got \[3, 4\]",
        ),
        ((lambda h, x: (h, x), "a", torch.zeros(3)), "init to be tensors and numbers"),
        ((lambda h, x: (h, x), torch.zeros(2), torch.zeros(3), 0, False, 0), "checkpoint_every to be a positive"),
    ],
)
def test_arguments_that_do_not_fit(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fourfold.scan(*given)


def test_sizes_that_no_tensor_has(traces: list[Captured]) -> None:
    """With a dynamic batch: products of sizes, means, and what is the same in every step."""
    weight = nn.Parameter(torch.randn(H, H) / 3)

    def step(h: Tensor, x: Tensor) -> Any:
        both = torch.cat([torch.eye(H), weight], 1)
        pairs = h @ h.T  # (batch, batch)
        h = torch.tanh((x @ weight).reshape(-1, H) + h.mean(0, keepdim=True) + (h @ both)[:, :H])
        return h, (pairs.mean(), pairs.reshape(-1).sum(0), h.mean(), both)

    for batch in (3, 4, 2, 6):
        check(step, torch.randn(batch, H), torch.randn(T, batch, H), [weight])
    assert len(traces) <= 4


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


def test_second_derivatives_of_inputs_that_depend_on_each_other() -> None:
    weight = torch.randn(H, H, dtype=torch.float64, requires_grad=True)
    i, x = torch.randn(B, H).double().requires_grad_(), torch.randn(3, B, H).double().requires_grad_()

    def step(h: Tensor, p: Any) -> Any:
        p = p if isinstance(p, Tensor) else p[0] * p[1].cos()
        return torch.tanh(h @ weight + p), (h, 2)

    for init, xs, settings in (
        (lambda: torch.tanh(i @ weight), lambda: x, {}),
        (lambda: x[0], lambda: (x, x), {}),
        (lambda: i, lambda: x, {"checkpoint_every": 2}),
    ):
        found = []
        for scan in (loop, fourfold.scan):
            _, (y, _) = scan(step, init(), xs(), **settings)
            first = torch.autograd.grad(y.sin().sum(), (weight, x), create_graph=True)
            found.append((first, torch.autograd.grad(first[0].sin().sum(), (weight, x))))
        torch.testing.assert_close(*found)


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


def test_numbers_returned_as_carry_are_of_its_kind() -> None:
    last, _ = fourfold.scan(lambda c, x: (0.5, c + x), torch.zeros((), dtype=torch.float64), torch.ones(3))
    assert (float(last), last.dtype) == (0.5, torch.float64)
    for init in (0, torch.zeros(2, 3)):
        with pytest.raises(ValueError, match="leaf 0 of the carry"):
            fourfold.scan(lambda c, x: (0.5, x), init, torch.ones(3))


def test_transforms_leave_the_inputs_as_they_are() -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        h.add_(x.mul_(2))
        return h, h * 1

    init, xs = torch.zeros(B, H), torch.ones(T, B, H)
    torch.vmap(lambda i, x: fourfold.scan(step, i, x), (0, 1))(init, xs)
    assert (init.sum(), xs.sum()) == (0, xs.numel())


@pytest.mark.parametrize("carry", [None, torch.zeros(2)])
def test_operators_without_a_rule_for_all_steps(carry: Any) -> None:
    embedding = nn.Embedding(7, H)

    def step(h: Any, x: Any) -> Any:
        values, index = x
        return h, (values.sort(-1)[0], embedding(index), values.cumprod(-1))

    xs = torch.randn(T, B, H), torch.randint(0, 7, (T, B))
    check(step, carry, xs, [embedding.weight])


def test_numbers_that_the_step_closes_over() -> None:
    for k in (2, 1, 3, 0, 0.5):
        check(lambda h, x, k=k: (h * 0.2 + x * k, h), torch.zeros(B, H), torch.randn(T, B, H))


def test_threads() -> None:
    def run(k: int) -> Tensor:
        return fourfold.scan(lambda h, x: (torch.tanh(h * k + x), h), torch.zeros(B, H + k), torch.ones(T, B, H + k))[0]

    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(run, range(4))):
            torch.testing.assert_close(found, run(k))


@pytest.mark.filterwarnings("ignore:fourfold could not compute scan")
@pytest.mark.filterwarnings("ignore:fourfold could not compute the scan of")
def test_sizes_that_depend_on_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may run in Python."""
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    init, xs = torch.zeros(()), torch.randn(T, B)
    for step in (
        lambda h, x: (h + x[x > 0].sum(), h),
        lambda h, x: (h + 1, x[x > 0].sum()),
        lambda h, x: (h + x.sum().item(), x * 2),
        lambda h, x: (h, torch.nonzero(x > 0).sum()),
    ):
        torch.testing.assert_close(fourfold.scan(step, init, xs), loop(step, init, xs))
