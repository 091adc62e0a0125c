"""Steps for fourfold.scan, and a Python loop over them as reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

import fourfold
from fourfold.scanning.function import Recurrence

B, H, T = 3, 5, 7
Step = Callable[[Any, Any], tuple[Any, Any]]


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
    """Results, and gradients of all floating-point tensors."""

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


def bodies_of_loops(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Node]]:
    """PyTorch's operators in the loops that are compiled from here on, of the forward and the backward."""
    made = Recurrence.compiled
    found: dict[str, list[Node]] = {}

    def compiled(self: Recurrence, name: str, *given: Any) -> Any:
        result = made(self, name, *given)
        body = self.wholes[name, given[2]][0].loop.body
        found[name] = [node for node in body.nodes if str(node.target).startswith("aten.")]
        return result

    monkeypatch.setattr(Recurrence, "compiled", compiled)
    return found


class Generators:
    """Runs what is captured from here on by one generator, then by others, without capturing it again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.recurrences: list[Recurrence] = []
        make = Recurrence.__init__

        def made(recurrence: Recurrence, *given: Any) -> None:
            make(recurrence, *given)
            self.recurrences.append(recurrence)

        monkeypatch.setattr(Recurrence, "__init__", made)

    def use(self, generator: str) -> None:
        self.monkeypatch.setenv("FOURFOLD_GENERATOR", generator)
        for each in self.recurrences:
            for compiled in (each.functions, each.wholes, each.make_backward):
                compiled.clear()


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
