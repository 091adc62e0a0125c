"""Corrects the traced dtypes of a batch norm's statistics.

For low precision torch traces a saved mean and deviation in x's dtype, and running statistics in float32. Its kernels
return float32 for the former if a parameter is float32, and the running statistics' own dtype for the latter."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.dtypes import statistics_dtype
from fourfold.compiler.lowering.call import named

aten = torch.ops.aten
NORMS = (
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._native_batch_norm_legit.no_stats,
    aten._batch_norm_with_update_functional.default,
)


def correct_dtypes(module: GraphModule) -> GraphModule:
    for target in NORMS:
        for node in module.graph.find_nodes(op="call_function", target=target):
            correct(node)
    return module


def correct(node: Node) -> None:
    given = {
        name: value.meta["val"]
        for name, value in named(node.target, node.args, node.kwargs).items()
        if isinstance(value, Node)
    }
    running = given.get("running_mean")
    saved = statistics_dtype(given["input"], given.get("weight"), given.get("bias"), running)
    results = list(node.meta["val"])
    dtypes = {1: saved, 2: saved}
    if running is not None and len(results) > 3:
        dtypes |= dict.fromkeys((len(results) - 2, len(results) - 1), running.dtype)
    for k, dtype in dtypes.items():
        results[k] = results[k].to(dtype)
    node.meta["val"] = type(node.meta["val"])(results)
    for user in node.users:
        if user.target is operator.getitem and user.args[1] in dtypes:
            user.meta["val"] = results[user.args[1]]
