"""Parts of a dimension: nodes that join them, nodes that take one of them, and the dimension's index in a view."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fourfold.compiler.analysis.views import (
    EXPANSIONS,
    PERMUTATIONS,
    Size,
    have_same_shape,
    is_one,
    permutation,
    same,
    shape_of,
)
from fourfold.compiler.lowering.call import named

aten = torch.ops.aten
CONCATENATION = aten.cat.default
STACK = aten.stack.default
SLICE = aten.slice.Tensor
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)
SELECT, UNBIND, RESHAPE = aten.select.int, aten.unbind.int, aten.reshape.default
MOST_STACKED = 8  # parts of one element along a dimension that are computed separately
# Parts of different sizes are computed by one program each if they are few and the whole has enough bytes.
MOST_UNEQUAL = 4
FEWEST_BYTES = 1 << 16
Piece = tuple[Node, int, range]  # a part: the node, the dimension, and the places along it


@dataclass(frozen=True)
class Parting:
    """How a dimension is divided into parts of these lengths: consecutive ones, or interleaved ones of equal length."""

    lengths: tuple[Size, ...]
    is_interleaved: bool = False

    @classmethod
    def equal(cls, count: int, length: Size, is_interleaved: bool = False) -> Parting:
        return cls((length,) * count, is_interleaved)

    @property
    def count(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def length(self) -> Size | None:
        """The length of each part; None if they differ."""
        first = self.lengths[0]
        return first if all(each is first or same(each, first) for each in self.lengths) else None

    @property
    def size(self) -> Size:
        return sum(self.lengths) if self.length is None else self.count * self.length

    def place(self, part: int) -> tuple[Size, Size, int]:
        """The start, stop and step of a part."""
        if self.is_interleaved:
            return part, self.size, self.count
        start = sum(self.lengths[:part]) if self.length is None else part * self.length
        return start, start + self.lengths[part], 1

    def is_part(self, places: range) -> bool:
        return self.number_of(places) is not None

    def number_of(self, places: range) -> int | None:
        """The part at these places; None if they are not exactly a part."""
        if not all(isinstance(length, int) for length in self.lengths):
            return None
        return next((part for part in range(self.count) if range(*self.place(part)) == places), None)


@dataclass(frozen=True)
class Joined:
    """A node that joins parts along a dimension."""

    node: Node
    parts: Sequence[Node]
    dim: int
    parting: Parting

    @property
    def is_stack(self) -> bool:
        """Whether the parts lack the dimension, along which each has one element."""
        return self.node.target is STACK


def joined(node: Node) -> Joined | None:
    """The parts of a concatenation or a stack. They are interleaved if they are stacked along a new dimension that a
    reshape merges with the one before it. The parts of a concatenation may differ in size."""
    if node.target is CONCATENATION:
        parts, dim = parts_of(node)
        if len(parts) < 2 or any(len(shape_of(part)) != len(shape_of(node)) for part in parts):
            return None
        parting = Parting(tuple(shape_of(part)[dim] for part in parts))
        if parting.length is None and not are_worthwhile(parting, node):
            return None
    elif node.target is STACK:
        parts, dim = parts_of(node)
        parting = Parting.equal(len(parts), 1)
        if not 2 <= len(parts) <= MOST_STACKED:
            return None
    elif node.target is RESHAPE and node.args[0].target is STACK:
        parts, place = parts_of(node.args[0])
        dim = place - 1
        sizes = [*shape_of(parts[0])]
        if len(parts) < 2 or dim < 0 or len(shape_of(node)) != len(sizes):
            return None
        parting = Parting.equal(len(parts), sizes[dim], is_interleaved=True)
        sizes[dim] = parting.size
        if not all(map(same, sizes, shape_of(node))):
            return None
    else:
        return None
    dtype = node.meta["val"].dtype
    is_even = parting.length is None or all(have_same_shape(part, parts[0]) for part in parts)
    is_even = is_even and all(part.meta["val"].dtype == dtype for part in parts)
    return Joined(node, parts, dim, parting) if is_even and same(parting.size, shape_of(node)[dim]) else None


def are_worthwhile(parting: Parting, node: Node) -> bool:
    """Whether parts of different sizes are worth separate programs."""
    sizes = [*shape_of(node), *parting.lengths]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return False
    return parting.count <= MOST_UNEQUAL and node.meta["val"].nbytes >= FEWEST_BYTES


def parts_of(node: Node) -> tuple[Sequence[Node], int]:
    """The operands and the dimension of a concatenation or a stack."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return list(node.args[0]), dim % len(shape_of(node))


def flatten(graph: Graph) -> None:
    """Merges each concatenation into the one along the same dimension that is its only user."""

    def flat(node: Node, dim: int) -> list[Node]:
        parts, own = parts_of(node)
        if own != dim or any(len(shape_of(part)) != len(shape_of(node)) for part in parts):
            return [node]
        within = [part.target is CONCATENATION and list(part.users) == [node] for part in parts]
        return [
            each
            for part, is_within in zip(parts, within, strict=True)
            for each in (flat(part, dim) if is_within else [part])
        ]

    for node in graph.find_nodes(op="call_function", target=CONCATENATION):
        parts, dim = parts_of(node)
        own = flat(node, dim)
        if len(own) > len(parts):
            node.args, node.kwargs = (own, dim), {}


def takes_pieces(user: Node) -> bool:
    """Whether it only slices or selects, possibly along a dimension that a reshape creates."""
    if user.target is RESHAPE:
        return bool(user.users) and all(map(is_selection, user.users))
    return user.target is SLICE or is_selection(user) or user.target in SPLITS and has_items(user)


def is_selection(node: Node) -> bool:
    if node.target is SELECT:
        dim, count = named(SELECT, node.args, node.kwargs)["dim"], len(shape_of(node.args[0]))
        return -count <= dim < count  # torch traces it along any dimension; its kernel raises the error
    return node.target is UNBIND and has_items(node)


def has_items(node: Node) -> bool:
    return all(item.target is operator.getitem for item in node.users)


def pieces(user: Node) -> list[Piece]:
    """The slices that a user takes of its operand; empty if a size or a bound is symbolic."""
    if user.target is RESHAPE:
        return [piece for selection in user.users for piece in selected(selection, shape_of(user.args[0]))]
    given, shape = named(user.target, user.args, user.kwargs), shape_of(user.args[0])
    dim = given["dim"] % max(len(shape), 1)
    if is_selection(user):
        if not isinstance(shape[dim], int) or user.target is SELECT and not isinstance(given["index"], int):
            return []
        items = [(user, given["index"] % shape[dim])] if user.target is SELECT else [(n, n.args[1]) for n in user.users]
        return [(item, dim, range(index, index + 1)) for item, index in items]
    if user.target is SLICE:
        place = [given[name] for name in ("start", "end", "step")]
        is_known = all(each is None or isinstance(each, int) for each in place) and isinstance(shape[dim], int)
        return [(user, dim, range(*slice(*place).indices(shape[dim])))] if is_known else []
    lengths = [value.shape[dim] for value in user.meta["val"]]
    if not all(isinstance(length, int) for length in lengths):
        return []
    ends = [0, *itertools.accumulate(lengths)]
    return [(item, dim, range(ends[item.args[1]], ends[item.args[1] + 1])) for item in user.users]


def piece_of(node: Node) -> Piece | None:
    """The tensor of which a node is a part, the dimension, and the places, which are consecutive and static."""
    user = node.args[0] if node.target is operator.getitem else node
    if user.target not in (SLICE, SELECT) and (node is user or user.target not in (UNBIND, *SPLITS)):
        return None
    found = next(((dim, places) for piece, dim, places in pieces(user) if piece is node), None)
    if found is None or not found[1] or found[1].step > 1:
        return None
    return (user.args[0], *found)


def selected(node: Node, shape: Sequence[Size]) -> list[Piece]:
    """The slices of a tensor of this shape that a selection takes along a dimension of a reshape of it."""
    sizes = shape_of(node.args[0])
    given = named(node.target, node.args, node.kwargs)
    new = given["dim"] % len(sizes)
    rest = [*sizes[:new], *sizes[new + 1 :]]
    places = [dim for dim in (new - 1, new) if divides(rest, sizes[new], shape, dim)]
    if not places:
        return []
    dim, count = places[0], sizes[new]
    items = [(node, given["index"] % count)] if node.target is SELECT else [(n, n.args[1]) for n in node.users]
    parting = Parting.equal(count, rest[dim], is_interleaved=dim < new)
    return [(item, dim, range(*parting.place(index))) for item, index in items]


def divides(rest: Sequence[Size], count: Size, shape: Sequence[Size], dim: int) -> bool:
    """Whether dividing this dimension of the shape by the count gives the rest."""
    if len(rest) != len(shape) or not 0 <= dim < len(shape) or not isinstance(count, int):
        return False
    whole = [*rest[:dim], rest[dim] * count, *rest[dim + 1 :]]
    return isinstance(rest[dim], int) and all(map(same, whole, shape))


def dim_of_view(view: Node, dim: int) -> int | None:
    """The dimension of a view that is this dimension of its base; None if the view merges, splits or expands it."""
    base, shape = shape_of(view.args[0]), shape_of(view)
    if view.target in PERMUTATIONS:
        return permutation(view).index(dim)
    if view.target in EXPANSIONS:
        return dim + len(shape) - len(base)
    return place_in(base, shape, dim)


def dim_of_base(view: Node, dim: int) -> int | None:
    """The dimension of a view's base that is this dimension of the view, or None."""
    base, shape = shape_of(view.args[0]), shape_of(view)
    if view.target in PERMUTATIONS:
        return permutation(view)[dim]
    if view.target in EXPANSIONS:
        own = dim - len(shape) + len(base)
        return own if own >= 0 and not is_one(base[own]) else None
    return place_in(shape, base, dim)


def place_in(old: Sequence[Size], new: Sequence[Size], dim: int) -> int | None:
    """A dimension's index after a reshape: that of the same size with as many elements before and after it."""
    for place, size in enumerate(new):
        if same(size, old[dim]) and is_product(new[:place], old[:dim]) and is_product(new[place + 1 :], old[dim + 1 :]):
            return place
    return None


def is_product(sizes: Sequence[Size], others: Sequence[Size]) -> bool:
    left = [size for size in sizes if not is_one(size)]
    right = [size for size in others if not is_one(size)]
    if len(left) == len(right) and all(map(same, left, right)):
        return True
    return all(isinstance(size, int) for size in (*left, *right)) and math.prod(left) == math.prod(right)


def whole(parts: Sequence[Tensor], dim: int, parting: Parting, order: Sequence[int]) -> Tensor:
    """The parts joined. order: the whole's dimensions in memory order, outermost first."""
    is_permuted = list(order) != sorted(order)
    own = [part.permute(order) for part in parts] if is_permuted else list(parts)
    place = order.index(dim)
    if parting.is_interleaved:
        sizes = [*own[0].shape]
        sizes[place] = parting.size
        result = torch.stack(own, place + 1).reshape(sizes)
    else:
        result = torch.cat(own, place)
    return result.permute(sorted(range(len(order)), key=order.__getitem__)) if is_permuted else result
