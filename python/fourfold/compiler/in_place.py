"""Which results of programs are written into existing memory: into inputs that the graph updates, and into values that
nothing reads after the program.

AOTAutograd removes mutation from a graph and copies each new value into its input at the end of the graph. If nothing
reads the old value after the program that computes the new one, the program writes it into the input. Whether the
program may do so while it reads the input itself is decided for each call, with the call's memory: by cpp/bindings/
outputs.h."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from fourfold.compiler.fused import Fused
from fourfold.compiler.support import has_effect, is_tensor
from fourfold.compiler.views import VIEWS

COPY = torch.ops.aten.copy_.default


def updates(graph: Graph) -> dict[Node, Node]:
    """The copies that are not needed, each with the node of the result that its program writes into the input."""
    position = {node: k for k, node in enumerate(graph.nodes)}
    found: dict[Node, Node] = {}
    for copy in graph.find_nodes(op="call_function", target=COPY):
        if can_be_left_out(copy, position) and copy.args[1] not in found.values():
            found[copy] = copy.args[1]
    return found


def can_be_left_out(copy: Node, position: dict[Node, int]) -> bool:
    updated, result = copy.args[:2]
    if updated.op != "placeholder" or not is_result(result):
        return False
    if updated.meta["val"].dtype != result.meta["val"].dtype:
        return False
    program = program_of(result)
    reads_before = all(position[user] <= position[program] for user in readers(updated) if user is not copy)
    return reads_before and not any(user.op == "output" or has_effect(user) for user in readers(result) if user is not copy)


def is_result(node: object) -> bool:
    """Whether it is a result of a program."""
    if not isinstance(node, Node) or not is_tensor(node.meta.get("val")):
        return False
    return isinstance(node.target, Fused) or node.target is operator.getitem and isinstance(node.args[0].target, Fused)


def program_of(result: Node) -> Node:
    """The fused node of a result."""
    return result if isinstance(result.target, Fused) else result.args[0]


def readers(node: Node) -> list[Node]:
    """The nodes that read a tensor's memory, also through views."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in found:
                found[user] = None
                if not is_result(user) and not is_new(user):
                    stack.append(user)
    return list(found)


def is_new(node: Node) -> bool:
    """Whether the memory of an operator's results belongs to nothing else."""
    target = node.target
    if node.op == "output" or isinstance(target, Fused):
        return True
    if not isinstance(target, torch._ops.OpOverload) or target in VIEWS:
        return not is_tensor(node.meta.get("val")) and not isinstance(node.meta.get("val"), (tuple, list))
    is_composite = target._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )
    return not is_composite and all(result.alias_info is None for result in target._schema.returns)
