"""Groups of nodes, and the algebra of their dimensions: along which axes of its group's space each value runs."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from fourfold.compiler.ir import Dims
from fourfold.compiler.views import Size, is_one, same, shape_of


@dataclass(eq=False)
class Group:
    """Nodes that are computed together. ``dims``: of each, and of each view within, the axes of its dimensions."""

    sizes: list[Size] = field(default_factory=list)  # of each axis
    columns: frozenset[int] | None = None
    members: list[Node] = field(default_factory=list)
    dims: dict[Node, Dims] = field(default_factory=dict)
    results: dict[Node, tuple[Dims, ...]] = field(default_factory=dict)  # of nodes that have several
    reduced: dict[Node, Dims] = field(default_factory=dict)  # of nodes that reduce, those of what they go over
    totals: dict[Node, Dims] = field(default_factory=dict)  # sums over the rows, with the dims of what they sum
    joins: list[Node] = field(default_factory=list)  # concatenations of its results, whose parts have the node's dims

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(range(len(self.sizes)))

    def fits(self, dims: Dims) -> bool:
        """Whether a value with these dimensions is an element's, a row's or a number."""
        own = along(dims)
        if not own or own == self.axes:
            return True
        return self.columns is not None and own == self.axes - self.columns


def along(dims: Dims) -> frozenset[int]:
    return frozenset(axis for dim in dims for axis in dim)


def new_axis(group: Group, size: Size) -> tuple[int, ...]:
    if is_one(size):
        return ()
    group.sizes.append(size)
    return (len(group.sizes) - 1,)


def renumbered(dims: Dims, mapping: dict[int, int]) -> Dims:
    return tuple(tuple(mapping[axis] for axis in dim) for dim in dims)


def agree(dims: Dims, whole: Dims) -> bool:
    """Whether a value broadcasts along these dimensions: it runs along the same axes, or along none."""
    kept = whole[len(whole) - len(dims) :]
    return len(dims) <= len(whole) and all(not dim or dim == other for dim, other in zip(dims, kept, strict=True))


def is_consistent(group: Group, node: Node) -> bool:
    """Whether the node's operands have in the group the dimensions that the node reads them with."""
    if node.target is operator.getitem:
        return True
    whole = group.reduced.get(node, group.dims[node])
    return all(agree(group.dims[operand], whole) for operand in operands_within(group, node))


def operands_within(group: Group, node: Node) -> list[Node]:
    return [operand for operand in node.all_input_nodes if operand in group.dims]


def aligned(group: Group, node: Node, place: int) -> list[tuple[int, ...]]:
    """What the group's operands have where the node's result has its place-th dimension, counted from the last."""
    found = []
    for operand in operands_within(group, node):
        dims = group.dims[operand]
        if place < len(dims) and dims[len(dims) - 1 - place]:
            found.append(dims[len(dims) - 1 - place])
    return found


def joined(group: Group, node: Node) -> Dims | None:
    """The dimensions of a pointwise node's result in a group, or None. The group's space may grow by it."""
    shape = shape_of(node)
    dims: list[tuple[int, ...] | None] = []
    for place in reversed(range(len(shape))):
        found = set(aligned(group, node, place))
        if len(found) > 1:
            return None
        size = shape[len(shape) - 1 - place]
        dims.append(found.pop() if found else () if is_one(size) else None)
    used = [axis for dim in dims if dim for axis in dim]
    if len(set(used)) < len(used):
        return None
    missing = [k for k, dim in enumerate(dims) if dim is None]
    for k in reversed(missing):
        free = [a for a in sorted(group.axes - set(used), reverse=True) if same(group.sizes[a], shape[k])]
        if free:
            dims[k] = (free[0],)
            used.append(free[0])
    missing = [k for k, dim in enumerate(dims) if dim is None]
    if missing:
        return grown(group, dims, missing, shape)
    result = tuple(dim or () for dim in dims)
    return result if group.fits(result) else None


def grown(group: Group, dims: list[tuple[int, ...] | None], missing: list[int], shape: Sequence[Size]) -> Dims | None:
    """With new axes: what the group has so far becomes rows' values, whose columns these are."""
    last = max((k for k, dim in enumerate(dims) if dim), default=-1)
    present = {axis for dim in dims if dim for axis in dim}
    if group.columns is not None or missing[0] < last or present != group.axes:
        return None
    if not all(along(d) in (frozenset(), group.axes) for d in group.dims.values()):
        return None
    before = len(group.sizes)
    result = tuple(new_axis(group, shape[k]) if dim is None else dim for k, dim in enumerate(dims))
    if before:
        group.columns = frozenset(range(before, len(group.sizes)))
    return result


def read_dims(group: Group, user: Node, operand: Node) -> Dims | None:
    """With which dimensions a member reads a tensor that is computed elsewhere."""
    whole = group.reduced.get(user, group.dims[user])
    shape = shape_of(operand)
    if user.target is operator.getitem or len(shape) > len(whole):
        return None
    kept = whole[len(whole) - len(shape) :]
    return tuple(() if is_one(size) else dim for size, dim in zip(shape, kept, strict=True))


def refine(group: Group, axis: int, sizes: Sequence[Size]) -> tuple[int, ...]:
    """Makes several axes of one, whose size is the product of these; gives them."""
    parts = (axis, *range(len(group.sizes), len(group.sizes) + len(sizes) - 1))
    group.sizes[axis] = sizes[0]
    group.sizes += sizes[1:]

    def refined(dims: Dims) -> Dims:
        return tuple(tuple(p for a in dim for p in (parts if a == axis else (a,))) for dim in dims)

    if group.columns is not None and axis in group.columns:
        group.columns |= set(parts)
    for known in (group.dims, group.reduced, group.totals):
        known.update({node: refined(dims) for node, dims in known.items()})
    group.results.update({node: tuple(map(refined, each)) for node, each in group.results.items()})
    return parts


def refine_alike(
    one: Group, other: Group, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs, after an axis of one group has become as many as the other group's dimension runs along. Sizes that
    are not known yet a program reads of its inputs, of which none need have a part's."""

    def is_product(size: Size, sizes: list[Size]) -> bool:
        return all(isinstance(each, int) for each in sizes) and same(size, math.prod(sizes))

    found = []
    for mine, own in pairs:
        sizes = [one.sizes[a] for a in mine], [other.sizes[a] for a in own]
        if len(mine) == 1 < len(own) and is_product(sizes[0][0], sizes[1]):
            mine = refine(one, mine[0], sizes[1])
        elif len(own) == 1 < len(mine) and is_product(sizes[1][0], sizes[0]):
            own = refine(other, own[0], sizes[0])
        found.append((mine, own))
    return found


def correspondence(
    one: Group, other: Group, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> dict[int, int] | None:
    """For each axis of the other group, the one that it is the same as."""
    mapping: dict[int, int] = {}
    for mine, own in pairs:
        if len(mine) != len(own):
            return None
        for axis, same_axis in zip(own, mine, strict=True):
            if mapping.setdefault(axis, same_axis) != same_axis or not same(one.sizes[same_axis], other.sizes[axis]):
                return None
    complete = set(mapping) == other.axes and len(set(mapping.values())) == len(mapping)
    return mapping if complete else None


def in_order(one: Group, other: Group) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Of groups that nothing relates but their sizes, each axis of the one with that of the other."""
    alike = len(one.sizes) == len(other.sizes) and all(map(same, one.sizes, other.sizes))
    return [((axis,), (axis,)) for axis in range(len(one.sizes))] if alike else []


def columns_of(group: Group) -> frozenset[int] | None:
    """What the group's columns have to be so that every value is an element's or a row's; None where none are."""
    rows = next((own for own in map(along, group.dims.values()) if own and own != group.axes), None)
    if rows is None:
        return None
    for dims in group.dims.values():
        order = [axis in rows for dim in dims for axis in dim]
        if along(dims) == group.axes and order != sorted(order, reverse=True):
            return None
    return group.axes - rows


def reduced_dims(dims: object, count: int) -> list[int]:
    if dims is None or isinstance(dims, Sequence) and not dims:
        return list(range(count))
    given = dims if isinstance(dims, Sequence) else [dims]
    return sorted({d % max(count, 1) for d in given})


def are_last(dims: list[int], shape: Sequence[Size]) -> bool:
    """Whether nothing but dimensions of size 1 comes after the first of them."""
    if not dims or not shape:
        return False
    return all(k in dims or is_one(size) for k, size in enumerate(shape) if k >= dims[0])


def result_dims(kind: str, own: Dims, reduced: list[int]) -> Dims:
    if kind == "element":
        return own
    kept = tuple(() if k in reduced else dim for k, dim in enumerate(own))
    return kept if kind == "keep" else tuple(dim for k, dim in enumerate(kept) if k not in reduced)


def rows_place(dims: Dims, axes: frozenset[int]) -> list[int]:
    """Which dimensions run along these axes."""
    return [d for d, dim in enumerate(dims) if axes & set(dim)]


def have_same_shape(a: Node, b: Node) -> bool:
    shapes = shape_of(a), shape_of(b)
    return len(shapes[0]) == len(shapes[1]) and all(same(*sizes) for sizes in zip(*shapes, strict=True))


def joined_along(node: Node) -> tuple[list[Node], int]:
    """A concatenation's parts, and the dimension along which they follow each other."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return list(node.args[0]), dim % len(shape_of(node))
