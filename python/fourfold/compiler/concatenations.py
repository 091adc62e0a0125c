"""Which results of programs are written where they belong in a concatenation, instead of being copied there.

The parts that one program computes and that are of one size are joined by the program itself (passes/epilogues.py).
For all others a graph's plan makes the memory of the concatenation first; each program writes its part of it, and what
no program computes is copied."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.in_place import is_result
from fourfold.compiler.parts import CONCATENATION, parts_of
from fourfold.compiler.support import is_tensor
from fourfold.compiler.views import shape_of
from fourfold.devices import programs


def concatenations(module: GraphModule) -> dict[Node, list[Node]]:
    """Each concatenation of which programs write parts, with these parts."""
    found = {}
    for node in module.graph.find_nodes(op="call_function", target=CONCATENATION):
        written = [part for part in parts_of(node)[0] if is_written(part, node)] if can_be_allocated(node) else []
        if written:
            found[node] = written
    return found


def can_be_allocated(node: Node) -> bool:
    """Whether its layout is known, and the sizes of its parts."""
    fake, (parts, _) = node.meta["val"], parts_of(node)
    is_plain = fake.layout is torch.strided and not programs.obstacle(fake.device.type)
    sizes = [*fake.stride(), *(size for each in (node, *parts) for size in shape_of(each))]
    return is_plain and all(isinstance(size, int) for size in sizes) and all(is_part(part, fake) for part in parts)


def is_part(part: Node, whole: torch.Tensor) -> bool:
    """Of parts of another rank or dtype, torch ignores the one if it is empty and converts the other."""
    fake = part.meta["val"]
    return is_tensor(fake) and (fake.dim(), fake.dtype) == (whole.dim(), whole.dtype)


def is_written(part: Node, node: Node) -> bool:
    """Whether a program's result is read by the concatenation alone, once."""
    return is_result(part) and list(part.users) == [node] and parts_of(node)[0].count(part) == 1


def lengths_of(node: Node) -> list[int]:
    parts, dim = parts_of(node)
    return [shape_of(part)[dim] for part in parts]
