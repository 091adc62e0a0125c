"""Small graphs of torch's operators, for the tests of the compiler's passes."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fourfold.compiler.lowering.codegen import write_program
from fourfold.compiler.nodes.fused import Fused, fused_nodes
from fourfold.compiler.pipeline.calling import Program


def traced(function: Callable, *arguments: Tensor, dynamic: bool = False) -> GraphModule:
    """Traced in the form in which AOTAutograd passes graphs to the passes."""
    module = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*arguments)
    output = module.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    return module


def operators(module: GraphModule) -> list[str]:
    """The names of the operators in order; for a fused group the names of its operators."""
    return [name(node.target) for node in module.graph.nodes if node.op == "call_function"]


def name(target: object) -> str:
    if isinstance(target, Fused):
        return f"[{' '.join(name(node.target) for node in target.members)}]"
    return target.__name__.split(".")[0] if hasattr(target, "__name__") else str(target)


def refusals(module: GraphModule) -> dict[str, str]:
    return {name(node.target): node.meta["refusal"] for node in module.graph.nodes if "refusal" in node.meta}


def fails(*given: object) -> None:
    raise ValueError("this program is not to be run")


def program_of(fused: Fused) -> Callable[..., object]:
    return Program(write_program(fused), fused.profiled_name)


def assert_alike(module: GraphModule, function: Callable, *arguments: Tensor) -> None:
    """The graph must still compute the function, with fused groups run as programs and as operators."""
    expected = function(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for call_of, is_strict in ((program_of, "1"), (lambda fused: fails, "0")):
        for node in fused_nodes(module.graph):
            node.target.call = call_of(node.target)
        module.recompile()
        with mock.patch.dict(os.environ, FOURFOLD_STRICT=is_strict):
            results = module(*arguments)
        for mine, theirs in zip(results, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
