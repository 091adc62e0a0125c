"""Moves slices before cheap elementwise operators whose result is read only by overlapping slices.

The gradient of a difference between neighbours, d[k - 1] - d[k], reads its operand at two places. One program then
computes both from tensors in memory; otherwise d would be written to memory and read twice. The pass by_parts handles
slices that don't overlap."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.analysis.in_place import is_returned
from fourfold.compiler.analysis.parts import CONCATENATION, SLICE, pieces
from fourfold.compiler.analysis.profitability import words
from fourfold.compiler.analysis.support import REFUSAL, is_computed, is_tensor, refuse
from fourfold.compiler.analysis.views import VIEWS, have_same_shape, is_one, shape_of
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.lowering.max_pools import WINDOWS
from fourfold.compiler.nodes.recorder import NotRecorded, Recorder, numbers_of
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

# Operators that take a processor less time than reading their result again.
CHEAP = words("""
    abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min
    copysign div eq floor ge gt hardshrink hardsigmoid hardswish hardtanh hardtanh_backward isnan le leaky_relu
    leaky_relu_backward lerp logical_and logical_not logical_or lt masked_fill maximum minimum mul ne neg
    reciprocal relu round rsub sgn sign softshrink sqrt square sub threshold threshold_backward trunc where
    _to_copy
""")
MOST_COMPUTED = 12  # operators for each slice
MOST_SLICES = 8
MOST_ROUNDS = 3
MOST_AGAIN = 3  # sizes of the whole, for all slices together


@dataclass
class Need:
    """The places along one dimension of a result that are read: by slices, or by operators whose results are read only
    there."""

    dim: int
    places: set[range] = field(default_factory=set)

    def add_whole(self, size: int) -> None:
        """Elementwise operators read all of it. by_parts computes equal parts once for them and for slices."""
        ordered = sorted(self.places, key=lambda each: each.start)
        are_equal = all(len(place) == len(ordered[0]) and place.start % len(place) == 0 for place in ordered)
        if not are_equal or size % len(ordered[0]) != 0:
            self.places.add(range(size))

    def overlaps(self) -> bool:
        ordered = sorted(self.places, key=lambda each: each.start)
        return any(a.stop > b.start for a, b in zip(ordered, ordered[1:], strict=False))


def sink_slices(module: GraphModule) -> GraphModule:
    inputs = numbers_of(module.graph)
    for _ in range(MOST_ROUNDS):  # slices of what is computed from slices
        needs = needs_of(module.graph)
        if not needs:
            break
        for node in visiting(module):
            if node.target is SLICE and node.args[0] in needs and REFUSAL not in node.meta:
                compute_from_slices(node, needs, Recorder(node, inputs))
        eliminate_dead_code(module.graph)
    return module


def needs_of(graph: Graph) -> dict[Node, Need]:
    """For each operator that slices move before, the places of its result that are read."""
    found: dict[Node, Need] = {}
    for node in reversed(graph.nodes):
        if is_cheap(node) and (need := need_of(node, found)) is not None:
            found[node] = need
    found = that_vanish(found)
    overlapping: set[Node] = set()
    for node in found:  # the graph's last first
        computed = behind(node, found)
        if len(computed) <= MOST_COMPUTED and any(found[each].overlaps() for each in computed):
            overlapping |= computed
    return that_vanish({node: need for node, need in found.items() if node in overlapping})


def that_vanish(needs: dict[Node, Need]) -> dict[Node, Need]:
    """Those whose results nothing reads once slices have moved before all of them."""
    found = dict(needs)
    while lost := [node for node in found if not reads_memory(node, found) or not is_read_by_slices(node, found)]:
        for node in lost:
            del found[node]
    return found


def is_cheap(node: Node) -> bool:
    return is_computed(node, POINTWISE) and node.target._schema.name.partition("::")[2] in CHEAP and bool(node.users)


def need_of(node: Node, needs: dict[Node, Need]) -> Need | None:
    """The places of a node's result that its users read; None if one needs all of it in memory."""
    shape = shape_of(node)
    found: Need | None = None
    is_read_whole = False
    for user in node.users:
        if reads_in_registers(user, node, needs):
            is_read_whole = True
            continue
        if user in needs:
            own = needs[user]
            dim, places = own.dim + len(shape) - len(shape_of(user)), own.places
            if dim < 0 or is_one(shape[dim]):
                return None
        elif user.target is SLICE and not is_returned(user) and all(map(is_part_of_program, user.users)):
            found_here = pieces(user)
            if not found_here:
                return None
            _, dim, place = found_here[0]
            if place.step > 1 and not is_of_windows(user):
                return None
            places = {place}
        else:
            return None
        found = found or Need(dim)
        if found.dim != dim or not all(places):
            return None
        found.places |= places
    if found is None or not isinstance(shape[found.dim], int):
        return None
    if is_read_whole:
        found.add_whole(shape[found.dim])
    is_few = len(found.places) <= MOST_SLICES
    return found if is_few and sum(map(len, found.places)) <= MOST_AGAIN * shape[found.dim] else None


def reads_in_registers(user: Node, node: Node, needs: dict[Node, Need]) -> bool:
    """Whether it is fused with the node, and slices don't move before it."""
    return user not in needs and is_computed(user, POINTWISE) and have_same_shape(user, node)


def is_part_of_program(user: Node) -> bool:
    return is_computed(user, POINTWISE, ROWS) or user.target is CONCATENATION or is_of_windows(user)


def is_of_windows(user: Node) -> bool:
    """Whether it slices windows before which operators are to move, along one dimension after another."""
    return user.target is SLICE and WINDOWS in user.meta


def reads_memory(node: Node, needs: dict[Node, Need]) -> bool:
    """Whether the slices of its operands are computed in the same way, or lie in memory anyway."""
    return all(operand in needs or not varies(operand, node, needs[node]) or lies_in_memory(operand)
               for operand in node.all_input_nodes)  # fmt: skip


def is_read_by_slices(node: Node, needs: dict[Node, Need]) -> bool:
    return all(user in needs or user.target is SLICE or reads_in_registers(user, node, needs) for user in node.users)


def varies(operand: Node, node: Node, need: Need) -> bool:
    """Whether an operand varies along the dimension that is sliced."""
    if not is_tensor(operand.meta["val"]):
        return False
    dim = need.dim + len(shape_of(operand)) - len(shape_of(node))
    return dim >= 0 and not is_one(shape_of(operand)[dim])


def lies_in_memory(node: Node) -> bool:
    while node.target in VIEWS or node.target is SLICE:
        node = node.args[0]
    return not is_computed(node, POINTWISE, ROWS)


def behind(node: Node, needs: dict[Node, Need]) -> set[Node]:
    """The operators that compute it from what lies in memory."""
    found, pending = set(), [node]
    while pending:
        each = pending.pop()
        if each in needs and each not in found:
            found.add(each)
            pending += each.all_input_nodes
    return found


def compute_from_slices(piece: Node, needs: dict[Node, Need], recorder: Recorder) -> None:
    _, _, place = pieces(piece)[0]
    known: dict[Node, Tensor] = {}

    def computed(record: Recorder, node: Node) -> Tensor:
        if node not in known:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: operand(record, node, given))
            known[node] = node.target(*args, **kwargs)
        return known[node]

    def operand(record: Recorder, node: Node, given: Node) -> object:
        if not varies(given, node, needs[node]):
            return record.value(given)
        dim = needs[node].dim + len(shape_of(given)) - len(shape_of(node))
        return computed(record, given) if given in needs else sliced(record, given, dim, place)

    try:
        with recorder as record:
            result = record.node(computed(record, piece.args[0]))
    except NotRecorded as reason:
        recorder.erase()
        refuse(piece, f"its operands' slices read {reason}")
    else:
        piece.replace_all_uses_with(result)  # its users are programs, which read any layout


def sliced(record: Recorder, node: Node, dim: int, place: range) -> Tensor:
    """The slice of a node; of a slice, the slice of its base, so that equal slices become equal calls."""
    start, stop, step = place.start, place.stop, place.step
    while node.target is SLICE and (found := pieces(node)) and found[0][1] == dim and found[0][2].step == 1:
        start, stop, node = start + found[0][2].start, stop + found[0][2].start, node.args[0]
    return torch.ops.aten.slice.Tensor(record.value(node), dim, start, stop, step)
