"""Stacks the gradients of parts of one tensor: torch traces each as zeros as large as the whole, and adds them up. One
alone becomes a concatenation with zeros."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.fallback import visiting
from fourfold.compiler.lowering import POINTWISE
from fourfold.compiler.parts import Parting, are_worthwhile
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.sizes import Sizes
from fourfold.compiler.support import REFUSAL, is_computed

aten = torch.ops.aten
ADD = aten.add.Tensor
SELECT = aten.select_backward.default
SLICE = aten.slice_backward.default
MOST_SHIFTED = 4  # ranges that overlap


@dataclass(frozen=True)
class Part:
    """A gradient, and its places along a dimension of the whole."""

    gradient: Node
    places: range
    is_selected: bool  # the gradient lacks the dimension


@dataclass
class Segment:
    """Parts that are added one after the other, or one other summand."""

    parts: list[Part]
    nodes: list[Node]
    dim: int = -1


def stack_gradients(module: GraphModule) -> GraphModule:
    """Replaces sums of gradients of ``select``, ``unbind`` and ``slice``. Each element's additions keep their order."""
    graph, inputs = module.graph, numbers_of(module.graph)
    if not any(graph.find_nodes(op="call_function", target=target, sort=False) for target in (SELECT, SLICE)):
        return module
    for root in visiting(module, reversed(graph.find_nodes(op="call_function", target=ADD))):
        is_dead = not root.users  # was part of a sum that has been replaced
        if not is_dead and REFUSAL not in root.meta and is_sum(root) and not is_within_sum(root):
            stack(root, inputs)
    for node in visiting(module, [n for n in graph.nodes if n.target in (SELECT, SLICE) and REFUSAL not in n.meta]):
        concatenate(node, inputs)
    eliminate_dead_code(graph)
    return module


def concatenate(node: Node, inputs: Sizes) -> None:
    """Makes a part's gradient a concatenation with zeros if what reads it will be computed by parts (by_parts)."""
    dim, part = part_of(node) or (-1, None)
    if part is None or part.places.step > 1 or not all(is_computed(user, POINTWISE) for user in node.users):
        return
    bounds = [0, part.places.start, part.places.stop, node.meta["val"].shape[dim]]
    lengths = tuple(stop - start for start, stop in itertools.pairwise(bounds) if stop > start)
    if len(lengths) > 1 and are_worthwhile(Parting(lengths), node):
        segment = Segment([part], [node], dim)
        rewritten(node, lambda record: whole(segment, record), inputs, reader="the concatenation reads")


def is_sum(node: object) -> bool:
    """Whether it adds two tensors of the result's shape and dtype."""
    if not isinstance(node, Node) or node.target is not ADD or node.kwargs or len(node.args) != 2:
        return False
    if not all(isinstance(each, Node) and isinstance(each.meta.get("val"), Tensor) for each in node.args):
        return False
    own = node.meta["val"]
    return all(each.meta["val"].dtype == own.dtype and each.meta["val"].shape == own.shape for each in node.args)


def is_within_sum(node: Node) -> bool:
    """Whether its only user continues the chain of additions."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return is_sum(user) and continued(user) is node


def continued(node: Node) -> Node | None:
    """The operand that is a sum used by this addition alone; the other operand is the summand."""
    return next((each for each in node.args if is_sum(each) and len(each.users) == 1), None)


def summands(root: Node) -> list[Node]:
    """The summands in the order of the additions."""
    found: list[Node] = []
    node: Node = root
    while True:
        inner = continued(node)
        if inner is None:
            return [*node.args, *reversed(found)]
        found.append(node.args[1] if node.args[0] is inner else node.args[0])
        node = inner


def part_of(node: Node) -> tuple[int, Part] | None:
    """The dimension and the part; None if the node is not the gradient of a part, or if sizes are symbolic."""
    if node.target not in (SELECT, SLICE) or node.kwargs:
        return None
    gradient, sizes, dim, *place = node.args
    dim %= len(sizes)
    size = sizes[dim]
    if not all(isinstance(each, int) for each in (size, *place)):
        return None
    if node.target is SELECT:
        return dim, Part(gradient, range(place[0] % size, place[0] % size + 1), True)
    places = range(*slice(*place).indices(size))
    is_interleaved = places.start < places.step and len(places) * places.step == size
    return (dim, Part(gradient, places, False)) if places and (places.step == 1 or is_interleaved) else None


def segments(nodes: Sequence[Node]) -> list[Segment]:
    """Splits summands into segments that can be one stack without changing the order of any element's additions."""
    found: list[Segment] = []
    for node in nodes:
        dim, part = (len(node.users) == 1 and part_of(node)) or (-1, None)
        last = found[-1] if found else None
        is_next = part is not None and last is not None and last.dim == dim
        if is_next and can_follow(last.parts, part, is_first=len(found) == 1):
            last.parts.append(part)
            last.nodes.append(node)
        else:
            found.append(Segment([part] if part else [], [node], dim))
    return found


def can_follow(parts: Sequence[Part], part: Part, is_first: bool) -> bool:
    """Whether the part can join: parts must not overlap, except in the first segment, where those that do are added:
    equal ranges, and a few shifted ones, as differences of neighbours have. Interleaved parts join such with the same
    step."""
    for other in parts:
        if other.places.step != part.places.step:
            return False
        if overlap(other.places, part.places):
            same = (other.places, other.is_selected) == (part.places, part.is_selected)
            shifted = part.places.step == 1 and len({each.places for each in (*parts, part)}) <= MOST_SHIFTED
            if not is_first or not (same or shifted):
                return False
    return True


def overlap(a: range, b: range) -> bool:
    """Of two ranges with one step; those with a step above 1 are interleaved."""
    return a.start == b.start if a.step > 1 else a.start < b.stop and b.start < a.stop


def stack(root: Node, inputs: Sizes) -> None:
    own = segments(summands(root))
    if all(len(segment.nodes) == 1 for segment in own):
        return

    def total(record: Recorder) -> Tensor:
        values = (record.value(s.nodes[0]) if len(s.nodes) == 1 else whole(s, record) for s in own)
        return functools.reduce(torch.add, values)

    rewritten(root, total, inputs, reader="the stack reads")


def whole(segment: Segment, record: Recorder) -> Tensor:
    """The parts as one tensor, with zeros elsewhere."""
    places: dict[tuple[range, bool], Tensor] = {}
    for part in segment.parts:
        place = part.places, part.is_selected
        gradient = record.value(part.gradient)
        places[place] = places[place] + gradient if place in places else gradient
    fake, dim = segment.nodes[0].meta["val"], segment.dim
    ordered = sorted(places.items(), key=lambda pair: pair[0][0].start)
    step = ordered[0][0][0].step
    if step > 1:
        known = {place.start: gradient for (place, _), gradient in ordered}
        parts = [known[k] if k in known else torch.zeros_like(ordered[0][1]) for k in range(step)]
        return torch.stack(parts, dim + 1).reshape(fake.shape)
    if len(ordered) == fake.shape[dim] and all(is_selected for (_, is_selected), _ in ordered):
        return torch.stack([gradient for _, gradient in ordered], dim)

    def zeros(count: int) -> Tensor:
        sizes = [*fake.shape[:dim], count, *fake.shape[dim + 1 :]]
        return torch.zeros(sizes, dtype=fake.dtype, device=fake.device)

    given = [(place, x.unsqueeze(dim) if is_selected else x) for (place, is_selected), x in places.items()]
    bounds = sorted({0, fake.shape[dim], *(bound for place, _ in given for bound in (place.start, place.stop))})
    pieces = []
    for begin, end in itertools.pairwise(bounds):  # between two bounds the same gradients are added, in their order
        covering = [
            x if len(place) == end - begin else x.narrow(dim, begin - place.start, end - begin)
            for place, x in given
            if place.start <= begin < place.stop
        ]
        pieces.append(functools.reduce(torch.add, covering) if covering else zeros(end - begin))
    return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0]
