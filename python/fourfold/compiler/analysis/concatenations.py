"""Finds the results of programs that are written directly into a concatenation, instead of being copied there.

Parts of one size that one program computes are joined by the program itself (passes/epilogues.py). For all others the
graph's plan allocates the concatenation first; each program writes its part into it, and parts that no program computes
are copied."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.in_place import is_result
from fourfold.compiler.analysis.parts import CONCATENATION, parts_of
from fourfold.compiler.analysis.support import is_tensor
from fourfold.compiler.analysis.views import shape_of
from fourfold.devices import programs


def concatenations(module: GraphModule) -> dict[Node, list[Node]]:
    """Each concatenation into which programs write parts, with these parts."""
    found = {}
    for node in module.graph.find_nodes(op="call_function", target=CONCATENATION):
        written = [part for part in parts_of(node)[0] if is_written(part, node)] if can_be_allocated(node) else []
        if written:
            found[node] = written
    return found


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


def is_written(part: Node, node: Node) -> bool:
    """Whether the part is a program's result that only the concatenation reads, once."""
    return is_result(part) and list(part.users) == [node] and parts_of(node)[0].count(part) == 1


def lengths_of(node: Node) -> list[int]:
    parts, dim = parts_of(node)
    return [shape_of(part)[dim] for part in parts]
