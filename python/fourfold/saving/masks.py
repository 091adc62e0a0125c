"""Converts a bool mask that several attentions of a file read into numbers once: each call of torch's operator, which
stays whole in files, would do so again."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.views import VIEWS
from fourfold.compiler.lowering.call import named
from fourfold.compiler.nodes.recorder import Recorder, numbers_of

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def convert_masks(module: GraphModule) -> GraphModule:
    """Writes the conversion before each attention; the compiler's passes make equal ones one."""
    nodes = [node for node in module.graph.find_nodes(op="call_function", target=ATTENTION) if has_bool_mask(node)]
    readers, inputs = Counter(map(source_of, nodes)), numbers_of(module.graph)
    for node in nodes:
        if readers[source_of(node)] < 2:
            continue
        mask, query = mask_of(node), node.args[0].meta["val"]
        with Recorder(node, inputs) as record:
            seen, unseen = (torch.full((), number, dtype=query.dtype, device=query.device) for number in (0, -math.inf))
            converted = record.node(torch.where(record.value(mask), seen, unseen))
        node.replace_input_with(mask, converted)
    return module


def mask_of(node: Node) -> object:
    return named(node.target, node.args, node.kwargs).get("attn_mask")


def has_bool_mask(node: Node) -> bool:
    mask = mask_of(node)
    return isinstance(mask, Node) and mask.meta["val"].dtype is torch.bool


def source_of(node: Node) -> Node:
    """The tensor of which the mask is a view."""
    source = mask_of(node)
    while source.target in VIEWS:
        source = source.args[0]
    return source
