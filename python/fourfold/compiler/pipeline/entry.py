"""The entry point: compiles a captured graph to a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule

from fourfold.compiler import passes
from fourfold.compiler.nest.jit import cache
from fourfold.compiler.nodes.control_flow import RUN
from fourfold.compiler.options import Options, generator_of_environment, refuse_others, rounding_of_environment
from fourfold.compiler.pipeline import capture, fallback
from fourfold.compiler.pipeline.compilation import Compilation, Function
from fourfold.compiler.pipeline.record import CapturedGraph, Record


def backend(
    module: GraphModule,
    inputs: Sequence[object],
    *,
    options: Mapping[str, object] | None = None,
    record: Record | None = None,
    **others: object,
) -> Function:
    """torch.compile calls this with each graph that it captures.

    options: those of ``fourfold.compiler.options``. Raises ValueError or TypeError for others, and for torch.compile's
    mode. record: receives the result of each stage."""
    from torch._dynamo.utils import flatten_graph_inputs

    refuse_others(others)
    expect_no_serialization()
    chosen = Options.of(options)
    fallback.is_strict()  # these raise for an invalid value before anything is compiled
    cache.limit()
    generator_of_environment()
    rounding_of_environment()
    module = passes.run(passes.CAPTURED, module)

    def compile(graph: GraphModule, flat: Sequence[object]) -> Function:
        captured = CapturedGraph(graph)
        compilation = Compilation(captured, chosen, records=record is not None, first=passes_of_bodies(graph))
        if record is not None:
            record.captured.append(captured)
            record.complete.append(compilation.complete)
        return compilation.run(flat)

    if any(isinstance(given, (list, tuple, dict)) for given in inputs):  # compiled autograd passes a list
        return flatten_graph_inputs(module, inputs, compile)
    if any(node.target is torch.ops.higher_order.scan for node in module.graph.nodes):
        from fourfold.scanning.in_graphs import can_be_cut, cut  # imported only if it is needed

        function = cut(module, compile, chosen) if can_be_cut(module.graph) else None
        if function is not None:
            return function
    return compile(module, inputs)


def passes_of_bodies(module: GraphModule) -> Sequence[passes.Pass]:
    """What compiles the bodies of control flow operators, imported only if the graph has one."""
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    if not any(node.target in RUN for graph in graphs for node in graph.nodes if node.op == "call_function"):
        return ()
    from fourfold.scanning.control_flow import control_flow

    return (control_flow,)


def expect_no_serialization() -> None:
    """Raises RuntimeError if torch compiles in order to write the result to a file."""
    if getattr(torch._functorch.config, "bundled_autograd_cache", False):
        raise RuntimeError(
            "fourfold: expected no aot_compile or precompilation, which write graphs of Inductor; for a file, "
            "export the model and call fourfold.save"
        )


capture.enable(backend)
