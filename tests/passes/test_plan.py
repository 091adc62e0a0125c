"""The pass that writes the steps that C++ runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fourfold.compiler import passes
from graphs import traced

pytestmark = pytest.mark.usefixtures("strict")
x = torch.randn(4, 6)


def planned(function, *arguments: Tensor, **settings: bool):
    return passes.run(passes.FUSION, traced(function, *arguments, **settings)).meta


def test_steps_outputs_and_last_uses() -> None:
    plan = planned(lambda x: (x.sin() @ x.t()).exp(), x)["plan"]
    assert [step[0] for step in plan.steps] == ["program", "operator", "operator", "program"]
    program, transposed, product, last = plan.steps
    assert program[2] == [0] and transposed[1] == ("aten::t", "")
    assert product[2] == [("value", 1), ("value", 2)]
    assert sorted(product[3]) == [1, 2] and last[3] == [3]
    assert plan.outputs == [4]


def test_results_of_several() -> None:
    plan = planned(lambda x: (x.max(1)[1], *x.split(2)), x)["plan"]
    assert [step[0] for step in plan.steps] == ["operator", "operator", "item", "item"]
    assert len(set(plan.outputs)) == 3


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x: x.new_zeros(x.shape[0] * 2).cumsum(0), 8),
        (lambda x: x.new_zeros(x.shape[0] + 3 * x.shape[1]).cumsum(0), 22),
        (lambda x: x.new_zeros(x.shape[1] // 4 + x.shape[0] // 3 - 1).cumsum(0), 1),
        (lambda x: x.new_zeros(x.shape[0] % 3 + 4).cumsum(0), 5),
        (lambda x: x.new_full((2,), x.shape[0] / x.shape[1]).cumsum(0), 4 / 6),
    ],
)
def test_arithmetic_of_sizes(function, number: float) -> None:
    module = traced(function, x, dynamic=True)
    assert "number" in [step[0] for step in passes.run(passes.FUSION, module).meta["plan"].steps]
    compiled = torch.compile(function, backend="fourfold", dynamic=True)
    torch.testing.assert_close(compiled(x), function(x))
    assert number in (len(function(x)), float(function(x)[0]), pytest.approx(float(function(x)[0])))


def test_other_arithmetic_of_sizes_needs_python() -> None:
    meta = planned(lambda x: x.new_zeros(x.shape[0] ** 2 + 4).cumsum(0), x, dynamic=True)
    assert meta["plan"] is None
    assert "dispatcher" in meta["needs Python"]


def test_constants() -> None:
    def function(x: Tensor) -> Tensor:
        return (x @ torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).cumsum(0)

    torch.testing.assert_close(torch.compile(function, backend="fourfold")(x), function(x))


def test_passes_are_timed() -> None:
    seconds = planned(lambda x: x.sin(), x)["seconds"]
    assert list(seconds) == list(dict.fromkeys(each.__name__ for each in passes.FUSION))
    assert all(value > 0 for value in seconds.values())
