"""Turns writes of slices and rows into new values, as functionalization traces them, into concatenations: torch copies
the whole tensor for each. ``out = torch.empty(3, n); out[0] = a; out[1:] = b`` is a concatenation of two parts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.in_place import COPY
from fourfold.compiler.analysis.parts import CONCATENATION
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import REFUSAL, can_be_held, constant_of, refuse
from fourfold.compiler.analysis.views import shape_of
from fourfold.compiler.lowering.call import named
from fourfold.compiler.nodes.recorder import NotRecorded, Recorder, numbers_of, rewritten
from fourfold.compiler.passes.by_parts import base_of, is_fusible
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
SLICE, SELECT = aten.slice_scatter.default, aten.select_scatter.default
SCATTERS = (SLICE, SELECT)
# They copy their second argument; the first one only has the shape and the dtype.
FILLED_FROM = (aten.copy.default, aten.fill.Tensor, aten.fill.Scalar)
Write = tuple[int, int, Node]  # the first place along the dimension, the last one + 1, and the new values


def scatters(module: GraphModule) -> GraphModule:
    inputs = numbers_of(module.graph)
    for node in visiting(module):
        if (
            node.target in FILLED_FROM
            and node.users
            and all(user.target in SCATTERS and user.args[0] is not node for user in node.users)
        ):
            spare(node, inputs)
    eliminate_dead_code(module.graph)
    nodes = [node for node in module.graph.nodes if node.target in SCATTERS and REFUSAL not in node.meta]
    for node in visiting(module, reversed(nodes)):  # the last of a chain first
        if node.users:
            concatenate(node, inputs)
    eliminate_dead_code(module.graph)
    return module


def spare(copy: Node, inputs: Sizes) -> None:
    """Removes a copy into the old values of a slice, of which it only has the shape and the dtype."""
    recorder, like, given = Recorder(copy, inputs), copy.meta["val"], copy.args[1]
    try:
        with recorder as record:
            if isinstance(given, Node):
                value = record.value(given).to(like.dtype)
                result = record.node(value if value.shape == like.shape else value.expand(like.shape))
            else:
                result = record.node(torch.full(like.shape, given, dtype=like.dtype, device=like.device))
    except NotRecorded as reason:
        recorder.erase()
        refuse(copy, f"it reads {reason}")
    else:
        copy.replace_all_uses_with(result)


def concatenate(node: Node, inputs: Sizes) -> None:
    dim, writes, base = chain_of(node)
    is_plain = can_be_held(node.meta["val"]) and base.meta["val"].is_contiguous()
    if not writes or not is_plain or not is_worthwhile(node, [value for *_, value in writes]):
        return
    if is_overwritten(base) and not cover(writes, shape_of(node)[dim]):
        return  # analysis/overwritten.py: writes in place leave the rest of an input where it is

    def rewrite(record: Recorder) -> Tensor:
        """Later writes are on top of earlier ones."""
        bounds = sorted({0, shape_of(node)[dim], *(bound for start, stop, _ in writes for bound in (start, stop))})
        parts: list[tuple[Node, int, int, int]] = []  # a tensor, where it begins, and its places that remain
        for start, stop in zip(bounds, bounds[1:], strict=False):
            first, _, source = next((w for w in reversed(writes) if w[0] <= start < w[1]), (0, 0, base))
            if parts and parts[-1][:2] == (source, first) and parts[-1][3] == start:
                parts[-1] = (source, first, parts[-1][2], stop)
            else:
                parts.append((source, first, start, stop))
        values = []
        for source, first, start, stop in parts:
            value, number = record.value(source), constant_of(source)
            if number is not None:
                sizes = [*shape_of(node)[:dim], stop - start, *shape_of(node)[dim + 1 :]]
                values.append(torch.full(sizes, number, dtype=value.dtype, device=value.device))
                continue
            value = value.unsqueeze(dim) if value.dim() < len(shape_of(node)) else value
            is_whole = (start, stop) == (first, first + value.shape[dim])
            values.append(value if is_whole else value.narrow(dim, start - first, stop - start))
        return torch.cat(values, dim) if len(values) > 1 else values[0].clone(memory_format=torch.contiguous_format)

    rewritten(node, rewrite, inputs, reader="the concatenation reads")


def is_overwritten(node: Node) -> bool:
    """Whether it is an input that the graph changes."""
    return node.op == "placeholder" and any(user.target is COPY and user.args[0] is node for user in node.users)


def cover(writes: list[Write], size: int) -> bool:
    """Whether they leave no place as it was."""
    end = 0
    for start, stop, _ in sorted(writes, key=lambda write: write[0]):
        end = max(end, stop) if start <= end else end
    return end >= size


def chain_of(node: Node) -> tuple[int, list[Write], Node]:
    """The dimension, and the writes along it of this scatter and of those before it that nothing else reads, the first
    one first; and the tensor below them."""
    dim, writes, user = None, [], None
    while node.target in SCATTERS and (user is None or list(node.users) == [user]):
        found = write_of(node)
        if found is None or dim not in (None, found[0]):
            break
        dim, write = found
        writes.insert(0, write)
        node, user = node.args[0], node
    return dim or 0, writes, node


def write_of(node: Node) -> tuple[int, Write] | None:
    """The dimension and the write of one scatter; None if its places are not known, or have others between them."""
    given, shape = named(node.target, node.args, node.kwargs), shape_of(node)
    dim = given["dim"] % len(shape)
    size, value = shape[dim], given["src"]
    if value.meta["val"].dtype != node.meta["val"].dtype or not isinstance(size, int):
        return None
    if node.target is SELECT:
        index = given["index"]
        return (dim, (index % size, index % size + 1, value)) if isinstance(index, int) else None
    ends = given["start"], given["end"], given["step"]
    if not all(each is None or isinstance(each, int) for each in ends):
        return None
    places = range(*slice(*ends).indices(size))
    return (dim, (places.start, places.stop, value)) if places and places.step == 1 else None


def is_worthwhile(node: Node, values: list[Node]) -> bool:
    """Whether a program computes a part, or reads the whole."""
    around = [base_of(each) for each in (*values, *node.users)]
    return any(each.target is CONCATENATION or is_fusible(each) for each in around)
