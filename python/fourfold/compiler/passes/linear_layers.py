"""Turns products of a batch with one shared matrix into a product of two matrices. torch traces a linear layer of a
tensor that isn't contiguous, such as the output of a recurrent layer with ``batch_first`` or of a transposed
convolution, as products of a batch with the expanded weight, and a sum with the bias."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.views import EXPANSIONS, RESHAPES, has_hints, have_same_shape, hint, same, shape_of
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
ROUNDED_ONCE = (torch.float32, torch.float64)  # products with a bias: in 16 bits, torch rounds before the sum too
FEWEST_COLUMNS = 32  # of the matrix: copying the other factor takes longer than is gained otherwise


def linear_layers(module: GraphModule) -> GraphModule:
    for node in visiting(module):
        matrix = shared_matrix(node) if node.target == aten.bmm.default else None
        if matrix is not None:
            total, bias = sum_with_bias(node)
            sizes = numbers_of(module.graph)
            sizes.add(node.args[0])
            read_in_place(rewritten(total, functools.partial(product, node=node, matrix=matrix, bias=bias), sizes))
    eliminate_dead_code(module.graph)
    return module


def shared_matrix(node: Node) -> Node | None:
    """The matrix (depth, columns) that all products of a bmm share."""
    factor, matrix = node.args
    while matrix.target in RESHAPES | EXPANSIONS and len(shape_of(matrix)) > 2:
        matrix = matrix.args[0]
    value, fake, own = matrix.meta["val"], factor.meta["val"], node.args[1].meta["val"]
    # Expanded along the batch, and not, say, each row of the base along the columns.
    alike = value.dim() == 2 and all(map(same, (*value.shape, 0, *value.stride()), (*own.shape[1:], *own.stride())))
    is_known = alike and has_hints(fake) and has_hints(value) and fake.device.type == "cpu"
    return matrix if is_known and hint(value.shape[1]) >= FEWEST_COLUMNS else None


def sum_with_bias(node: Node) -> tuple[Node, Node | None]:
    """The node that adds a bias (columns) to the products, and the bias; the products and None if none does."""
    own = node
    while len(own.users) == 1 and (user := next(iter(own.users))).target in RESHAPES and have_same_shape(user, node):
        own = user
    user = next(iter(own.users)) if len(own.users) == 1 else node
    if user.target != aten.add.Tensor or user.kwargs or node.meta["val"].dtype not in ROUNDED_ONCE:
        return node, None
    bias = next((each for each in user.args if each is not own), None)
    value = bias.meta["val"] if isinstance(bias, Node) else None
    is_bias = isinstance(value, Tensor) and value.dim() == 1 and value.dtype == node.meta["val"].dtype
    return (user, bias) if is_bias and same(value.shape[0], shape_of(node)[2]) else (node, None)


def product(record: Recorder, node: Node, matrix: Node, bias: Node | None) -> Tensor:
    x, b = record.value(node.args[0]), record.value(matrix)
    rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
    made = torch.mm(rows, b) if bias is None else torch.addmm(record.value(bias), rows, b)
    return made.view(x.shape[0], x.shape[1], b.shape[1])


def read_in_place(written: list[Node] | None) -> None:
    """Copies rows only where they turn out not to lie one after the other: a batch of one does."""
    for node in written or ():
        if node.target == aten._unsafe_view.default and node.args[0].target == aten.clone.default:
            node.target, node.args = aten.reshape.default, (node.args[0].args[0], node.args[1])
