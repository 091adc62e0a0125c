"""Stacks the gradients of parts of one tensor: torch traces each padded with zeros to the whole, and adds them up. A
single one becomes a concatenation with zeros."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.parts import Parting, are_worthwhile
from fourfold.compiler.analysis.ranges import END, Piece, Ranges
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import REFUSAL, is_computed, is_tensor
from fourfold.compiler.analysis.views import VIEWS, have_same_shape, same
from fourfold.compiler.lowering import POINTWISE
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
ADD = aten.add.Tensor
SELECT = aten.select_backward.default
SLICE = aten.slice_backward.default
MOST_STACKS = 4  # of overlapping parts, after another summand
Total = Callable[[Recorder], Tensor]


@dataclass(frozen=True)
class Part:
    """A gradient, and its places along a dimension of the whole. Negative ones count from the end of a dimension of
    symbolic size. Interleaved parts have one element out of ``step``, from the start."""

    gradient: Node
    dim: int
    start: int
    stop: int
    step: int = 1
    is_selected: bool = False  # the gradient lacks the dimension

    @property
    def along(self) -> tuple[int, int, bool]:
        """Equal for parts that one stack can have."""
        return self.dim, self.step, self.start < 0


@dataclass
class Run:
    """Consecutive summands that are parts along one dimension, or one other summand. continues: the parts are added to
    the sum so far, which is divided for that."""

    nodes: list[Node] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    continues: bool = False

    def add(self, node: Node, part: Part | None) -> None:
        self.nodes.append(node)
        if part is not None:
            self.parts.append(part)


def stack_gradients(module: GraphModule) -> GraphModule:
    """Replaces sums of gradients of ``select``, ``unbind`` and ``slice``. Each element's additions keep their order."""
    graph, inputs = module.graph, numbers_of(module.graph)
    if not any(graph.find_nodes(op="call_function", target=target, sort=False) for target in (SELECT, SLICE)):
        return module
    for root in visiting(module, reversed(graph.find_nodes(op="call_function", target=ADD))):
        is_dead = not root.users  # was part of a sum that has been replaced
        if not is_dead and REFUSAL not in root.meta and is_root(root):
            stack(root, inputs)
    for node in visiting(module, [n for n in graph.nodes if n.target in (SELECT, SLICE) and REFUSAL not in n.meta]):
        concatenate(node, inputs)
    eliminate_dead_code(graph)
    return module


def concatenate(node: Node, inputs: Sizes) -> None:
    """Makes a part's gradient a concatenation with zeros if its users will be computed by parts (by_parts)."""
    part = part_of(node)
    size = node.meta["val"].shape[part.dim] if part is not None else None
    if not isinstance(size, int) or part.step > 1 or not all(is_computed(user, POINTWISE) for user in node.users):
        return
    bounds = [0, part.start, part.stop, size]
    lengths = tuple(stop - start for start, stop in itertools.pairwise(bounds) if stop > start)
    if len(lengths) > 1 and are_worthwhile(Parting(lengths), node):
        run = Run([node], [part])
        rewritten(node, lambda record: whole(run, record), inputs, reader="the concatenation reads")


def is_sum(node: object) -> bool:
    """Whether it adds two tensors of the result's shape and dtype."""
    if not isinstance(node, Node) or node.target is not ADD or node.kwargs or len(node.args) != 2:
        return False
    if not all(isinstance(each, Node) and is_tensor(each.meta.get("val")) for each in node.args):
        return False
    dtype = node.meta["val"].dtype
    return all(each.meta["val"].dtype == dtype and have_same_shape(each, node) for each in node.args)


def is_root(node: Node) -> bool:
    """Whether it is the last of a chain of additions."""
    if not is_sum(node):
        return False
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return not is_sum(user) or continued(user) is not node


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
            return [*map(sliced, node.args), *reversed(found)]
        found.append(sliced(node.args[1] if node.args[0] is inner else node.args[0]))
        node = inner


def sliced(node: Node) -> Node:
    """Skips gradients of slices that cover the whole dimension, as in x[:, t] with symbolic sizes."""
    while node.target is SLICE and not node.kwargs:
        gradient, _, dim, start, _, step = node.args
        if (start, step) != (0, 1) or not same(gradient.meta["val"].shape[dim], node.meta["val"].shape[dim]):
            break
        node = gradient
    return node


def part_of(node: Node) -> Part | None:
    """The part whose gradient the node is; None if there is none, or if its places are not known."""
    if node.target not in (SELECT, SLICE) or node.kwargs:
        return None
    gradient, sizes, dim, *place = node.args
    dim %= len(sizes)
    size = sizes[dim]
    if not all(isinstance(each, int) for each in place):
        return None
    if node.target is SELECT:
        start = place[0] % size if isinstance(size, int) else place[0]
        return Part(gradient, dim, start, start + 1, is_selected=True)
    if not isinstance(size, int):
        return part_of_unknown(gradient, dim, *place)
    places = range(*slice(*place).indices(size))
    if places and places.step == 1:
        return Part(gradient, dim, places.start, places.stop)
    is_interleaved = places and places.start < places.step and len(places) * places.step == size
    return Part(gradient, dim, places.start, places.start + 1, places.step) if is_interleaved else None


def part_of_unknown(gradient: Node, dim: int, start: int, stop: int, step: int) -> Part | None:
    """A part of a dimension of symbolic size, if the gradient's size proves that the places are within it."""
    length = gradient.meta["val"].shape[dim]
    stop = 0 if start < 0 and stop == END else stop
    is_known = step == 1 and isinstance(length, int) and 0 < length == stop - start and (start >= 0 or stop <= 0)
    return Part(gradient, dim, start, stop) if is_known else None


def stack(root: Node, inputs: Sizes) -> None:
    """Replaces a sum, and then the sums among the new nodes, which add gradients of parts of parts."""
    graph, pending = root.graph, [root]
    while pending:
        node = pending.pop()
        terms = summands(node)
        total = factored(terms) or stacked(terms)
        written = total and rewritten(node, total, inputs, reader="the stack reads")
        roots = [each for each in written or () if each.users and is_root(each)]
        if roots:
            eliminate_dead_code(graph)  # the gradients that they add have no other users then
        pending += roots


def factored(terms: Sequence[Node]) -> Total | None:
    """Applies one operator to the sum of its operands, if the first summands apply it to gradients of parts, as in a
    loop that reads x[1:, t] or x.mT[t]."""
    first = terms[0]
    if first.target not in (SELECT, SLICE, *VIEWS) or not leads_to_part(first.args[0]):
        return None
    alike = list(itertools.takewhile(lambda term: are_alike(term, first), terms))
    if len(alike) < 2:
        return None

    def total(record: Recorder) -> Tensor:
        operand = functools.reduce(torch.add, [record.value(term.args[0]) for term in alike])
        value = first.target(operand, *torch.fx.map_arg(first.args[1:], record.value))
        return functools.reduce(torch.add, map(record.value, terms[len(alike) :]), value)

    return total


def leads_to_part(node: Node) -> bool:
    while node.target in VIEWS:
        node = node.args[0]
    return node.target in (SELECT, SLICE)


def are_alike(term: Node, first: Node) -> bool:
    """Whether they apply one operator to operands of one shape."""
    if (term.target, term.args[1:], term.kwargs) != (first.target, first.args[1:], {}) or len(term.users) > 1:
        return False
    operand, other = term.args[0], first.args[0]
    return operand.meta["val"].dtype == other.meta["val"].dtype and have_same_shape(operand, other)


def stacked(terms: Sequence[Node]) -> Total | None:
    """The sum with runs of parts as stacks; None if it has no such runs."""
    runs = [part for k, run in enumerate(runs_of(terms)) for part in (divided(run) if k else [run])]
    if all(len(run.nodes) == 1 for run in runs):
        return None

    def total(record: Recorder) -> Tensor:
        value = None
        for run in runs:
            if run.continues:
                value = whole(run, record, value)
            else:
                own = record.value(run.nodes[0]) if len(run.nodes) == 1 else whole(run, record)
                value = own if value is None else value + own
        return value

    return total


def runs_of(terms: Sequence[Node]) -> list[Run]:
    found: list[Run] = []
    last: Part | None = None
    for node in terms:
        part = part_of(node) if len(node.users) == 1 else None
        if part is None or last is None or part.along != last.along:
            found.append(Run())
        found[-1].add(node, part)
        last = part
    return found


def divided(run: Run) -> list[Run]:
    """Divides a run that follows other summands, to which its elements are added one by one. Parts that don't overlap
    become one stack; if many overlap, the sum so far is divided instead."""
    if not run.parts:
        return [run]
    found: list[Run] = [Run()]
    bounds: list[tuple[int, int]] = []
    for node, part in zip(run.nodes, run.parts, strict=True):
        place = bisect.bisect_left(bounds, (part.start, part.stop))
        if place and bounds[place - 1][1] > part.start or place < len(bounds) and bounds[place][0] < part.stop:
            found.append(Run())
            bounds, place = [], 0
        bounds.insert(place, (part.start, part.stop))
        found[-1].add(node, part)
    part = run.parts[0]
    is_known = isinstance(run.nodes[0].meta["val"].shape[part.dim], int) and part.step == 1
    return [Run(run.nodes, run.parts, continues=True)] if len(found) > MOST_STACKS and is_known else found


def whole(run: Run, record: Recorder, before: Tensor | None = None) -> Tensor:
    """The parts as one tensor, with zeros elsewhere, or added to the sum before them."""
    like, first = run.nodes[0].meta["val"], run.parts[0]
    found = Ranges(like, first.dim)
    if before is not None:
        found.add(Piece(0, like.shape[first.dim], before))
    for part in run.parts:
        found.add(Piece(part.start, part.stop, record.value(part.gradient), part.is_selected))
    return found.interleaved(first.step) if first.step > 1 else found.whole()
