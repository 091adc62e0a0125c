"""Which nodes of a graph a program can read or compute, and which have to keep their order."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from fourfold.compiler import alone
from fourfold.compiler.lowering import refusal
from fourfold.compiler.program import KINDS
from fourfold.compiler.views import has_hints

# What torch traces with another dtype than it gives: statistics of low precision.
MISTRACED = frozenset(
    {
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten._batch_norm_with_update_functional.default,
    }
)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def can_be_held(value: torch.Tensor) -> bool:
    is_strided = value.device.type == "cpu" and value.layout == torch.strided
    return is_strided and value.dtype in KINDS and has_hints(value)


def can_be_read(node: Node) -> bool:
    """Whether a program can take it: a tensor of a known kind in the CPU's memory, or a number."""
    value = node.meta.get("val")
    if node.target is operator.getitem and node.args[0].target in MISTRACED:
        return False
    if is_tensor(value):
        return can_be_held(value)
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


def results_of(node: Node) -> list[object]:
    """What torch traced it to give; None is a gradient that nobody asked for."""
    values = node.meta.get("val")
    return [v for v in values if v is not None] if isinstance(values, (tuple, list)) else [values]


def can_be_computed(node: Node) -> bool:
    results = results_of(node)
    if not results or not all(is_tensor(value) and can_be_held(value) for value in results):
        return False
    return all(can_be_read(operand) for operand in node.all_input_nodes) and refused(node) is None


def refused(node: Node) -> str | None:
    """Why an operator that is lowered is left to torch when it is called like this, or None."""
    return refusal(node.target, results_of(node)[0].dtype, node.args, node.kwargs) or alone.slow(node)


def keeps_its_place(node: Node) -> bool:
    """Whether it draws random numbers, writes to a tensor or has another effect: the order of two such matters."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op != "call_function" or node.is_impure() or isinstance(node.target, torch._ops.HigherOrderOperator)
    if node.target._schema.is_mutable or node.is_impure(impure_random=False):
        return True
    return torch.Tag.nondeterministic_seeded in node.target.tags and not drops_nothing(node)


def drops_nothing(node: Node) -> bool:
    """Whether it would draw random numbers only for a dropout, as attention does, and has none."""
    for k, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[k] if k < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return isinstance(given, (int, float)) and given == 0
    return False
