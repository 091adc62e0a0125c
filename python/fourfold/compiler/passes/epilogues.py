"""Attaches epilogues to fusion groups: concatenations of their results, which the program writes directly, and sums
over their rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.fallback import FAILED, visiting
from fourfold.compiler.fused import Extraction, Fused, NotExtracted, replace, results_of
from fourfold.compiler.ir import Dims
from fourfold.compiler.iteration_space import reduced_dims, result_dims
from fourfold.compiler.order import Units
from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.support import REFUSAL, can_be_computed, can_be_held, can_be_read, refuse
from fourfold.compiler.views import VIEWS, have_same_shape, hint, is_one, shape_of

SUM = torch.ops.aten.sum.dim_IntList
CONCATENATION = torch.ops.aten.cat.default
FEWEST_COLUMNS = 16  # below which a sum over rows doesn't pay


def epilogues(module: GraphModule) -> GraphModule:
    attach = Epilogues(module)
    for node in visiting(module):
        if node.meta.get(REFUSAL, "").startswith(FAILED):
            continue
        if node.target is CONCATENATION:
            attach.concatenation(node)
        elif node.target is SUM:
            attach.column_sum(node)
    return clean_up(module)


class Epilogues:
    def __init__(self, module: GraphModule):
        self.units = Units()
        self.unit = self.units.unit  # a group's results, and views of them, belong to its unit
        groups: set[int] = set()
        for node in module.graph.nodes:
            source = self.unit[node.args[0]] if node.target is operator.getitem or node.target in VIEWS else None
            if source in groups:
                self.unit[node] = source
            elif isinstance(node.target, Fused):
                groups.add(self.units.add_alone(node))
            else:
                self.units.add_alone(node)

    def concatenation(self, node: Node) -> None:
        """Attaches a concatenation of results of one group and of other tensors of the same shape."""
        parts, dim = concatenated(node)
        dtype = node.meta["val"].dtype
        if not can_be_held(node.meta["val"]) or any(len(shape_of(part)) != len(shape_of(node)) for part in parts):
            return  # a part of shape (0,)
        if not all(can_be_read(part) and part.meta["val"].dtype == dtype for part in parts):
            return
        results = {part: found for part in parts if (found := result_of(part)) is not None}
        if not results:
            return
        first, owner = next((part, owner) for part, (owner, _) in results.items())
        fused = owner.target
        own = {part: result for part, (producer, result) in results.items() if producer is owner}
        dims = fused.space.dims[own[first]]
        others = [part for part in parts if part not in own]
        if any(self.unit[part] == self.unit[owner] for part in others):  # a view of a result, or a concatenation
            return
        alike = all(fused.space.dims[each] == dims for each in own.values())
        alike = alike and all(have_same_shape(part, first) for part in others)
        if fused.space.is_whole(dims) and dims[dim] and alike:
            self.attach(owner, node, dict.fromkeys(parts, dims), dims)

    def column_sum(self, node: Node) -> None:
        """Attaches a sum over leading dimensions, which are or become the rows of a group that computes or reads x."""
        if len(node.args) < 2 or not can_be_computed(node):
            return
        x, dims, *_ = node.args
        owner, own = where_whole(x)
        is_expanded = any(not dim and not is_one(size) for size, dim in zip(shape_of(x), own, strict=False))
        if not own or is_expanded:
            return
        space = owner.target.space
        reduced = reduced_dims(dims, len(own))
        rows = frozenset(axis for d in reduced for axis in own[d])
        columns = space.axes - rows
        is_last = bool(rows) and max(running(own, rows)) < min(running(own, columns), default=0)
        dtypes = {x.meta["val"].dtype, node.meta["val"].dtype}
        if len(dtypes) > 1 or not dtypes.pop().is_floating_point or not is_last or space.columns not in (None, columns):
            return
        if math.prod(hint(space.sizes[axis]) for axis in columns) < FEWEST_COLUMNS:
            return
        kind = "row" if len(shape_of(node)) < len(own) else "keep"
        if self.attach(owner, node, {x: own}, result_dims(kind, own, reduced)):
            space.columns = columns

    def attach(self, owner: Node, node: Node, operands: dict[Node, Dims], dims: Dims) -> bool:
        """Makes the node a result of the group, if possible. operands: the dimensions with which it reads each."""
        fused, unit = owner.target, self.unit[owner]
        change = None if node in owner.args else self.units.merge(unit, self.unit[node])
        if change is None:
            return False
        results = [(own, item) for own, item in zip(fused.outputs, results_of(owner), strict=True) if item is not None]
        extraction = Extraction(fused.space, fused, owner.args)
        extraction.known |= {(item, fused.space.dims[own]): own for own, item in results}
        try:
            for operand, own in operands.items():
                extraction.read(operand, own)
            copy = extraction.copied(node, lambda operand: extraction.outside(operand, operands[operand]))
        except NotExtracted as reason:
            is_attached = refuse(node, str(reason))
        else:
            is_attached = True
            copy.meta |= {"member": True, "epilogue": True}
            fused.space.dims[copy] = dims
            results.append((copy, node))
            change()
        for each in replace(owner, extraction.inputs, results):
            self.unit[each] = unit
        return is_attached


def result_of(node: Node) -> tuple[Node, Node] | None:
    """The fused node that computes a tensor, and the result within; None for an epilogue's."""
    owner = node.args[0] if node.target is operator.getitem else node
    if not isinstance(owner.target, Fused):
        return None
    result = owner.target.outputs[0 if owner is node else node.args[1]]
    return None if "epilogue" in result.meta else (owner, result)


def where_whole(x: Node) -> tuple[Node | None, Dims]:
    """A fused node that computes or reads a tensor over its whole space, and the tensor's dimensions there; None and ()
    if there is none."""
    views = []
    while x.op == "call_function" and x.target in VIEWS:
        views.append(x)
        x = x.args[0]
    found = [known for known in [result_of(x)] if known is not None]
    for user in x.users:
        if isinstance(user.target, Fused):
            pairs = zip(user.target.inputs, user.args, strict=True)
            found += [(user, own) for own, given in pairs if given is x]
    for owner, own in found:
        space = owner.target.space
        dims: Dims | None = space.dims[own]
        for view in reversed(views):
            dims = dims if dims is None else space.viewed(view, dims)
        if space.is_whole(dims):
            return owner, dims
    return None, ()


def running(dims: Dims, axes: frozenset[int]) -> list[int]:
    """The dimensions that run along these axes."""
    return [d for d, dim in enumerate(dims) if axes & set(dim)]


def concatenated(node: Node) -> tuple[Sequence[Node], int]:
    """The parts and the dimension of a concatenation."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return list(node.args[0]), dim % len(shape_of(node))
