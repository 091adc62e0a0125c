"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch
from torch import Tensor

from compiled import compiled, draw
from fourfold.compiler.nodes.recorder import layout
from fourfold.compiler.passes.canonicalize import canonicalize
from fourfold.compiler.passes.cse import cse
from graphs import assert_alike, operators, traced

x, y = draw(4, 6, gradient=False), draw(4, 6, seed=1, gradient=False)


def passed(function: Callable[..., object], *arguments: Tensor, dynamic: bool = False) -> list[str]:
    module = cse(canonicalize(traced(function, *arguments, dynamic=dynamic)))
    module.graph.lint()
    assert_alike(module, function, *arguments)
    return operators(module)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x, y: (x * y).sin() + (x * y).cos(), ["mul", "sin", "cos", "add"]),
        (lambda x, y: x[:, :3] * x[:, :3] + y[:, 3:], ["slice", "mul", "slice", "add"]),
        (lambda x, y: x.softmax(-1) + x.softmax(-1) * y, ["_softmax", "mul", "add"]),
        (lambda x, y: x.var(1) + x.var(1, correction=0), ["var", "var", "add"]),
        (lambda x, y: x * 2 + x * 2.5 + x * 2, ["mul", "mul", "add", "add"]),
        (lambda x, y: x.view(24).view(4, 6) + y, ["add"]),  # reshaped back
        (lambda x, y: x.cumsum(0) + x.cumsum(0), ["cumsum", "cumsum", "add"]),  # not in a program
        (lambda x, y: torch.rand(4) + torch.rand(4), ["rand", "rand", "add"]),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_equal_calls(function: Callable[..., Tensor], left: list[str], dynamic: bool) -> None:
    if "rand" in left:
        assert operators(cse(canonicalize(traced(function, x, y)))) == left
    else:
        assert [
            name for name in passed(function, x, y, dynamic=dynamic) if name not in ("sym_size", "floordiv")
        ] == left


def test_two_results_stay_two_tensors() -> None:
    assert passed(lambda x, y: (x.sin(), x.sin(), x.sin() * y), x, y) == ["sin", "sin", "mul"]
    assert passed(lambda x, y: (x.sin().view(24), x.sin() * y, x.sin()), x, y).count("sin") == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sin().mul(2).unbind(0)[0], x.sin().mul(2).unbind(0)[0]),
        lambda x: (x.sin().split(2)[1], x.sin().split(2)[1]),
        lambda x: (x.sin().diagonal(), x.sin().diagonal()),
        lambda x: (x.sin().as_strided((2, 2), (1, 2)), x.sin().as_strided((2, 2), (1, 2))),
        lambda x: (x.softmax(-1).t(), x.softmax(-1).t()),
        lambda x: (torch.var_mean(x, -1)[0].split(2)[0], torch.var_mean(x, -1)[0].split(2)[0]),
        lambda x: (x.sin()[1:], x.sin()[1:]),
    ],
)
def test_results_stay_apart(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Including views: the user may change one in place."""
    a, b = compiled(function)(x)
    assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    before = b.clone()
    a.add_(1)
    assert torch.equal(b, before)


@pytest.mark.parametrize("count", [4, 16])
def test_a_layout_is_read_once_per_node(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also along a chain of reshapes, each of which is compared with all before it. Expressions are never printed."""

    def function(x: Tensor) -> Tensor:
        x = torch.cat([x, x]).view(-1, 2)
        for _ in range(count):
            x = x.unsqueeze(0)
        return x.sin()

    module = canonicalize(traced(function, x, dynamic=True))
    read, printed = [], []
    monkeypatch.setitem(cse.__globals__, "layout", lambda value: read.append(value) or layout(value))
    monkeypatch.setattr(sympy.Basic, "__str__", lambda expression: printed.append(expression) or "")
    cse(module)
    assert not printed
    assert count < len(read) <= count + 2
