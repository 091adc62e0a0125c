"""The pass that gives graphs the forms that the others look for."""

from __future__ import annotations

import torch

from fourfold.compiler.passes.canonicalize import canonicalize
from graphs import assert_alike, traced

aten = torch.ops.aten
x = torch.randn(4, 6)


def test_a_tensor_of_one_number_waits_for_no_other() -> None:
    module = canonicalize(traced(lambda x: torch.ones_like(x.cumsum(0)) * x, x))
    (node,) = module.graph.find_nodes(op="call_function", target=aten.full.default)
    assert node.args == ([4, 6], 1) and not node.all_input_nodes
    assert_alike(module, lambda x: x * 1, x)


def test_other_names_of_a_tensor_go_but_for_a_result() -> None:
    module = canonicalize(traced(lambda x: (aten.alias(x) * 2, aten.alias(x)), x))
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert product.args[0].op == "placeholder"
    assert module.graph.output_node().args[0][1].target is aten.alias.default


def test_a_slice_of_everything_is_what_it_is_of() -> None:
    module = canonicalize(traced(lambda x: aten.slice(x, 1, 0, 6) * aten.slice(x, 0, 0, 4), x))
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert {each.op for each in product.args} == {"placeholder"}
