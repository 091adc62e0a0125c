"""Derivatives of fourfold.scan: checkpoints, second derivatives, transforms, and the memory that the backward reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from scans import B, H, Spike, T, check, loop, module_steps, outcome

pytestmark = pytest.mark.usefixtures("strict")


@pytest.mark.parametrize("every", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_checkpoints(every: int, reverse: bool) -> None:
    _, cell, step, init = list(module_steps())[1]
    check(step, init, torch.randn(T, B, H), list(cell.parameters()), checkpoint_every=every, reverse=reverse)


def test_second_derivatives() -> None:
    cell = nn.GRUCell(3, 2).double()  # few numbers, because each needs its own difference

    def run(init: Tensor, xs: Tensor, *weights: Tensor) -> Any:
        return fourfold.scan(lambda h, x: (cell(x, h),) * 2, init, xs)

    given = [torch.randn(2, 2, dtype=torch.float64, requires_grad=True), torch.randn(3, 2, 3).double().requires_grad_()]
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


def test_checkpoints_of_a_step_that_changes_tensors_outside_are_refused() -> None:
    mean = torch.zeros(H)

    def step(h: Tensor, x: Tensor) -> Any:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return torch.tanh(h + x - mean), None

    init, xs = torch.randn(B, H, requires_grad=True), torch.randn(T, B, H)
    with pytest.raises(ValueError, match="no checkpoint_every for a step that changes other tensors in place"):
        fourfold.scan(step, init, xs, checkpoint_every=2)
    fourfold.scan(step, init.detach(), xs, checkpoint_every=2)  # without a backward it runs once


COUNT = torch.zeros(B)


def counts(h: Tensor, x: Tensor) -> Any:
    COUNT.add_(1)
    return torch.tanh(h + x), None


def draws(h: Tensor, x: Tensor) -> Any:
    return torch.tanh(h + x) + 0 * torch.rand_like(h), None


def has_a_function(h: Tensor, x: Tensor) -> Any:
    return Spike.apply(h + x), None


@pytest.mark.parametrize("step", [counts, draws, has_a_function])
def test_gradients_that_cannot_be_differentiated_say_so(step: Callable[..., Any]) -> None:
    init, xs = torch.randn(B, H, requires_grad=True), torch.randn(1, B, H)
    last, _ = fourfold.scan(step, init, xs)
    (gradient,) = torch.autograd.grad(last.sum(), init, create_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(loop(step, init, xs)[0].sum(), init)[0])
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_second_derivatives_without_a_gradient() -> None:
    def step(carry: Any, x: Tensor) -> Any:
        a, b = carry
        return (a * 0.5, torch.tanh(b + a.sum()).detach()), b

    init = torch.rand(3), torch.rand(3, requires_grad=True)
    carry, _ = fourfold.scan(step, init, torch.rand(2, 3))
    total = sum(each.sum() for each in carry)
    assert torch.autograd.grad(total, init[1], create_graph=True, allow_unused=True) == (None,)
