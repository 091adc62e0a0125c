"""Normalizes a graph for the other passes."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.fallback import visiting
from fourfold.compiler.lowering import CONSTANT
from fourfold.compiler.support import is_tensor
from fourfold.compiler.views import same, shape_of

ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
CONTIGUOUS_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def canonicalize(module: GraphModule) -> GraphModule:
    """Removes aliases, which mean nothing in a graph without gradients, and the dependency of a constant tensor on the
    tensor whose shape it has. Turns views into reshapes, which copy a tensor that is not laid out as traced: torch
    traces some operators, such as batch_norm of a transposed input, with other strides than they return, and programs
    read any layout."""
    for node in visiting(module):
        fake = node.meta.get("val")
        if node.target in CONTIGUOUS_VIEWS:
            node.target = torch.ops.aten.reshape.default
        if node.target in ALIASES or is_whole_slice(node):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if node.target not in CONSTANT or not node.all_input_nodes or not is_tensor(fake):
            continue
        number = CONSTANT[node.target](*node.args, **node.kwargs)
        shape = list(fake.shape)
        if isinstance(number, (bool, int, float)) and all(isinstance(s, int) for s in shape) and fake.is_contiguous():
            node.target, node.args = torch.ops.aten.full.default, (shape, number)
            node.kwargs = {"dtype": fake.dtype, "layout": fake.layout, "device": fake.device, "pin_memory": False}
    return module


def is_whole_slice(node: Node) -> bool:
    """Whether it slices the whole tensor, as in the gradient of a concatenation with one nonempty part."""
    return node.target == torch.ops.aten.slice.Tensor and all(map(same, shape_of(node), shape_of(node.args[0])))
