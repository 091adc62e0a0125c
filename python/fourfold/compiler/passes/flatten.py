"""Flattens concatenations of concatenations."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.parts import CONCATENATION, STACK, Joined, joined, parts_of
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import REFUSAL
from fourfold.compiler.analysis.views import PERMUTATIONS, permutation, shape_of
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

MOST = 4  # parts: joins of many short ones cost more than a copy


def flatten(module: GraphModule) -> GraphModule:
    inputs = numbers_of(module.graph)
    for node in visiting(module):
        if node.target is CONCATENATION and REFUSAL not in node.meta:
            flatten_one(node, inputs)
    eliminate_dead_code(module.graph)
    return module


def flatten_one(node: Node, inputs: Sizes) -> None:
    """Replaces a concatenation of equal parts and of other tensors by one of such parts alone, if they are few.
    Programs join equal parts only; an embedding that rotates half of each head concatenates two quarters and a half."""
    parts, dim = parts_of(node)
    if any(len(shape_of(part)) != len(shape_of(node)) for part in parts):  # a part of shape (0,)
        return
    inner = {part: found for part in parts if (found := joined_within(part, dim)) is not None}
    lengths = {found.parting.length for found, _ in inner.values()}
    sizes = [shape_of(part)[dim] for part in parts]
    length = next(iter(lengths), 0)
    if len(lengths) != 1 or not all(isinstance(size, int) and length and size % length == 0 for size in sizes):
        return
    if sum(sizes) // length > MOST:
        return

    def rewrite(record: Recorder) -> Tensor:
        flat = []
        for part, size in zip(parts, sizes, strict=True):
            if part in inner:
                found, orders = inner[part]
                own = map(record.value, found.parts)
                if found.node.target is STACK:
                    own = [each.unsqueeze(found.dim) for each in own]
                flat += [functools.reduce(Tensor.permute, orders, each) for each in own]
            else:
                flat += record.value(part).split(length, dim) if size > length else [record.value(part)]
        return torch.cat(flat, dim)

    rewritten(node, rewrite, inputs)


def joined_within(node: Node, dim: int) -> tuple[Joined, list[list[int]]] | None:
    """The concatenation along this dimension that a part is, possibly permuted, and the permutations; None if anything
    else reads it."""
    orders: list[list[int]] = []
    while node.target in PERMUTATIONS and len(node.users) == 1:
        orders.insert(0, permutation(node))
        dim = permutation(node)[dim]
        node = node.args[0]
    found = joined(node) if len(node.users) == 1 else None
    return (found, orders) if found and found.dim == dim and not found.parting.is_interleaved else None
