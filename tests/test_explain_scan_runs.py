"""fourfold.explain's report on scans, against what runs: events of torch's profiler, the nests that the library
requests, and the tensors that autograd saves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold
from explained_scans import biquad, counting, lstm_step, parameter, spiking, summed_up, twice
from fourfold.explaining.data import Scan
from fourfold.scanning import capture
from nests import needs_nests, of_explained
from requested import REQUESTED

# Steps, batch, hidden size.
T, B, H = 9, 5, 11
pytestmark = [needs_nests, pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    yield
    torch._dynamo.reset()


def zeros(count: int = 1) -> Any:
    states = tuple(torch.zeros(B, H) for _ in range(count))
    return states if count > 1 else states[0]


def by_cell(cell: nn.Module) -> Callable[..., Any]:
    def step(carry: Any, x: Tensor) -> Any:
        carry = cell(x, carry)
        return carry, carry[0] if isinstance(carry, tuple) else carry

    return step


def of_one_number(carry: Any, x: Tensor) -> Any:
    a, b = carry
    b = b + 0.17 * (x - b)
    return (a * torch.sigmoid(b), b), a - b


def same_twice(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h) + x
    return h, (h, h)


def normalized(h: Tensor, x: Tensor) -> Any:
    h = F.layer_norm(torch.tanh(h) + x, (H,))
    return h, h


def delta(state: Tensor, x: Tensor) -> Any:
    k = torch.tanh(x)
    v = torch.bmm(state, k[:, :, None])
    return state - v * k[:, None, :], v[:, :, 0]


def shifted(window: Tensor, x: Tensor) -> Any:
    window = torch.cat([window[:, 1:], torch.tanh(x[:, :1])], 1)
    return window, window.sum(1)


def passed_on(carry: Any, x: Tensor) -> Any:
    a, b = carry
    return (a, x), a * b


def drawn(h: Tensor, x: Tensor) -> Any:
    h = F.dropout(torch.tanh(h) + x, 0.5, True)
    return h, h


def largest(h: Tensor, x: Tensor) -> Any:
    """The backward writes into a new tensor in place."""
    values, indices = torch.topk(h + x, 3)
    return torch.tanh(h) + values.sum(1, keepdim=True), indices


def spectrum(h: Tensor, x: Tensor) -> Any:
    """The backward reads complex tensors as real ones."""
    transformed = torch.fft.rfft(h + x)
    return torch.tanh(h) + transformed.abs().sum(1, keepdim=True), h


def summed_over_rows(h: Tensor, x: Tensor) -> Any:
    """A program with such a sum is no stage."""
    weights = torch.softmax(h @ torch.eye(64) + x, -1)
    return torch.tanh(weights @ torch.eye(64) + (weights * x).sum(0)), weights


def cases() -> dict[str, tuple[Callable[..., Any], Any, Tensor]]:
    torch.manual_seed(0)
    weight, series = parameter(H, H), torch.randn(T, B, H)

    def linear(h: Tensor, x: Tensor) -> Any:
        return h @ weight + x, torch.sin(h)

    def scaled(h: Tensor, x: Tensor) -> Any:
        return torch.tanh(h) * weight[0] + x, h

    integers = (*zeros(2), torch.zeros(B, H, dtype=torch.int64))
    return {
        "lstm": (lstm_step(parameter(H, 4 * H), parameter(H, 4 * H)), zeros(2), series),
        "LSTMCell": (by_cell(nn.LSTMCell(H, H)), zeros(2), series),
        "GRUCell": (by_cell(nn.GRUCell(H, H)), zeros(), series),
        "spiking": (spiking, zeros(2), series),
        "float64": (spiking, tuple(each.double() for each in zeros(2)), series.double()),
        "bfloat16": (twice, zeros().bfloat16(), series.bfloat16()),
        "twice": (twice, zeros(), series),
        "same twice": (same_twice, zeros(), series),
        "counting": (counting, integers, series),
        "biquad": (biquad, zeros(4), series),
        "linear": (linear, zeros(), series),
        "scaled by a parameter": (scaled, zeros(), series),
        "layer norm": (normalized, zeros(), series),
        "bmm": (delta, torch.ones(B, H, H), series),
        "cumsum": (summed_up, zeros(), series),
        "shifted": (shifted, zeros(), series),
        "passed on": (passed_on, zeros(2), series),
        "dropout": (drawn, zeros(), series),
        "topk": (largest, zeros(), series),
        "a spectrum": (spectrum, zeros(), series),
        "every other": (spiking, zeros(2), torch.stack([series, series], -1)[..., 0]),
        "expanded": (spiking, zeros(2), series[:, :, :1].expand(T, B, H)),
        "the same x in every step": (spiking, zeros(2), series[:1].expand(T, B, H)),
        "x of one number": (spiking, zeros(2), series[:, 0, 0]),
        "one number": (of_one_number, (torch.zeros(1), torch.zeros(1)), series[:, 0, :1]),
        "sums over rows": (summed_over_rows, torch.zeros(256, 64), torch.randn(T, 256, 64)),
        "one step": (spiking, zeros(2), series[:1]),
        "three steps": (lstm_step(parameter(H, 4 * H), parameter(H, 4 * H)), zeros(2), series[:3]),
    }


CASES = list(cases())


def way_of(profile: Any, steps: int) -> str:
    """How a loop ran, determined from the number of calls of its programs and products."""
    events = {event.key: event.count for event in profile.key_averages()}
    programs = [count for name, count in events.items() if name.startswith("fourfold_") and "_loop_" not in name]
    products = [events[name] for name in ("aten::mm", "aten::addmm") if name in events]
    if steps == 1 or max(programs + products) >= steps:
        return "steps"
    return "stages" if "fourfold_loop_in_stages" in events else "nest"


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_what_runs(name: str) -> None:
    """Forward and reversed, of one capture."""
    step, init, xs = cases()[name]
    init, xs = pytree.tree_map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), (init, xs))

    def run(reverse: bool) -> Any:
        return fourfold.scan(step, init, xs, reverse=reverse)

    explanation = fourfold.explain(lambda: (run(False), run(True)))
    assert [scan.reverse for scan in explanation.scans] == [False, True]
    capture._compiled.clear()
    for scan in explanation.scans:
        expect_what_is_said(scan, functools.partial(run, scan.reverse), xs, list(given_to(step, init, xs)))
        for half in scan.halves:
            first = half.loop.programs[0] if half.loop.way == "nest" else None
            assert first is None or (of_explained(first.text), first.layout) in REQUESTED


def expect_what_is_said(scan: Scan, run: Callable[[], Any], xs: Tensor, given: list[Tensor]) -> None:
    """given: tensors that take no additional memory if they are saved."""

    def differentiate(results: Any) -> None:
        outputs = [leaf for leaf in pytree.tree_leaves(results) if leaf.requires_grad]
        torch.autograd.grad(outputs, [xs], [torch.ones_like(each) for each in outputs], allow_unused=True)

    differentiate(run())
    saved: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each)
    with torch.profiler.profile() as profile, hooks:
        results = run()
    assert scan.forward.loop.way == way_of(profile, len(xs))
    with torch.profiler.profile() as profile:
        differentiate(results)
    assert scan.backward.loop.way == way_of(profile, len(xs))
    inputs = {each.untyped_storage().data_ptr() for each in given}
    memory = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in saved}
    assert scan.forward.kept_bytes == sum(count for place, count in memory.items() if place not in inputs)


def given_to(step: Callable[..., Any], *trees: Any) -> Iterator[Tensor]:
    yield from (leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor))
    for cell in step.__closure__ or ():
        content = cell.cell_contents
        yield from content.parameters() if isinstance(content, nn.Module) else [content]
