"""Rounds what a logsumexp of low precision reads, if its gradient is computed, as eager mode does.

The gradient is exp(x - logsumexp(x)), of numbers that the forward has rounded. With an x that isn't, the difference is
off by as much as a rounding of x, and the exponential unbounded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

aten, prims = torch.ops.aten, torch.ops.prims
THROUGH = (aten.detach.default, aten.alias.default, aten.unsqueeze.default, aten.view.default)
LOW = (torch.float16, torch.bfloat16)


def round_exponents(module: GraphModule) -> GraphModule:
    for node in module.graph.find_nodes(op="call_function", target=aten.logsumexp.default):
        x = node.args[0]
        readers = [reader for reader in differences(node) if reader.args[0] is x]
        if x.meta["val"].dtype in LOW and readers and x.op == "call_function":
            rounded = rounded_before(module, x, node)
            for reader in (node, *readers):
                reader.replace_input_with(x, rounded)
    return module


def differences(node: Node) -> Iterator[Node]:
    """The differences that a tensor, or a view of it, is subtracted in."""
    for user in node.users:
        if user.target in THROUGH:
            yield from differences(user)
        elif user.target is aten.sub.Tensor and user.args[1] is node:
            yield user


def rounded_before(module: GraphModule, x: Node, node: Node) -> Node:
    """A program keeps x in float32; a conversion back rounds it."""
    value = x.meta["val"]
    with module.graph.inserting_before(node):
        wide = module.graph.call_function(prims.convert_element_type.default, (x, torch.float32))
        rounded = module.graph.call_function(prims.convert_element_type.default, (wide, value.dtype))
    wide.meta["val"], rounded.meta["val"] = value.float(), value.clone()
    return rounded
