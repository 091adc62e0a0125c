"""The pass that brings graphs into the forms that the other passes expect."""

from __future__ import annotations

import pytest
import torch

from compiled import compiled
from fourfold.compiler.passes.canonicalize import canonicalize
from graphs import assert_alike, traced

aten = torch.ops.aten
x = torch.randn(4, 6)


def test_a_tensor_of_one_number_waits_for_no_other() -> None:
    module = canonicalize(traced(lambda x: torch.ones_like(x.cumsum(0)) * x, x))
    (node,) = module.graph.find_nodes(op="call_function", target=aten.full.default)
    assert node.args == ([4, 6], 1) and not node.all_input_nodes
    assert_alike(module, lambda x: x * 1, x)


def test_operators_on_constants_are_folded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x ** (torch.full((6,), 7.0) - torch.full_like(x[0], 2) ** 2)

    module = canonicalize(traced(function, x))
    (power,) = (
        node for node in module.graph.nodes if "pow" in node.name and node.users and len(node.args[0].users) > 1
    )
    assert power.target is aten.pow.Tensor_Scalar and power.args[1] == 3
    assert_alike(module, function, x)


def test_a_division_of_constants_that_torch_refuses_is_not_computed() -> None:
    module = canonicalize(traced(lambda x: x + torch.full((6,), 3) // torch.full((6,), 0), x))
    assert module.graph.find_nodes(op="call_function", target=aten.floor_divide.default)


def test_other_names_of_a_tensor_go_but_for_a_result() -> None:
    module = canonicalize(traced(lambda x: (aten.alias(x) * 2, aten.alias(x)), x))
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert product.args[0].op == "placeholder"
    assert module.graph.output_node().args[0][1].target is aten.alias.default


def test_a_slice_of_everything_is_what_it_is_of() -> None:
    module = canonicalize(traced(lambda x: aten.slice(x, 1, 0, 6) * aten.slice(x, 0, 0, 4), x))
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert {each.op for each in product.args} == {"placeholder"}


def test_a_view_of_a_tensor_with_other_strides_than_were_traced() -> None:
    """As in batch_norm of a transposed input, which torch traces with the input's strides."""
    module = canonicalize(traced(lambda x: x.view(24), x))
    module.recompile()
    torch.testing.assert_close(module(x.t().contiguous().t())[0], x.reshape(24))


@pytest.mark.parametrize("scale", [1, 2])  # the view alone, and a view that a program reads
def test_batch_norm_of_a_transposed_input(scale: int) -> None:
    norm = torch.nn.BatchNorm1d(6).eval()
    y = torch.randn(2, 4, 6, requires_grad=True)

    def function(y: torch.Tensor) -> torch.Tensor:
        return norm(y.transpose(1, 2)).transpose(1, 2).reshape(-1, 6) @ x.t() * scale

    got, expected = compiled(function)(y), function(y)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(result.sin().sum(), y) for result in (got, expected)))
