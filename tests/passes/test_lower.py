"""The pass that writes programs."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from fourfold.compiler import lowering
from fourfold.compiler.ir.values import Program, Value
from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.passes.epilogues import epilogues
from fourfold.compiler.passes.fuse import fuse
from fourfold.compiler.passes.lower import lower
from graphs import operators, refusals, traced

pytestmark = pytest.mark.usefixtures("strict")
x = torch.randn(4, 32)


def lowered(function, *arguments: Tensor):
    return lower(epilogues(fuse(traced(function, *arguments))))


def test_a_group_becomes_its_program() -> None:
    module = lowered(lambda x: x.sin() * 2, x)
    (node,) = fused_nodes(module.graph)
    assert node.target.text.endswith(
        "axes a=4 b=32\nx0: float32 = input float32 [a b]\nv1: float32 = sin x0\nv2: float32 = constant 2.0\n"
        "v3: float32 = mul v1 v2\noutput v3 float32 [a b]\n"
    )
    assert not node.target.space.dims  # no later pass reads it
    module.recompile()
    torch.testing.assert_close(module(x)[0], x.sin() * 2)


@pytest.mark.usefixtures("collected")
def test_only_its_text_stays_of_a_program() -> None:
    def values() -> int:
        gc.collect()
        return sum(type(each) in (Value, Program) for each in gc.get_objects())

    before = values()
    module = lowered(lambda x: x.sin() * 2, x)
    (node,) = fused_nodes(module.graph)
    assert node.target.text and not node.target.space.dims
    assert values() == before


def test_names_tell_programs_and_their_operators() -> None:
    module = lowered(lambda x: (x.sin() @ x.t()).exp() + 1, x)
    assert [node.target.__name__ for node in fused_nodes(module.graph)] == ["program_0", "program_1"]
    assert [node.target.profiled_name for node in fused_nodes(module.graph)] == ["fourfold_sin", "fourfold_exp_add"]


def test_what_has_no_program_goes_back_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(call: object, x: object) -> None:
        raise lowering.NotFusable("not today")

    monkeypatch.setitem(lowering.POINTWISE, torch.ops.aten.sin.default, refuses)
    module = lowered(lambda x: (x.sin().t() * 2, x.cumsum(0)), x)
    module.graph.lint()
    assert sorted(operators(module)) == ["cumsum", "mul", "sin", "t"]
    assert refusals(module) == {"sin": "not today", "mul": "not today"}


def test_inputs_with_long_names() -> None:
    """With dynamic sizes: a program reads these from its inputs, which it refers to by their names."""

    def function(*given: Tensor) -> Tensor:
        return (given[0] * given[1] + given[2]).sin()

    y, z = torch.randn(2, 32)
    module = traced(function, x, y, z, dynamic=True)
    for k, node in enumerate(module.graph.find_nodes(op="placeholder")):
        node._rename("transformer_layers_attention_projection_weight_" * 3 + "ab"[k // 2])
    module = lower(epilogues(fuse(module)))
    (node,) = fused_nodes(module.graph)
    names = [line.split(":")[0] for line in node.target.text.splitlines() if " = input " in line]
    assert len(set(names)) == 3 and max(map(len, names)) <= 60
    module.recompile()
    torch.testing.assert_close(module(x, y, z)[0], function(x, y, z))


def test_an_operator_whose_name_is_like_a_values() -> None:
    """Inputs keep the names of their nodes, such as v2; computed values get others."""
    module = traced(lambda x, y: (x * y + 1).exp(), x, x + 1)
    for node, name in zip(module.graph.find_nodes(op="placeholder"), ("v2", "v3"), strict=True):
        node._rename(name)
    module = lower(fuse(module))
    (node,) = fused_nodes(module.graph)
    torch.testing.assert_close(node.target(x, x + 1), (x * (x + 1) + 1).exp())
