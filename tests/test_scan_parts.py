"""Steps whose programs read parts of states and of a step's tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fourfold
from scans import Generators

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def of_a_column(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Each element reads the state's first one, which another element of the step before has computed."""
    h = torch.tanh(h[:, :1] + x)
    return h, h * 2


def of_a_row(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h[1] * 0.5 + x)
    return h, h + 1


def of_neighbours(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(torch.cat([h[:, 1:], h[:, :1]], 1) * 0.5 + x)
    return h, h[:, 1:] - h[:, :-1]


def of_rows(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.softmax(h[:, :1] + x, 1)
    return h, h[:, 0].unsqueeze(1) * x


def of_the_steps_tensor(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h * 0.5 + x[:, :1] * x[0])
    return h, h * x[:, 1:2]


def with_a_row_first(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.cat([torch.tanh(h[0] + x[1]).unsqueeze(0), h[:-1]])
    return h, h * x


STEPS = (of_a_column, of_a_row, of_neighbours, of_rows, of_the_steps_tensor, with_a_row_first)


def by_loop(step: Step, h: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
    results = []
    for x in xs:
        h, y = step(h, x)
        results.append(y)
    return h, torch.stack(results)


@pytest.mark.parametrize("generator", ["llvm", "interpreter"])
@pytest.mark.parametrize("shape", [(4, 3), (40, 16)])
@pytest.mark.parametrize("step", STEPS)
def test_the_loops_values_and_gradients(
    step: Step, shape: tuple[int, int], generator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Generators(monkeypatch).use(generator)
    torch.manual_seed(0)
    h, xs = torch.randn(shape, dtype=torch.float64), torch.randn(7, *shape, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fourfold.scan(step, h, xs), by_loop(step, h, xs))
    found = []
    for scan in (fourfold.scan, by_loop):
        own = h.clone().requires_grad_(), xs.clone().requires_grad_()
        last, ys = scan(step, *own)
        found.append(torch.autograd.grad(last.sum() + ys.square().sum(), own))
    torch.testing.assert_close(found[0], found[1])
