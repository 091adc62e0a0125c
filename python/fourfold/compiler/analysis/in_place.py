"""Finds the results of programs that are written into inputs that the graph updates.

AOTAutograd removes mutation from a graph and copies each new value into its input at the end of the graph. If nothing
reads the old value after the program that computes the new one, the program writes it into the input. If the program
also reads the input itself, cpp/bindings/outputs.h decides at each call, from the tensors' memory, whether it may write
in place."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.support import has_effect, is_tensor
from fourfold.compiler.analysis.views import VIEWS
from fourfold.compiler.nodes.fused import Fused

COPY = torch.ops.aten.copy_.default


RETURNED = "returned inputs"  # in a graph's meta: see returned_inputs


def returned_inputs(metadata: object) -> dict[int, int | None]:
    """The graph's results that are inputs or views of inputs: torch returns the inputs, or makes the views, and ignores
    the values of these results. Maps each result to the input's index, or to None for a view. metadata:
    AOTAutograd's."""
    from torch._functorch._aot_autograd.schemas import OutputType

    first = metadata.num_mutated_inp_runtime_indices
    return {
        first + k: info.base_idx if info.output_type == OutputType.is_input else None
        for k, info in enumerate(metadata.output_info)
        if info.output_type in (OutputType.is_input, OutputType.alias_of_input)
    }


def updates(module: GraphModule) -> dict[Node, Node]:
    """The copies that are not needed, each with the node of the result that its program writes into the input."""
    position = {node: k for k, node in enumerate(module.graph.nodes)}
    results = given_away(module)
    found: dict[Node, Node] = {}
    for copy in module.graph.find_nodes(op="call_function", target=COPY):
        result = copy.args[1]
        if result not in found.values() and can_be_left_out(copy, position, results):
            found[copy] = result
    return found


def given_away(module: GraphModule) -> set[Node]:
    """The graph's results that belong to the caller or are kept for the backward."""
    return {
        result
        for k, result in enumerate(module.graph.output_node().args[0])
        if isinstance(result, Node) and k not in module.meta.get(RETURNED, ())
    }


def can_be_left_out(copy: Node, position: dict[Node, int], results: set[Node]) -> bool:
    """results: those of the graph that are given away."""
    updated, result = copy.args[:2]
    if updated.op != "placeholder" or not is_result(result):
        return False
    if updated.meta["val"].dtype != result.meta["val"].dtype:
        return False
    program = program_of(result)
    old = [user for user in readers(updated) if user is not copy and user.op != "output"]
    new = [user for user in readers(result) if user is not copy]
    views = {result, *(user for user in new if not is_result(user) and not is_new(user))}
    if any(position[user] > position[program] for user in old):
        return False
    writes = [user for user in new if has_effect(user) and not (user.target is COPY and user.args[0] not in views)]
    return views.isdisjoint(results) and not writes


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


def is_returned(user: Node) -> bool:
    """Whether the memory that it reads is returned, directly or through views."""
    return user.op == "output" or not is_new(user) and any(map(is_returned, user.users))


def is_new(node: Node) -> bool:
    """Whether an operator's results have memory of their own."""
    target = node.target
    if node.op == "output" or isinstance(target, Fused):
        return True
    if not isinstance(target, torch._ops.OpOverload) or target in VIEWS:
        return not is_tensor(node.meta.get("val")) and not isinstance(node.meta.get("val"), (tuple, list))
    is_composite = target._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )
    return not is_composite and all(result.alias_info is None for result in target._schema.returns)
