"""The iteration space of a fusion group: its axes, and along which of them the dimensions of each value run.

Broadcasts, permutations and reshapes within the space cost nothing: they only change a value's dimensions. The axes
that a reduction covers become the space's columns; a value that does not run along these has one element per row."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from fourfold.compiler.analysis.views import (
    RESHAPES,
    Size,
    broadcast,
    is_one,
    memory_order,
    same,
    shape_of,
    splits,
    unviewed,
    viewed,
)
from fourfold.compiler.ir.values import Dims

Pairs = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]  # corresponding dimensions of two spaces


@dataclass(eq=False)
class IterationSpace:
    """``dims``: for each node computed in the space, and each view of one, the axes of its dimensions, outermost first;
    none for a dimension of one element or an expanded one."""

    sizes: list[Size] = field(default_factory=list)  # of each axis
    columns: frozenset[int] | None = None
    dims: dict[Node, Dims] = field(default_factory=dict)
    results: dict[Node, tuple[Dims, ...]] = field(default_factory=dict)  # for nodes with several results
    reduced: dict[Node, Dims] = field(default_factory=dict)  # for reductions, the operand's dimensions

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(range(len(self.sizes)))

    def is_whole(self, dims: Dims | None) -> bool:
        """Whether a value with these dimensions has an element for each point of the space."""
        return dims is not None and along(dims) == self.axes

    def fit(self, values: Iterable[Dims], columns: frozenset[int] | None) -> bool:
        """Whether each value has an element per point, an element per row, or is one number."""
        levels = (frozenset(), self.axes, self.axes - (columns or frozenset()))
        return all(along(dims) in levels for dims in values)

    def new_axis(self, size: Size) -> tuple[int, ...]:
        if is_one(size):
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def whole(self, node: Node) -> Dims:
        """The dimensions with which a node reads operands: its result's, or for a reduction its operand's."""
        return self.reduced.get(node, self.dims[node])

    def operands_within(self, node: Node) -> list[Node]:
        return [operand for operand in node.all_input_nodes if operand in self.dims]

    def is_consistent(self, node: Node) -> bool:
        """Whether the node's operands have the dimensions that the node reads them with."""
        whole = self.whole(node)
        is_result = node.target is operator.getitem
        return is_result or all(agree(self.dims[operand], whole) for operand in self.operands_within(node))

    def read_dims(self, user: Node, operand: Node) -> Dims | None:
        """The dimensions with which a node of the space reads a tensor computed elsewhere."""
        whole, shape = self.whole(user), shape_of(operand)
        return None if user.target is operator.getitem or len(shape) > len(whole) else broadcast(whole, shape)

    def viewed(self, node: Node, base: Dims) -> Dims | None:
        """The dimensions of a view, from those of its base; None if an axis would have to be split."""
        return viewed(node, base, self.sizes)

    def split(self, node: Node) -> Dims | None:
        """Splits axes for a reshape of a value of this space; returns its dimensions, or None if that is not enough."""
        base, shape = self.dims[node.args[0]], shape_of(node.args[0])
        is_expanded = any(not dim and not is_one(size) for size, dim in zip(shape, base, strict=True))
        found = splits(base, shape_of(node), self.sizes) if node.target in RESHAPES and not is_expanded else None
        for axis, sizes in (found or {}).items():
            self.refine(axis, sizes)
        return None if found is None else self.viewed(node, self.dims[node.args[0]])

    def unviewed(self, node: Node, dims: Dims) -> Dims | None:
        """The dimensions of a view's base, from the view's."""
        return unviewed(node, dims, self.sizes)

    # A node's result in the space.

    def aligned(self, node: Node, d: int) -> set[tuple[int, ...]]:
        """The operands' axes at the result's d-th dimension from the last."""
        dims = [self.dims[operand] for operand in self.operands_within(node)]
        return {own[len(own) - 1 - d] for own in dims if d < len(own) and own[len(own) - 1 - d]}

    def join(self, node: Node) -> Dims | None:
        """The dimensions of a pointwise node's result, or None if it needs another space. May add axes to the space."""
        shape = shape_of(node)
        dims: list[tuple[int, ...] | None] = []
        for d, size in enumerate(shape):
            found = self.aligned(node, len(shape) - 1 - d)
            if len(found) > 1:
                return None
            dims.append(found.pop() if found else () if is_one(size) else None)
        used = [axis for dim in dims if dim for axis in dim]
        if len(set(used)) < len(used):
            return None
        missing = [d for d, dim in enumerate(dims) if dim is None]
        for d in reversed(missing):
            free = [a for a in sorted(self.axes - set(used), reverse=True) if same(self.sizes[a], shape[d])]
            if free:
                dims[d] = (free[0],)
                used.append(free[0])
        missing = [d for d, dim in enumerate(dims) if dim is None]
        if missing:
            return self.grow(dims, missing, shape)
        result = tuple(dim or () for dim in dims)
        return result if self.fit([result], self.columns) else None

    def grow(self, dims: list[tuple[int, ...] | None], missing: list[int], shape: Sequence[Size]) -> Dims | None:
        """Adds axes, which become the columns: the values so far then have one element per row."""
        last = max((d for d, dim in enumerate(dims) if dim), default=-1)
        present = {axis for dim in dims if dim for axis in dim}
        if self.columns is not None or missing[0] < last or present != self.axes:
            return None
        if not self.fit(self.dims.values(), None):
            return None
        before = len(self.sizes)
        result = tuple(self.new_axis(shape[d]) if dim is None else dim for d, dim in enumerate(dims))
        if before:
            self.columns = frozenset(range(before, len(self.sizes)))
        return result

    def reduce(self, node: Node, own: Dims, over: list[int], kinds: tuple[str, ...]) -> Dims | None:
        """The dimensions of a reduction's first result; None if the space has other columns. own: the operand's
        dimensions. over: the reduced ones. kinds: the kind of each result, as in lowering.Rows."""
        shape = shape_of(node.args[0])
        columns = frozenset(axis for d in over for axis in own[d])
        lacking = any(not dim and not is_one(size) for size, dim in zip(shape, own, strict=True))
        if not columns or along(own) != self.axes or lacking or self.columns not in (None, columns):
            return None
        if not self.fit(self.dims.values(), columns):
            return None
        if not all(agree(self.dims[operand], own) for operand in self.operands_within(node)):
            return None
        self.columns = columns
        self.reduced[node] = own
        results = tuple(result_dims(kind, own, over) for kind in kinds)
        if isinstance(node.meta["val"], (tuple, list)):
            self.results[node] = results
        return results[0]

    # Merging two spaces.

    def merged(self, other: IterationSpace, pairs: Pairs, nodes: Iterable[Node]) -> IterationSpace | None:
        """The merged space, or None. pairs: dimensions of this space and of the other that correspond. nodes: those
        computed in either."""
        mapping = self.correspondence(other, self.refined_alike(other, pairs))
        if mapping is None:
            return None
        columns = None if other.columns is None else frozenset(mapping[axis] for axis in other.columns)
        if self.columns is not None and columns is not None and self.columns != columns:
            return None
        merged = IterationSpace(
            list(self.sizes),
            self.columns if columns is None else columns,
            self.dims | {node: renumbered(dims, mapping) for node, dims in other.dims.items()},
            self.results | {n: tuple(renumbered(d, mapping) for d in each) for n, each in other.results.items()},
            self.reduced | {node: renumbered(dims, mapping) for node, dims in other.reduced.items()},
        )
        if merged.columns is None:
            merged.columns = merged.implied_columns()
        fits = merged.fit(merged.dims.values(), merged.columns)
        return merged if fits and all(map(merged.is_consistent, nodes)) else None

    def refine(self, axis: int, sizes: Sequence[Size]) -> tuple[int, ...]:
        """Splits an axis into several whose sizes multiply to its size; returns them."""
        parts = (axis, *range(len(self.sizes), len(self.sizes) + len(sizes) - 1))
        self.sizes[axis] = sizes[0]
        self.sizes += sizes[1:]

        def refined(dims: Dims) -> Dims:
            return tuple(tuple(p for a in dim for p in (parts if a == axis else (a,))) for dim in dims)

        if self.columns is not None and axis in self.columns:
            self.columns |= set(parts)
        for known in (self.dims, self.reduced):
            known.update({node: refined(dims) for node, dims in known.items()})
        self.results.update({node: tuple(map(refined, each)) for node, each in self.results.items()})
        return parts

    def refined_alike(self, other: IterationSpace, pairs: Pairs) -> Pairs:
        """The pairs, after splitting axes of one space like the other's dimension. Splits static sizes only: a program
        reads symbolic sizes from its inputs, and perhaps no input has a part's size."""

        def is_product(size: Size, sizes: list[Size]) -> bool:
            return all(isinstance(each, int) for each in sizes) and same(size, math.prod(sizes))

        found = []
        for mine, own in pairs:
            sizes = [self.sizes[a] for a in mine], [other.sizes[a] for a in own]
            if len(mine) == 1 < len(own) and is_product(sizes[0][0], sizes[1]):
                mine = self.refine(mine[0], sizes[1])
            elif len(own) == 1 < len(mine) and is_product(sizes[1][0], sizes[0]):
                own = other.refine(own[0], sizes[0])
            found.append((mine, own))
        return found

    def correspondence(self, other: IterationSpace, pairs: Pairs) -> dict[int, int] | None:
        """Maps each axis of the other space to the same axis of this one; None if they don't correspond."""
        mapping: dict[int, int] = {}
        for mine, own in pairs:
            if len(mine) != len(own):
                return None
            for axis, same_axis in zip(own, mine, strict=True):
                if mapping.setdefault(axis, same_axis) != same_axis or not same(
                    self.sizes[same_axis], other.sizes[axis]
                ):
                    return None
        complete = set(mapping) == other.axes and len(set(mapping.values())) == len(mapping)
        return mapping if complete else None

    def in_order(self, other: IterationSpace) -> Pairs:
        """Pairs axes in order if all sizes agree, for spaces without other known correspondences."""
        alike = len(self.sizes) == len(other.sizes) and all(map(same, self.sizes, other.sizes))
        return [((axis,), (axis,)) for axis in range(len(self.sizes))] if alike else []

    def columns_in_order(self, other: IterationSpace, pairs: Pairs) -> Pairs:
        """Pairs the columns of two spaces in order if all sizes agree and the pairs have all other axes: a node that
        reads values of the rows doesn't show which columns correspond, and any will do."""
        mine, own = (sorted(space.axes - along([dim[k] for dim in pairs])) for k, space in enumerate((self, other)))
        if set(mine) != self.columns or set(own) != other.columns or len(mine) != len(own):
            return []
        sizes_agree = all(same(self.sizes[a], other.sizes[b]) for a, b in zip(mine, own, strict=True))
        return [((a,), (b,)) for a, b in zip(mine, own, strict=True)] if sizes_agree else []

    def implied_columns(self) -> frozenset[int] | None:
        """The columns by which every value has an element per point or per row; None if there are none."""
        rows = next((own for own in map(along, self.dims.values()) if own and own != self.axes), None)
        if rows is None:
            return None
        for dims in self.dims.values():
            order = [axis in rows for dim in dims for axis in dim]
            if along(dims) == self.axes and order != sorted(order, reverse=True):
                return None
        return self.axes - rows


def along(dims: Dims) -> frozenset[int]:
    return frozenset(axis for dim in dims for axis in dim)


def renumbered(dims: Dims, mapping: dict[int, int]) -> Dims:
    return tuple(tuple(mapping[axis] for axis in dim) for dim in dims)


def agree(dims: Dims, whole: Dims) -> bool:
    """Whether a value broadcasts to these dimensions: each runs along the same axes, or along none."""
    kept = whole[len(whole) - len(dims) :]
    return len(dims) <= len(whole) and all(not dim or dim == other for dim, other in zip(dims, kept, strict=True))


def reduced_dims(dims: object, count: int) -> list[int]:
    """Which of a tensor's dimensions are reduced; none if one is out of range, as torch traces softmax."""
    if dims is None or isinstance(dims, Sequence) and not dims:
        return list(range(count))
    given = dims if isinstance(dims, Sequence) else [dims]
    return sorted({d % count for d in given}) if all(-count <= d < count for d in given) else []


def covers_innermost(dims: list[int], tensor: torch.Tensor) -> bool:
    """Whether a reduction runs along the innermost dimension in memory of a tensor, apart from those of size 1."""
    inner = [d for d in memory_order(tensor) if not is_one(tensor.shape[d])]
    return bool(inner) and inner[-1] in dims


def result_dims(kind: str, own: Dims, reduced: list[int]) -> Dims:
    if kind == "element":
        return own
    kept = tuple(() if d in reduced else dim for d, dim in enumerate(own))
    return kept if kind == "keep" else tuple(dim for d, dim in enumerate(kept) if d not in reduced)
