"""Finds the results of programs that are written directly into a concatenation, instead of being copied there.

Parts of one size that one program computes are joined by the program itself (passes/epilogues.py). For all others the
graph's plan allocates the concatenation first; each program writes its part into it, and parts that no program computes
are copied; constants fill theirs."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.in_place import is_result
from fourfold.compiler.analysis.parts import CONCATENATION, parts_of
from fourfold.compiler.analysis.support import IN_LOOP, constant_of, is_tensor
from fourfold.compiler.analysis.views import RESHAPES, is_one, same, shape_of
from fourfold.devices import programs

# In a graph's meta, if it is for a model file. Programs write whole parts only there, and others are copied: the reader
# checks that all memory is written before it is read.
FOR_A_FILE = "for a file"


def concatenations(module: GraphModule) -> dict[Node, list[Node]]:
    """Each concatenation into which programs write parts, with these parts. One of them may be such a concatenation
    too, as if several dimensions are padded."""
    found: dict[Node, list[Node]] = {}
    is_plain = writes_whole_parts(module)
    for node in module.graph.find_nodes(op="call_function", target=CONCATENATION):
        parts, dim = parts_of(node)
        own = [part for part in parts if is_read_by(part, node)] if can_be_allocated(node) else []
        sources = own if is_plain else [source_of(part, dim) for part in own]
        written = [source for source in sources if is_result(source) or source in found and not is_plain]
        if written:
            found[node] = written
    return found


def writes_whole_parts(module: GraphModule) -> bool:
    """Whether no concatenation is within another and no row within a part, as in files and in the steps of loops."""
    return module.meta.get(FOR_A_FILE, False) or module.meta.get(IN_LOOP, False)


def source_of(part: Node, dim: int) -> Node:
    """What a program writes for a part: the part, or its only row along the dimension."""
    if part.op != "call_function" or part.target not in RESHAPES or not is_one(shape_of(part)[dim]):
        return part
    row, shape = part.args[0], [*shape_of(part)]
    is_row = len(shape_of(row)) == len(shape) - 1 and all(map(same, shape_of(row), [*shape[:dim], *shape[dim + 1 :]]))
    return row if is_row and is_result(row) and list(row.users) == [part] else part


def filled(module: GraphModule, found: dict[Node, list[Node]]) -> set[Node]:
    """The constants that are nothing but parts of these concatenations."""
    if writes_whole_parts(module):
        return set()
    parts = {part for node in found for part in parts_of(node)[0] if constant_of(part) is not None}
    return {part for part in parts if all(user in found for user in part.users)}


def can_be_allocated(node: Node) -> bool:
    """Whether its layout and the sizes of its parts are static, and its device runs programs."""
    fake, (parts, _) = node.meta["val"], parts_of(node)
    is_plain = fake.layout is torch.strided and not programs.obstacle(fake.device.type)
    sizes = [*fake.stride(), *(size for each in (node, *parts) for size in shape_of(each))]
    return is_plain and all(isinstance(size, int) for size in sizes) and all(is_part(part, fake) for part in parts)


def is_part(part: Node, whole: torch.Tensor) -> bool:
    """Whether a part has the rank and dtype of the whole. torch ignores empty parts of another rank, and converts parts
    of another dtype."""
    fake = part.meta["val"]
    return is_tensor(fake) and (fake.dim(), fake.dtype) == (whole.dim(), whole.dtype)


def is_read_by(part: Node, node: Node) -> bool:
    """Whether only this concatenation reads the part, once."""
    return list(part.users) == [node] and parts_of(node)[0].count(part) == 1


def lengths_of(node: Node) -> list[int]:
    parts, dim = parts_of(node)
    return [shape_of(part)[dim] for part in parts]
