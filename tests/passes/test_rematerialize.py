"""The pass by which a backward recomputes cheap values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node

from fourfold.compiler.passes.rematerialize import rematerialize

x = torch.randn(4, 16, requires_grad=True)


def kept(function: Callable) -> set[str]:
    """The operators whose results the forward saves for the backward."""
    found: list[Node] = []

    def partition(joint: GraphModule, given: object, *, num_fwd_outputs: int, **settings: object) -> object:
        joint.meta["forward outputs"] = num_fwd_outputs
        forward, backward = default_partition(rematerialize(joint), given, num_fwd_outputs=num_fwd_outputs, **settings)
        results = forward.graph.output_node().args[0]
        found.extend(set(results[num_fwd_outputs:]) - set(results[:num_fwd_outputs]))
        return forward, backward

    aot_function(function, fw_compiler=lambda graph, given: graph, partition_fn=partition)(x)
    return {node.target.__name__.split(".")[0] for node in found if node.op == "call_function"}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sin().cos().exp(), set()),
        (lambda x: (x.sin() @ x.t()).cos(), {"mm", "sin"}),  # read by the gradients of products
        (lambda x: x.softmax(-1).sin(), {"_softmax"}),
        (lambda x: x * (x.detach().amax(-1, keepdim=True) + 1).rsqrt(), {"rsqrt"}),  # one number per row is saved
        (lambda x: x.detach().amax(-1, keepdim=True).exp() * x.sin(), {"exp"}),
        (lambda x: x[:, 0].sin() * x.unbind(1)[1].exp(), set()),  # selections of an input
    ],
)
def test_what_is_kept(function, expected: set[str]) -> None:
    assert kept(function) == expected


def test_a_long_chain_keeps_one_value_in_so_many() -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(100):
            x = x.sin()
        return x

    assert kept(chain) == {"sin"}
