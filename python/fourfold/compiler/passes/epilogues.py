"""Attaches epilogues to fusion groups: concatenations of their results, which the program writes directly, and sums
over their rows."""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.iteration_space import reduced_dims, result_dims
from fourfold.compiler.analysis.order import Units
from fourfold.compiler.analysis.parts import CONCATENATION, STACK, parts_of
from fourfold.compiler.analysis.support import REFUSAL, can_be_computed, can_be_held, can_be_read, refuse
from fourfold.compiler.analysis.views import VIEWS, have_same_shape, hint, is_one, shape_of
from fourfold.compiler.ir.values import Dims
from fourfold.compiler.nodes.fused import STARTS, Extraction, Fused, NotExtracted, replace, results_of
from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.pipeline.fallback import FAILED, visiting

SUM = torch.ops.aten.sum.dim_IntList
MOST_PARTS = 64  # of a concatenation
MOST_BITS = 47
FEWEST_COLUMNS = 16  # below which a sum over rows doesn't pay


def epilogues(module: GraphModule) -> GraphModule:
    attach = Epilogues(module)
    for node in visiting(module):
        if node.meta.get(REFUSAL, "").startswith(FAILED):
            continue
        if node.target in (CONCATENATION, STACK):
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
                groups.add(self.units.add_singleton(node))
            else:
                self.units.add_singleton(node)

    def concatenation(self, node: Node) -> None:
        """Attaches a concatenation or a stack of results of one group and of other tensors of the same shape."""
        parts, dim = parts_of(node)
        fake = node.meta["val"]
        new = int(node.target is STACK)
        if not can_be_held(fake) or len(parts) > MOST_PARTS or any(len(shape_of(p)) + new != fake.dim() for p in parts):
            return  # the last condition: a part of shape (0,)
        if not all(can_be_read(part) and part.meta["val"].dtype == fake.dtype for part in parts):
            return
        results = {part: found for part in parts if (found := where_computed(part)) is not None}
        if not results:
            return
        owner, dims = next(iter(results.values()))
        own = {part: own for part, (producer, own) in results.items() if producer is owner}
        others = [part for part in parts if part not in own]
        if any(self.unit[part] == self.unit[owner] for part in others):  # an expanded result, or a concatenation
            return
        alike = all(each == dims for each in own.values())
        alike = alike and all(have_same_shape(part, parts[0]) for part in parts)
        if (
            owner.target.space.is_whole(dims)
            and not is_expanded(parts[0], dims)
            and alike
            and has_room(owner.target, len(parts))
        ):
            self.attach(owner, node, dict.fromkeys(parts, dims), (*dims[:dim], *[()] * new, *dims[dim:]))

    def column_sum(self, node: Node) -> None:
        """Attaches a sum over leading dimensions, which are or become the rows of a group that computes or reads x."""
        if len(node.args) < 2 or not can_be_computed(node):
            return
        x, dims, *_ = node.args
        owner, own = where_whole(x)
        if not own or is_expanded(x, own):
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
        extraction.known |= {(item, fused.space.dims[own], ()): own for own, item in results}
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


def is_expanded(x: Node, dims: Dims) -> bool:
    """Whether a dimension of a tensor with these dimensions has one element for several places."""
    return any(not dim and not is_one(size) for size, dim in zip(shape_of(x), dims, strict=False))


def result_of(node: Node) -> tuple[Node, Node] | None:
    """The fused node that computes a tensor, and the result's node in its subgraph; None for an epilogue's."""
    owner = node.args[0] if node.target is operator.getitem else node
    if not isinstance(owner.target, Fused):
        return None
    result = owner.target.outputs[0 if owner is node else node.args[1]]
    return None if "epilogue" in result.meta else (owner, result)


def has_room(fused: Fused, parts: int) -> bool:
    """Whether the program can join so many parts: the library multiplies the sizes of the axes and the number of parts
    of each output, and rejects products of 2^48 and more."""
    counts = [parts, *(len(own.args[0]) for own in fused.outputs if "epilogue" in own.meta and own.target is not SUM)]
    joins = sum(map(math.log2, counts))
    sizes = sum(math.log2(max(hint(size), 1)) for size in fused.space.sizes)
    is_known = all(isinstance(size, int) for size in fused.space.sizes)
    return joins + sizes < MOST_BITS if is_known else joins < MOST_BITS / 3


def where_computed(x: Node) -> tuple[Node, Dims] | None:
    """The fused node that computes a tensor or the base of this view, and the tensor's dimensions there."""
    views = []
    while x.op == "call_function" and x.target in VIEWS:
        views.append(x)
        x = x.args[0]
    found = result_of(x)
    if found is None:
        return None
    owner, result = found
    dims: Dims | None = owner.target.space.dims[result]
    for view in reversed(views):
        dims = dims if dims is None else owner.target.space.viewed(view, dims)
    return None if dims is None else (owner, dims)


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
            found += [(user, own) for own, given in pairs if given is x and not own.meta[STARTS]]
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
