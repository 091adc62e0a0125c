"""Unrolls reductions over a few elements whose results another reduction reads, such as the distances in
``softmax(-(a[:, None] - b).square().sum(-1), -1)``: each becomes operators on slices of its operand, so that one
program computes both, without the whole operand in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.iteration_space import reduced_dims
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import IN_LOOP, REFUSAL, constant_of, is_computed, is_tensor
from fourfold.compiler.analysis.views import VIEWS, is_one, shape_of
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.lowering.call import named
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.passes.by_parts import base_of, is_fusible
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
COMBINED: dict[object, Callable[[Tensor, Tensor], Tensor]] = {
    aten.sum.dim_IntList: torch.add,
    aten.amax.default: torch.maximum,
    aten.amin.default: torch.minimum,
}
MOST = 16  # elements of a reduction
MOST_COMPUTED = 100  # operators of all elements together


def unroll_sums(module: GraphModule) -> GraphModule:
    if module.meta.get(IN_LOOP, False):  # whose nest computes all of a step in any case, but not parts of its states
        return module
    inputs = numbers_of(module.graph)
    for node in visiting(module):
        if node.target in COMBINED and REFUSAL not in node.meta and node.users:
            unroll(node, inputs)
    eliminate_dead_code(module.graph)
    return module


def unroll(node: Node, inputs: Sizes) -> None:
    given, x = named(node.target, node.args, node.kwargs), node.args[0]
    dims = reduced_dims(given["dim"], len(shape_of(x)))
    size = shape_of(x)[dims[0]] if len(dims) == 1 else None
    is_few = isinstance(size, int) and 2 <= size <= MOST
    if not is_few or x.meta["val"].dtype != node.meta["val"].dtype or not x.meta["val"].is_floating_point():
        return
    dim = dims[0] - len(shape_of(x))  # the same in all operands
    within = behind(x, dim, node)
    if not within or len(within) * size > MOST_COMPUTED or not leads_to_reduction(node):
        return

    def total(record: Recorder) -> Tensor:
        slices = Slices(record, x, dim, within)
        parts = [wide(slices.of(x, k, {})) for k in range(size)]
        result = by_pairs(COMBINED[node.target], parts).to(node.meta["val"].dtype)
        return result if given["keepdim"] else result.squeeze(dim)

    rewritten(node, total, inputs, reader="its slices read")


def behind(x: Node, dim: int, reader: Node) -> set[Node]:
    """The elementwise operators that compute a tensor along the dimension from what lies in memory, and that nothing
    else reads; none if there are others."""
    found: set[Node] = set()
    pending = [x]
    while pending:
        node = pending.pop()
        if not is_tensor(node.meta["val"]) or not varies(node, dim) or constant_of(node) is not None:
            continue
        if is_computed(node, POINTWISE):
            found.add(node)
            pending += [operand for operand in node.all_input_nodes if operand not in found]
        elif is_fusible(base_of(node)):
            return set()
    is_alone = all(user in found or user is reader for node in found for user in node.users)
    is_larger = any(is_broadcast(operand, x) for node in found for operand in node.all_input_nodes)
    return found if is_alone and is_larger else set()


def is_broadcast(operand: Node, x: Node) -> bool:
    """Whether it has fewer elements than the tensor that is reduced, which then need not be in memory."""
    if not is_tensor(operand.meta["val"]):
        return False
    sizes, whole = shape_of(operand), shape_of(x)
    return len(sizes) < len(whole) or any(is_one(a) and not is_one(b) for a, b in zip(sizes, whole, strict=True))


def varies(node: Node, dim: int) -> bool:
    sizes = shape_of(node)
    return len(sizes) >= -dim and not is_one(sizes[dim])


def leads_to_reduction(node: Node) -> bool:
    """Whether another reduction reads it, through elementwise operators and views."""
    pending, seen = list(node.users), set()
    while pending:
        user = pending.pop()
        if is_computed(user, ROWS):
            return True
        if user not in seen and (user.target in VIEWS or is_computed(user, POINTWISE)):
            seen.add(user)
            pending += user.users
    return False


class Slices:
    """Slices of nodes along a dimension, in which they have one element: with fewer dimensions, tensors could promote
    to another dtype."""

    def __init__(self, record: Recorder, x: Node, dim: int, within: set[Node]):
        self.record, self.x, self.dim, self.within = record, x, dim, within
        self.turned: dict[Node, Tensor] = {}

    def of(self, node: Node, k: int, known: dict[Node, object]) -> object:
        """known: other nodes' k-th slices."""
        if node not in known:
            if node in self.within:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: self.of(each, k, known))
                known[node] = node.target(*args, **kwargs)
            else:
                known[node] = self.outside(node, k)
        return known[node]

    def outside(self, node: Node, k: int) -> object:
        value, dim, number = self.record.value(node), self.dim, constant_of(node)
        if not isinstance(value, Tensor) or value.dim() < -dim:
            return value
        if number is not None:
            sizes = [*value.shape]
            sizes[dim] = 1
            return torch.full(sizes, number, dtype=value.dtype, device=value.device)
        if not varies(node, dim):
            return value
        if self.is_read_again(node) and node not in self.turned:
            self.turned[node] = value.movedim(dim, 0).contiguous().movedim(0, dim)
        return self.turned.get(node, value).narrow(dim, k, 1)

    def is_read_again(self, node: Node) -> bool:
        """Whether each row reads a vector of it along another dimension, with gaps: then a small copy pays."""
        inner = -1 if self.dim < -1 else -2
        return varies(node, inner) and is_broadcast(node, self.x) and self.dim == -1


def wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def by_pairs(combine: Callable[[Tensor, Tensor], Tensor], values: Sequence[Tensor]) -> Tensor:
    """Of sums, the error grows with the logarithm of their number."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[len(values) // 2 * 2 :]]
    return values[0]
