"""Computes the users of a concatenation part by part, and concatenates the results.

Programs can write concatenations, but not read them. In rotary embedding, q * cos + cat([-q[h:], q[:h]]) * sin, the
whole operands are sliced like the concatenation, and the sum of each half is computed; one program writes both. In the
gradient, slices of computed values are computed from slices of their operands."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.in_place import is_returned
from fourfold.compiler.analysis.parts import (
    CONCATENATION,
    MOST_STACKED,
    SELECT,
    STACK,
    UNBIND,
    Joined,
    Parting,
    are_worthwhile,
    dim_of_base,
    dim_of_view,
    flatten,
    joined,
    pieces,
    takes_pieces,
    whole,
)
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import REFUSAL, constant_of, is_computed, is_tensor, refuse
from fourfold.compiler.analysis.views import (
    EXPANSIONS,
    PERMUTATIONS,
    VIEWS,
    is_one,
    memory_order,
    permutation,
    same,
    shape_of,
)
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.nodes.recorder import NotRecorded, Recorder, is_alike, numbers_of
from fourfold.compiler.passes.cleanup import eliminate_dead_code, sort
from fourfold.compiler.pipeline.fallback import FAILED, visiting

MOST_COMPUTED = 100  # operators, after the division
MOST_ROUNDS = 4


def by_parts(module: GraphModule) -> GraphModule:
    inputs = numbers_of(module.graph)
    is_divided = True
    for _ in range(MOST_ROUNDS):  # a part may be a concatenation, along another dimension, that its users now read
        if is_divided:
            is_divided = divide_all(module, inputs)
    flatten(module.graph)
    eliminate_dead_code(module.graph)
    return sort(module)


def divide_all(module: GraphModule, inputs: Sizes) -> bool:
    """Divides every region there is; returns whether a part of one is a concatenation."""
    is_divided = False
    for node in visiting(module):
        if node.meta.get(REFUSAL, "").startswith(FAILED) or not node.users:
            continue
        found = region_of(node)
        if found is not None:
            divide(found, inputs)
            parts = (part for each in found.given.values() for part in each.parts)
            is_divided = is_divided or any(part.target is CONCATENATION for part in parts)
    eliminate_dead_code(module.graph)
    return is_divided


class Undivided(Exception):
    """The division would add a read or a write of memory."""


@dataclass
class Region:
    """dims: the nodes to compute by parts, and the dimension of each that is divided. given: those of them that join
    the parts. read: tensors in memory, of which slices are read. taken: slices of all these, with the index of each
    one's part."""

    parting: Parting
    seed: Node
    dims: dict[Node, int] = field(default_factory=dict)
    given: dict[Node, Joined] = field(default_factory=dict)
    read: dict[Node, int] = field(default_factory=dict)
    taken: dict[Node, int] = field(default_factory=dict)
    pending: list[Node] = field(default_factory=list)

    def grow(self, dim: int) -> None:
        """Adds all nodes that have to be divided with the seed. Raises Undivided."""
        self.enter(self.seed, dim)
        while self.pending:
            node = self.pending.pop()
            if node not in self.given:
                self.add_operands(node)
            self.add_users(node)
        for node, dim in self.read.items():
            for user in node.users:
                self.take(user, dim)
        for node in sorted(self.dims, reverse=True):  # a view without divided users is applied after the concatenation
            if node.target in VIEWS and not any(user in self.dims or self.is_taken(user) for user in node.users):
                del self.dims[node]

    def enter(self, node: Node, dim: int) -> None:
        if node in self.dims:
            if self.dims[node] != dim:
                raise Undivided
            return
        self.dims[node] = dim
        if len(self.dims) * self.parting.count > MOST_COMPUTED:
            raise Undivided
        if self.is_joined(node, dim):
            self.given[node] = joined(node)
        self.pending.append(node)

    def is_joined(self, node: Node, dim: int) -> bool:
        """Whether it joins exactly these parts."""
        found = joined(node)
        return found is not None and found.dim == dim and found.parting == self.parting

    def add_users(self, node: Node) -> None:
        dim = self.dims[node]
        for user in node.users:
            if user.op == "output" or self.take(user, dim):
                continue
            if is_computed(user, POINTWISE):
                self.enter(user, dim + len(shape_of(user)) - len(shape_of(node)))
            elif user.target in VIEWS and (own := dim_of_view(user, dim)) is not None:
                self.enter(user, own)
            elif node not in self.given and (is_computed(user, ROWS) or user.target in VIEWS and leads_on(user)):
                raise Undivided

    def take(self, user: Node, dim: int) -> bool:
        """Whether the user only reads exact parts to compute with. A slice that the graph returns stays a slice of the
        whole, because the part may be a slice of an input."""
        if not takes_pieces(user) or is_returned(user):
            return False
        found = {}
        for piece, along, places in pieces(user):
            number = self.parting.number_of(places) if along == dim else None
            if number is None:
                return False
            found[piece] = number
        self.taken.update(found)
        return bool(found)

    def is_taken(self, user: Node) -> bool:
        return takes_pieces(user) and all(piece in self.taken for piece, *_ in pieces(user))

    def add_operands(self, node: Node) -> None:
        for operand in node.all_input_nodes:
            dim = self.dim_of_operand(node, operand)
            if dim is None or constant_of(operand) is not None:
                continue
            is_within = operand in self.dims or self.is_joined(operand, dim) or is_computed(operand, POINTWISE)
            if is_within or operand.target in VIEWS and is_fusible(base_of(operand)):
                self.enter(operand, dim)
            elif is_fusible(operand) or self.read.setdefault(operand, dim) != dim:
                raise Undivided

    def dim_of_operand(self, node: Node, operand: Node) -> int | None:
        """The dimension of an operand that is divided; None if the operand is the same for all parts."""
        if not is_tensor(operand.meta["val"]):
            return None
        dim, shape = self.dims[node], shape_of(operand)
        if node.target in VIEWS:
            dim = dim_of_base(node, dim)
            if dim is None and node.target in EXPANSIONS:
                return None
        else:
            dim += len(shape) - len(shape_of(node))
            if dim < 0 or is_one(shape[dim]):
                return None
        if dim is None or not same(shape[dim], self.parting.size):
            raise Undivided
        return dim


def is_fusible(node: Node) -> bool:
    node = node.args[0] if node.target is operator.getitem else node
    return is_computed(node, POINTWISE, ROWS)


def base_of(node: Node) -> Node:
    while node.target in VIEWS:
        node = node.args[0]
    return node


def leads_on(view: Node) -> bool:
    """Whether an operator that fuses reads a view, perhaps through others."""
    return any(is_fusible(user) or user.target in VIEWS and leads_on(user) for user in view.users)


def region_of(seed: Node) -> Region | None:
    """The region to divide, starting from a concatenation that an elementwise operator reads, or from an elementwise
    operator whose result others slice."""
    found = joined(seed)
    if found is not None and found.is_stack and not any(map(is_fusible, found.parts)):
        return None
    if found is not None:
        region, dim = Region(found.parting, seed), found.dim
    elif is_computed(seed, POINTWISE) and not is_reordered(seed):
        parting, dim = parting_of_slices(seed)
        if parting is None:
            return None
        region = Region(parting, seed)
    else:
        return None
    try:
        region.grow(dim)
    except Undivided:
        return None
    return region if any(node not in region.given and node.target not in VIEWS for node in region.dims) else None


def is_reordered(node: Node) -> bool:
    """Whether it is a copy with another order of dimensions in memory, so that slices of it are contiguous."""
    is_copy = node.target is torch.ops.aten.clone.default
    return is_copy and memory_order(node.args[0].meta["val"]) != memory_order(node.meta["val"])


def parting_of_slices(node: Node) -> tuple[Parting | None, int]:
    """How an operator's users divide its result, if all of them read parts and at least one part is computed with."""
    sliced = [user for user in node.users if takes_pieces(user)]
    if not sliced or len(sliced) < len(node.users):
        return None, 0
    found = [piece for user in sliced for piece in pieces(user)]
    readers = [user for piece, *_ in found for user in piece.users]
    joins = (CONCATENATION, STACK)
    is_read = any(is_fusible(user) or user.target is CONCATENATION for user in readers)
    if not is_read or not all(is_fusible(user) or user.target in joins for user in readers):
        return None, 0
    _, dim, places = found[0]
    size, length = shape_of(node)[dim], len(places)
    if not length or length == size:
        return None, 0
    all_places = {each for _, along, each in found if along == dim}
    parting = Parting.equal(size // length, length, is_interleaved=places.step > 1)
    if size % length or not all(map(parting.is_part, all_places)):
        parting = tiled(all_places, size)
        return (parting, dim) if parting is not None and are_worthwhile(parting, node) else (None, 0)
    return (parting, dim) if length > 1 or size <= MOST_STACKED else (None, 0)


def tiled(ranges: Iterable[range], size: int) -> Parting | None:
    """A division that has these ranges among its parts; None if they overlap or have steps."""
    ordered = sorted(ranges, key=lambda each: each.start)
    bounds = [0, *(bound for each in ordered for bound in (each.start, each.stop)), size]
    if any(each.step > 1 for each in ordered) or bounds != sorted(bounds):
        return None
    return Parting(tuple(stop - start for start, stop in itertools.pairwise(bounds) if stop > start))


def divide(region: Region, inputs: Sizes) -> None:
    try:
        Division(region, inputs).run()
    except NotRecorded as reason:
        refuse(region.seed, f"its parts read {reason}")


class Division:
    """Writes the parts of a region's nodes beside them, and then replaces the uses of the whole."""

    def __init__(self, region: Region, inputs: Sizes):
        self.region = region
        self.inputs = inputs
        self.parts: dict[Node, list[Node]] = {node: list(found.parts) for node, found in region.given.items()}
        self.wholes: dict[Node, Node] = {}
        self.written: list[Recorder] = []

    def run(self) -> None:
        region = self.region
        try:
            for node, dim in region.read.items():
                self.write(after(node), node, lambda record, p, node=node, dim=dim: self.sliced(record, node, dim, p))
            for node in sorted(region.dims):
                if node not in region.given:
                    self.write(node, node, lambda record, p, node=node: self.computed(record, node, p))
                    self.write_whole(node)
                elif region.given[node].is_stack:
                    self.write(node, node, lambda record, p, node=node: self.unsqueezed(record, node, p))
            replaced = {piece: self.part_for(piece, number) for piece, number in region.taken.items()}
        except NotRecorded:
            for record in reversed(self.written):
                record.erase()
            raise
        for piece, part in replaced.items():
            if part is not piece:
                piece.replace_all_uses_with(part)
        for node, result in self.wholes.items():
            node.replace_all_uses_with(result, delete_user_cb=self.is_outside)

    def is_outside(self, user: Node) -> bool:
        return user not in self.region.dims and not self.region.is_taken(user)

    def source_of(self, piece: Node) -> Node:
        while piece not in self.parts:
            piece = piece.args[0]
        return piece

    def part_for(self, piece: Node, number: int) -> Node:
        """A part as a slice, or as a selection, which lacks the dimension: whichever the piece is."""
        source = self.source_of(piece)
        part = self.parts[source][number]
        if piece in part.args:  # the part itself is this selection
            return piece
        if len(shape_of(piece)) == len(shape_of(part)):
            return part
        with self.recorder(piece) as record:
            return record.node(record.value(part).squeeze(self.dim_of(source)))

    def dim_of(self, node: Node) -> int:
        region = self.region
        return region.dims[node] if node in region.dims else region.read[node]

    def recorder(self, before: Node) -> Recorder:
        self.written.append(Recorder(before, self.inputs))
        return self.written[-1]

    def write(self, before: Node, node: Node, part: object) -> None:
        with self.recorder(before) as record:
            self.parts[node] = [record.node(part(record, p)) for p in range(self.region.parting.count)]

    def unsqueezed(self, record: Recorder, node: Node, number: int) -> Tensor:
        found = self.region.given[node]
        return record.value(found.parts[number]).unsqueeze(found.dim)

    def sliced(self, record: Recorder, node: Node, dim: int, number: int) -> Tensor:
        parting = self.region.parting
        if parting.length == 1:
            known = selection_of(node, dim, number)
            selected = torch.ops.aten.select.int(record.value(node), dim, number) if known is None else known
            return (record.value(selected) if selected is known else selected).unsqueeze(dim)
        start, stop, step = parting.place(number)
        return torch.ops.aten.slice.Tensor(record.value(node), dim, start, stop, step)

    def computed(self, record: Recorder, node: Node, number: int) -> Tensor:
        """A part of a node, from those of its operands."""

        def operand(given: Node) -> object:
            if given in self.parts:
                return record.value(self.parts[given][number])
            dim = self.region.dim_of_operand(node, given)
            if dim is None:
                return record.value(given)
            fake = given.meta["val"]  # a constant
            return torch.full(self.shape(given, dim, number), constant_of(given), dtype=fake.dtype, device=fake.device)

        if node.target in PERMUTATIONS:
            return operand(node.args[0]).permute(permutation(node))
        if node.target in VIEWS:
            sizes = self.shape(node, self.region.dims[node], number)
            base = operand(node.args[0])
            return base.expand(sizes) if node.target in EXPANSIONS else base.reshape(sizes)
        return node.target(*torch.fx.map_arg(node.args, operand), **torch.fx.map_arg(node.kwargs, operand))

    def shape(self, node: Node, dim: int, number: int) -> list[object]:
        return [*shape_of(node)[:dim], self.region.parting.lengths[number], *shape_of(node)[dim + 1 :]]

    def write_whole(self, node: Node) -> None:
        """The parts joined, for users that are not divided. Raises NotRecorded if it would have another layout."""
        if not any(map(self.is_outside, node.users)):
            return
        fake = node.meta["val"]
        with self.recorder(node) as record:
            values = [record.value(part) for part in self.parts[node]]
            result = whole(values, self.region.dims[node], self.region.parting, memory_order(fake))
            self.wholes[node] = record.node(result)
        if not is_alike(self.wholes[node], fake):
            raise NotRecorded("another layout")


def selection_of(node: Node, dim: int, index: int) -> Node | None:
    """A node that selects this index of a tensor, or None."""
    found = [piece for user in node.users if user.target in (SELECT, UNBIND) for piece in pieces(user)]
    return next((piece for piece, along, places in found if along == dim and places.start == index), None)


def after(node: Node) -> Node:
    """The next node that is not an input."""
    following: Iterable[Node] = node.next
    while following.op == "placeholder":
        following = following.next
    return following
