"""Replaces torch.prod and torch.cumprod, before AOTAutograd would trace their gradients' formulas for any data."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from fourfold.compiler.lowering.product_gradients import FUNCTIONS


def products(module: GraphModule) -> GraphModule:
    """Replaces the calls in Dynamo's graph and in graphs nested in it, such as checkpoints."""
    for part in module.modules():
        if isinstance(part, GraphModule) and any([replaced(node) for node in part.graph.nodes]):
            part.recompile()
    return module


def replaced(node: Node) -> bool:
    is_product = node.op in ("call_function", "call_method") and node.target in FUNCTIONS and bool(node.args)
    if is_product:
        node.op, node.target = "call_function", FUNCTIONS[node.target]
    return is_product
