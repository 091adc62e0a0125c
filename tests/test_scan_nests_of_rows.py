"""Loops over steps that reduce short rows, as one nest: the interpreter's bits, and the Python loop's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.compiler.nest.ir.layout import LONGEST_REDUCED_ROW
from fourfold.compiler.nest.jit.service import obstacle
from scans import Generators, loop, tensors

T = 7
pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "nests"),
    pytest.mark.usefixtures("fresh_steps"),
]


def selective(h: Tensor, xs: Any) -> Any:
    """(batch, channels, states), as in Mamba."""
    x, dt, b, c = xs
    c = c.detach()  # its gradient is a sum over the channels
    h = torch.exp(-dt.abs().unsqueeze(-1)) * h + (dt * x).unsqueeze(-1) * b.unsqueeze(1)
    return h, (h * c.unsqueeze(1)).sum(-1)


def of_channels(batch: int, channels: int, states: int) -> Any:
    return (batch, channels, states), [(batch, channels)] * 2 + [(batch, states)] * 2


def normalized(h: Tensor, x: Tensor) -> Any:
    h = torch.softmax(h + x, -1) + 0.1 * h.amax(-1, keepdim=True)
    return h, (h.sum(-1), h.mean(-1, keepdim=True), h.amin(-1))


def scaled(carry: Any, x: Tensor) -> Any:
    """The second state has one number per row."""
    h, most = carry
    h = h * 0.5 + x
    most = torch.maximum(most * 0.9, h.abs().amax(-1, keepdim=True))
    return (h / most, most), (h * x).sum(-1, keepdim=True) / most


def attention(s: Tensor, xs: Any) -> Any:
    """(batch, keys, values): rows are side by side in memory."""
    q, k, v = xs
    s = torch.sigmoid(q).unsqueeze(-1) * s + k.unsqueeze(-1) * v.unsqueeze(1)
    return s, (q.unsqueeze(1) @ s).squeeze(1)


def delta(s: Tensor, xs: Any) -> Any:
    q, k, v = xs
    s = s + 0.3 * torch.einsum("bk,bv->bkv", k, v - torch.einsum("bk,bkv->bv", k, s))
    return s, torch.einsum("bk,bkv->bv", q, s)


def by_number(h: Tensor, xs: Any) -> Any:
    """A step's decay is one number."""
    x, decay = xs
    h = torch.exp(-decay.square()) * h + x
    return h, h.sum(-1) * (decay + 1)


def attention_by_number(s: Tensor, xs: Any) -> Any:
    """Rows lie side by side."""
    q, decay = xs
    s = torch.exp(-decay.square()) * s + q.unsqueeze(-1)
    return s, (q.unsqueeze(1) @ s).squeeze(1)


def of_matrices(batch: int, keys: int, values: int) -> Any:
    return (batch, keys, values), [(batch, keys)] * 2 + [(batch, values)]


F32, F64 = torch.float32, torch.float64
# A step, the shapes of its states and series, and their dtype.
CASES: dict[str, tuple[Callable[..., Any], Any, torch.dtype]] = {
    **{f"selective of {n}": (selective, of_channels(2, 5, n), F32) for n in (5, 16, 24, LONGEST_REDUCED_ROW)},
    **{f"selective of {n} in float64": (selective, of_channels(2, 5, n), F64) for n in (2, 33, 64)},
    "long rows": (selective, of_channels(2, 3, 300), F32),  # the sum comes after the loop
    "long rows in float64": (selective, of_channels(2, 3, LONGEST_REDUCED_ROW + 1), F64),
    **{f"normalized {n}": (normalized, ((3, n), [(3, n)]), F32) for n in (3, 100)},
    "normalized in float64": (normalized, ((3, 20), [(3, 20)]), F64),
    **{f"scaled {n}": (scaled, ([(4, n), (4, 1)], [(4, n)]), F32) for n in (3, 20)},
    **{f"attention of {k}, {v}": (attention, of_matrices(2, k, v), F32) for k, v in ((2, 7), (17, 40), (50, 3))},
    **{f"by a number, {n}": (by_number, ((4, n), [(4, n), ()]), F32) for n in (3, 20, LONGEST_REDUCED_ROW)},
    "by a number in float64": (by_number, ((2, 5, 9), [(2, 5, 9), (1,)]), F64),
    "attention by a number": (attention_by_number, ((2, 17, 40), [(2, 17), ()]), F32),
    "before the step": (lambda h, x: (torch.softmax(h + x, -1), h.amax(-1)), ((3, 9), [(3, 9)]), F32),
    **{f"delta of {k}, {v}": (delta, of_matrices(2, k, v), F64) for k, v in ((8, 16), (40, 33))},
}


def given(shapes: Any, dtype: torch.dtype, leading: tuple[int, ...] = ()) -> Any:
    many = shapes if isinstance(shapes, list) else [shapes]
    found = tuple((torch.rand(*leading, *shape, dtype=dtype) - 0.3).requires_grad_() for shape in many)
    return found if len(found) > 1 else found[0]


def outcome(scan: Callable[..., Any], step: Callable[..., Any], init: Any, xs: Any, reverse: bool) -> list[Tensor]:
    results = tensors(scan(step, init, xs, reverse=reverse))
    weights = [torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view(each.shape) for each in results]
    wanted = [*tensors(init), *tensors(xs)]
    gradients = torch.autograd.grad(results, wanted, weights, allow_unused=True, materialize_grads=True)
    return [*results, *gradients]


def check(
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[..., Any],
    init: Any,
    xs: Any,
    reverse: bool = False,
    has_bits: bool = False,
    plain: bool = True,
) -> bool:
    """Returns whether a nest ran the steps of inference. has_bits: whether both generators compute everything by
    programs. Without nests, PyTorch computes sums over dimensions that aren't adjacent in memory. plain: also without
    gradients."""
    found, is_nest, generators = {}, {}, Generators(monkeypatch)
    for generator in ("llvm", "interpreter"):
        generators.use(generator)
        found[generator] = outcome(fourfold.scan, step, init, xs, reverse)
        if plain:
            with torch.no_grad():
                found[generator] += tensors(fourfold.scan(step, init, xs, reverse=reverse))
                with torch.profiler.profile() as profile:
                    fourfold.scan(step, init, xs, reverse=reverse)
            is_nest[generator] = "fourfold_loop_in_stages" not in {event.key for event in profile.key_averages()}
    assert len(generators.recurrences) == (2 if plain else 1)
    close = 1e-13 if found["llvm"][0].dtype == torch.float64 else 1e-5
    exact = 0 if has_bits else close
    torch.testing.assert_close(found["llvm"], found["interpreter"], rtol=exact, atol=exact)
    tolerance = 1e-4 if found["llvm"][0].dtype == torch.float32 else 1e-10
    expected = outcome(loop, step, init, xs, reverse)
    torch.testing.assert_close(found["llvm"][: len(expected)], expected, rtol=tolerance, atol=tolerance)
    assert not is_nest.get("interpreter")
    return is_nest.get("llvm", False)


@pytest.mark.parametrize("name", CASES)
def test_the_interpreters_bits(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    step, (states, series), dtype = CASES[name]
    init, xs = given(states, dtype), given(series, dtype, (T,))
    has_bits = step in (selective, normalized, scaled) and not name.startswith("long")
    assert check(monkeypatch, step, init, xs, dtype == F64, has_bits)


@pytest.mark.parametrize("name", ["selective of 24", "attention of 17, 40"])
@pytest.mark.parametrize("turned", ["init", "xs", "both"])
def test_tensors_that_lie_transposed(monkeypatch: pytest.MonkeyPatch, name: str, turned: str) -> None:
    step, (states, series), _ = CASES[name]

    def lie(each: Any) -> Any:
        return torch.utils._pytree.tree_map(lambda t: t.detach().mT.contiguous().mT.requires_grad_(), each)

    init, xs = given(states, torch.float32), given(series, torch.float32, (T,))
    init, xs = lie(init) if turned != "xs" else init, lie(xs) if turned != "init" else xs
    check(monkeypatch, step, init, xs, plain=False)


def test_longer_rows_run_in_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    states, series = (3, LONGEST_REDUCED_ROW + 1), [(3, LONGEST_REDUCED_ROW + 1)]
    assert not check(monkeypatch, normalized, given(states, torch.float32), given(series, torch.float32, (T,)))


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    states, series = of_channels(2, 300, 16)
    init, xs = given(states, torch.float32), given(series, torch.float32, (4 * T,))
    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    outcomes, before = [], torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        outcomes.append(outcome(fourfold.scan, selective, init, xs, reverse=False))
    torch.set_num_threads(before)
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)


def test_weights_gradients_of_a_batch_of_one_are_products() -> None:
    cell = torch.nn.RNNCell(4, 5)

    def step(h: Tensor, x: Tensor) -> Any:
        h = cell(x, h)
        return h, h

    (scan,) = fourfold.explain(lambda x: fourfold.scan(step, torch.zeros(1, 5), x), torch.randn(T, 1, 4)).scans
    names = [name for line in scan.backward.after for name in line.names]
    assert names.count("mm") == 2


def test_a_product_of_expanded_batches() -> None:
    def step(s: Tensor, xs: Any) -> Any:
        x, q = xs
        s = s * 0.5 + x
        return s, torch.bmm(q.expand(3, 1, 4), s.expand(3, 4, 5))

    init, xs = torch.randn(1, 4, 5), (torch.randn(T, 1, 4, 5), torch.randn(T, 1, 1, 4))
    torch.testing.assert_close(fourfold.scan(step, init, xs), loop(step, init, xs))


@pytest.mark.parametrize("batched", [False, True])
def test_a_gradient_that_only_its_sum_is_needed_of_is_added_up_in_the_loop(batched: bool) -> None:
    """The loop's backward writes no series of it."""
    decay = torch.rand(5, dtype=torch.float64, requires_grad=True)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h * decay + x)
        return h, h

    shape = (3, 5) if batched else (5,)
    outcomes = []
    for scan in (fourfold.scan, loop):
        torch.manual_seed(0)
        init, xs = torch.randn(shape, dtype=torch.float64), torch.randn(T, *shape, dtype=torch.float64)
        outcomes.append(torch.autograd.grad(scan(step, init, xs)[1].sin().sum(), decay)[0])
    torch.testing.assert_close(*outcomes, rtol=1e-12, atol=1e-12)
    backward = fourfold.explain(lambda xs: fourfold.scan(step, init, xs), xs).scans[0].backward
    assert "sum_mul" in str(backward.loop.code)
