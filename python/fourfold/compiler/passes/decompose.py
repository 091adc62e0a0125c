"""Decomposes an operator if its pieces fuse with a neighbour, or if their program alone is as fast as torch's kernel.
For the others torch's kernel is faster. Windows, positions of extremes and reads at indices have rules of their own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis import profitability
from fourfold.compiler.analysis.concatenations import FOR_A_FILE
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import REFUSAL, is_computed, results_of
from fourfold.compiler.analysis.views import VIEWS, has_hints, hint
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.lowering.decompositions import late
from fourfold.compiler.lowering.indexing import INDEXED
from fourfold.compiler.lowering.max_pools import INTERPRETED, MAX_POOLS, WINDOWS, computes_few
from fourfold.compiler.lowering.positions import POSITIONS
from fourfold.compiler.lowering.stencils import STENCILS
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.passes.sink_gather import RULES
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
ALWAYS = {*STENCILS, *MAX_POOLS, *POSITIONS, *INDEXED}  # by rules of their own
SEEN_THROUGH = VIEWS | {operator.getitem, aten.clone.default, aten.detach.default, aten.alias.default}
BACKWARD = "is_backward"


def decompose(module: GraphModule) -> GraphModule:
    """Decomposes each operator whose pieces would fuse with a neighbour, or are faster without one."""
    options = module.meta.get("options")
    as_nests = options is not None and FOR_A_FILE not in module.meta and service.compiles(options.generator)
    table = {target: own for target, own in late().items() if as_nests or target not in STENCILS}
    table |= INDEXED | (MAX_POOLS | POSITIONS if as_nests else INTERPRETED)
    inputs = numbers_of(module.graph)
    left = {node for node in module.graph.nodes if node.target in table and REFUSAL not in node.meta}
    for node in left:
        if node.target in MAX_POOLS and computes_few(node, as_nests):
            node.meta[WINDOWS] = True
    found = left
    while found:  # again for the neighbours of new pieces
        turn, found = sorted(found), set()
        for node in visiting(module, turn):
            is_wanted = has_known_sizes(node) and (
                node.target in ALWAYS or has_fused_neighbour(node) or profitability.is_ours(node)
            )
            pieces = replaced(node, table, inputs) if is_wanted else None
            if pieces is not None:
                left.remove(node)
                found.update(other for piece in pieces for other in neighbours(piece))
        found &= left
    return module


def has_known_sizes(node: Node) -> bool:
    """Whether no size of its operands and results depends on data."""
    around = [node, *node.all_input_nodes]
    return all(has_hints(value) for each in around for value in results_of(each) if isinstance(value, Tensor))


def has_fused_neighbour(node: Node) -> bool:
    """Whether a neighbour has as many elements and can be in a program, or indexes the result."""
    most = max(map(elements_of, [node, *node.all_input_nodes]))
    # An operator that indexes the result will index the input of the pieces instead (sink_gather).
    return any(
        other.target in RULES or is_computed(other, POINTWISE, ROWS) and elements_of(other) == most
        for other in neighbours(node)
    )


def neighbours(node: Node) -> Iterator[Node]:
    """Its operands and users, through views, in the same direction (forward or backward)."""
    side = node.meta.get("partitioner_tag") == BACKWARD
    for step in (lambda n: n.all_input_nodes, lambda n: list(n.users)):
        pending, seen = step(node), set()
        while pending:
            other = pending.pop()
            if other in seen or (other.meta.get("partitioner_tag") == BACKWARD) != side:
                continue
            seen.add(other)
            if other.target in SEEN_THROUGH:
                pending += step(other)
            else:
                yield other


def elements_of(node: Node) -> int:
    """The number of elements of its largest result."""
    most = 0
    for value in results_of(node):
        count = 1
        for size in value.shape if isinstance(value, Tensor) else (0,):
            count *= hint(size)
        most = max(most, count)
    return most


def replaced(node: Node, table: dict[object, Callable[..., object]], inputs: Sizes) -> list[Node] | None:
    """Decomposes a node; returns the pieces, or None if it stays."""

    def pieces(record: Recorder) -> object:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), record.value)
        return table[node.target](*args, **kwargs)

    # A pad of a symbolic size stays one operator: the sizes of its parts would need nodes that compute them.
    is_plain = node.target in MAX_POOLS and node.args[0].meta["val"]._has_symbolic_sizes_strides
    return rewritten(node, pieces, inputs, {} if is_plain else table, "its pieces read")
