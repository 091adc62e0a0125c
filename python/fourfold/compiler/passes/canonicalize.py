"""Normalizes a graph for the other passes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.support import constant_of, is_computed, is_tensor
from fourfold.compiler.analysis.views import have_same_shape, same, shape_of
from fourfold.compiler.lowering import CONSTANT, POINTWISE
from fourfold.compiler.pipeline.fallback import visiting

ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
CONTIGUOUS_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
# Those of torch's LSTM, and chunks. They differ for gradients of in-place changes alone.
SPLITS = {
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
}


def canonicalize(module: GraphModule) -> GraphModule:
    """Removes aliases, which have no effect in a graph without gradients, and the dependency of a constant tensor on
    the tensor whose shape it has. Turns views into reshapes, which copy a tensor that is not laid out as traced: torch
    traces some operators, such as batch_norm of a transposed input, with other strides than they return, and programs
    read any layout. Folds operators on constants, and turns powers with a constant tensor as the exponent, as in the
    gradients of others, into powers with a number."""
    for node in visiting(module):
        fake = node.meta.get("val")
        if node.target in CONTIGUOUS_VIEWS:
            node.target = torch.ops.aten.reshape.default
        node.target = SPLITS.get(node.target, node.target)
        if node.target in ALIASES or is_whole_slice(node):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if node.target == torch.ops.aten.pow.Tensor_Tensor and has_constant_exponent(node):
            node.target, node.args = torch.ops.aten.pow.Tensor_Scalar, (node.args[0], constant_of(node.args[1]))
        number = number_of(node) if is_tensor(fake) and node.all_input_nodes else None
        shape = list(fake.shape) if number is not None else []
        if number is not None and all(isinstance(s, int) for s in shape) and fake.is_contiguous():
            node.target, node.args = torch.ops.aten.full.default, (shape, number)
            node.kwargs = {"dtype": fake.dtype, "layout": fake.layout, "device": fake.device, "pin_memory": False}
    return module


def is_whole_slice(node: Node) -> bool:
    """Whether it slices the whole tensor, as in the gradient of a concatenation with one nonempty part."""
    return node.target == torch.ops.aten.slice.Tensor and all(map(same, shape_of(node), shape_of(node.args[0])))


def number_of(node: Node) -> bool | int | float | None:
    """The one number that fills a tensor, also if it is computed from other such tensors."""
    if node.target in CONSTANT:
        number = CONSTANT[node.target](*node.args, **node.kwargs)
        return number if isinstance(number, (bool, int, float)) else None
    if not is_computed(node, POINTWISE) or any(constant_of(operand) is None for operand in node.all_input_nodes):
        return None

    def one(operand: Node) -> Tensor:  # of the same rank, on which the dtype of the result depends
        fake = operand.meta["val"]
        return torch.full([1] * fake.dim(), constant_of(operand), dtype=fake.dtype)

    with unset_fake_temporarily():
        return node.target(*torch.fx.map_arg(node.args, one), **torch.fx.map_arg(node.kwargs, one)).item()


def has_constant_exponent(node: Node) -> bool:
    """Whether a power's exponent is one number, and changes neither the dtype nor the shape of the result."""
    x, exponent = node.args
    fakes = x.meta["val"], node.meta["val"]
    return constant_of(exponent) is not None and fakes[0].dtype == fakes[1].dtype and have_same_shape(x, node)
