"""Moves a ReLU behind what reads it alone, where it computes the same: a max pool, after which it has fewer elements,
and a reshape with symbolic sizes, such as a group norm's, through which it would not join the group."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.support import REFUSAL, is_tensor
from fourfold.compiler.analysis.views import RESHAPES, has_hints, keys
from fourfold.compiler.lowering.max_pools import MAX_POOLS
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
RELU = aten.relu.default
SIZE = aten.sym_size.int


def sink_relu(module: GraphModule) -> GraphModule:
    for node in visiting(module):
        if node.target is RELU and REFUSAL not in node.meta:
            readers = [user for user in node.users if user.target is not SIZE]
            result = result_of(readers[0]) if len(readers) == 1 and lies_like_operand(node) else None
            if result is not None:
                move_behind(node, result)
    return module


def result_of(reader: Node) -> Node | None:
    """What a ReLU may move behind."""
    if reader.target in MAX_POOLS:
        items = list(reader.users)
        is_alone = len(items) == 1 and items[0].target is operator.getitem and items[0].args[1] == 0
        return items[0] if is_alone else None
    is_symbolic = reader.target in RESHAPES and reader.meta["val"]._has_symbolic_sizes_strides
    return reader if is_symbolic and reader.users else None


def lies_like_operand(node: Node) -> bool:
    own, value = node.meta["val"], node.args[0].meta["val"]
    return is_tensor(own) and has_hints(own) and keys(own.stride()) == keys(value.stride())


def move_behind(node: Node, result: Node) -> None:
    node.replace_all_uses_with(node.args[0])
    with node.graph.inserting_after(result):
        moved = node.graph.call_function(RELU, (result,))
    moved.meta = node.meta | {"val": result.meta["val"]}
    result.replace_all_uses_with(moved, delete_user_cb=lambda user: user is not moved)
    node.graph.erase_node(node)
