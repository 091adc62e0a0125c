"""Cuts concatenations that meet in elementwise operators at the same places.

torch.roll(x, 1) joins the last element to the others, torch.roll(x, -1) the others to the first. An operator that reads
both has three parts: by_parts computes each of them from slices of x, where it would otherwise read the concatenations
from memory."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.analysis.parts import CONCATENATION, Joined, Parting, are_worthwhile, joined
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import REFUSAL, constant_of, is_computed, refuse
from fourfold.compiler.analysis.views import have_same_shape, shape_of
from fourfold.compiler.lowering import POINTWISE
from fourfold.compiler.nodes.recorder import NotRecorded, Recorder, is_alike, numbers_of
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.passes.sink_slices import sliced


def align_parts(module: GraphModule) -> GraphModule:
    inputs = numbers_of(module.graph)
    for met in meeting(module.graph):
        of_dim = defaultdict(list)
        for each in met:
            of_dim[each.dim].append(each)
        for concatenations in of_dim.values():
            lengths = common_lengths(each.parting for each in concatenations)
            if not are_worthwhile(Parting(lengths), concatenations[0].node):
                continue
            for each in concatenations:
                if each.parting.lengths != lengths:
                    cut(each, lengths, inputs)
    eliminate_dead_code(module.graph)
    return module


def meeting(graph: Graph) -> Iterator[list[Joined]]:
    """The concatenations of static sizes whose elements the same elementwise operators read, perhaps through others."""
    group_of: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.target is CONCATENATION and REFUSAL not in node.meta:
            group_of[node] = [node]
        elif is_computed(node, POINTWISE):
            operands = [each for each in node.all_input_nodes if each in group_of and have_same_shape(each, node)]
            groups = {id(group_of[each]): group_of[each] for each in operands}
            merged = [node, *itertools.chain(*groups.values())]
            group_of |= dict.fromkeys(merged, merged)
    for group in {id(group): group for group in group_of.values()}.values():
        found = [joined(node) for node in group if node.target is CONCATENATION]
        known = [each for each in found if each is not None and all(isinstance(s, int) for s in shape_of(each.node))]
        if len({(each.dim, each.parting) for each in known}) > 1:
            yield known


def common_lengths(partings: Iterable[Parting]) -> tuple[int, ...]:
    """The parts between all the places where one of them divides the dimension."""
    ends = {end for each in partings for end in itertools.accumulate(each.lengths)}
    return tuple(stop - start for start, stop in itertools.pairwise(sorted({0, *ends})))


def cut(found: Joined, lengths: Iterable[int], inputs: Sizes) -> None:
    """Replaces a concatenation by that of parts of these lengths."""
    node, dim = found.node, found.dim
    starts = [0, *itertools.accumulate(found.parting.lengths)]
    recorder = Recorder(node, inputs)

    def part(record: Recorder, start: int, stop: int) -> Tensor:
        number = next(k for k, (_, end) in enumerate(itertools.pairwise(starts)) if stop <= end)
        source, first = found.parts[number], starts[number]
        value = record.value(source)
        if stop - start == found.parting.lengths[number]:
            return value
        if (constant := constant_of(source)) is not None:
            sizes = [*value.shape[:dim], stop - start, *value.shape[dim + 1 :]]
            return torch.full(sizes, constant, dtype=value.dtype, device=value.device)
        return sliced(record, source, dim, range(start - first, stop - first))

    try:
        with recorder as record:
            ends = [0, *itertools.accumulate(lengths)]
            parts = [part(record, start, stop) for start, stop in itertools.pairwise(ends)]
            result = record.node(torch.cat(parts, dim))
        if not is_alike(result, node.meta["val"]):
            raise NotRecorded("another layout")
    except NotRecorded as reason:
        recorder.erase()
        refuse(node, f"its parts read {reason}")
    else:
        node.replace_all_uses_with(result)
