"""Gives a graph the forms that the other passes look for."""

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
    """Names of a tensor that have no meaning in a graph without gradients are left out, and a tensor filled with one
    number does not wait for the tensor whose shape it has. Views become reshapes, which copy where a tensor is not laid
    out in memory as it was traced: programs read any layout, and torch traces some of its operators with other strides
    than they give, such as batch_norm of a transposed input."""
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
    """Whether it is a slice of everything, as the gradient of a concatenation's only part with elements."""
    return node.target == torch.ops.aten.slice.Tensor and all(map(same, shape_of(node), shape_of(node.args[0])))
