"""The pass that removes copies into inputs where programs can write the new values there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fourfold.compiler import passes
from fourfold.compiler.analysis import in_place
from graphs import traced

pytestmark = pytest.mark.usefixtures("strict")
x, y = torch.randn(4, 6), torch.randn(4, 6)


def left_out(function: Callable, *arguments: Tensor) -> int:
    return len(passes.run(passes.FUSION, traced(function, *arguments)).meta["plan"].updates)


def updated(x: Tensor, y: Tensor) -> Tensor:
    new = x.sin() * y
    x.copy_(new)
    return new


def view_of_the_result(x: Tensor, y: Tensor) -> Tensor:
    new = x.sin() * y
    x.copy_(new)
    return new.mT


def read_by_torch_afterwards(x: Tensor, y: Tensor) -> Tensor:
    new = x.sin() * y
    product = new @ x.mT
    x.copy_(new)
    return product


def read_by_torch_before(x: Tensor, y: Tensor) -> Tensor:
    product = x @ y.mT
    x.copy_(product.sum() + x.sin())
    return product


def by_torch(x: Tensor, y: Tensor) -> None:
    x.copy_(x.sort()[0])


def twice(x: Tensor, y: Tensor) -> None:
    new = (x + 1).sin()
    x.copy_(new)
    y.copy_(new)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, y: (x.copy_(x.sin() * y), None)[1:], 1),
        (updated, 0),
        (view_of_the_result, 0),
        (read_by_torch_afterwards, 0),
        (read_by_torch_before, 1),
        (by_torch, 0),
        (twice, 1),
    ],
)
def test_copies_that_are_left_out(function: Callable, count: int) -> None:
    assert left_out(function, x.clone(), y.clone()) == count


def test_memory_of_results() -> None:
    module = traced(lambda x: (x.mT, x.view(-1), x.sin(), x @ x.mT, x.split(2)), x)
    new = {node.target for node in module.graph.nodes if node.op == "call_function" and in_place.is_new(node)}
    assert {str(target).split(".")[1] for target in new} == {"sin", "mm"}
