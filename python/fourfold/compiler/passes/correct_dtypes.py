"""Corrects traced dtypes of batch and group norms of low precision with parameters of float32.

torch traces the saved mean and deviation in x's dtype, new running statistics in float32, and the gradient of a group
norm's input in float32. Its kernels return float32 for the first, and the dtypes of the running statistics and of x."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.ir.dtypes import statistics_dtype
from fourfold.compiler.lowering.call import named

aten = torch.ops.aten
ALIASES = (aten.alias.default, aten.detach.default)
Given = Mapping[str, Tensor]  # a call's tensors by name
Dtypes = dict[int, torch.dtype]  # those of results, by index


def saved(given: Given) -> Dtypes:
    dtype = statistics_dtype(given["input"], *(given.get(name) for name in ("weight", "bias", "running_mean")))
    return {1: dtype, 2: dtype}


def with_running(*places: int) -> Callable[[Given], Dtypes]:
    return lambda given: saved(given) | dict.fromkeys(places, given["running_mean"].dtype)


CORRECT: dict[object, Callable[[Given], Dtypes]] = {
    aten._native_batch_norm_legit.no_stats: saved,
    aten._native_batch_norm_legit_no_training.default: saved,
    aten._native_batch_norm_legit_functional.default: with_running(3, 4),
    aten._batch_norm_with_update_functional.default: with_running(4, 5),
    aten.native_group_norm.default: saved,
    aten.native_group_norm_backward.default: lambda given: {0: given["input"].dtype},
}


def correct_dtypes(module: GraphModule) -> GraphModule:
    for target, dtypes in CORRECT.items():
        for node in module.graph.find_nodes(op="call_function", target=target):
            given = named(target, node.args, node.kwargs)
            correct(node, dtypes({name: value.meta["val"] for name, value in given.items() if isinstance(value, Node)}))
    return module


def correct(node: Node, dtypes: Dtypes) -> None:
    results = [
        value.to(dtypes[k]) if k in dtypes and value is not None else value for k, value in enumerate(node.meta["val"])
    ]
    node.meta["val"] = tuple(results)
    for user in node.users:
        if user.target is operator.getitem and user.args[1] in dtypes:
            propagate(user, results[user.args[1]])


def propagate(node: Node, value: object) -> None:
    """Sets the value of a node and of its aliases, which are saved for the backward."""
    node.meta["val"] = value
    for user in node.users:
        if user.target in ALIASES:
            propagate(user, value)
