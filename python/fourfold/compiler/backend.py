"""From a captured graph to what runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import GraphModule

from fourfold.compiler.generate import compile_graph
from fourfold.compiler.options import Options
from fourfold.compiler.record import Captured, Half, Record
from fourfold.compiler.recompute import partition

Function = Callable[..., object]


def backend(
    module: GraphModule,
    inputs: Sequence[object],
    *,
    options: Mapping[str, object] | None = None,
    record: Record | None = None,
) -> Function:
    """What torch.compile calls with a graph that it has captured.

    options: ``min_elements``, ``reductions``, ``trace`` (``fourfold.compiler.options``). Raises ValueError or TypeError for
    others. record: takes what is made at each stage."""
    from torch._dynamo.utils import flatten_graph_inputs

    chosen = Options.of(options)
    if any(isinstance(given, (list, tuple, dict)) for given in inputs):
        return flatten_graph_inputs(
            module, inputs, lambda graph, flat: backend(graph, flat, options=options, record=record)
        )
    captured = Captured(module)
    if record is not None:
        record.captured.append(captured)
    return Compilation(captured, chosen).run(inputs)


class Compilation:
    """Of one captured graph."""

    def __init__(self, captured: Captured, options: Options):
        self.captured = captured
        self.options = options

    def run(self, inputs: Sequence[object]) -> Function:
        from torch._dynamo.utils import counters
        from torch._functorch.aot_autograd import aot_module_simplified

        counters["aot_autograd"]["total"] += 1
        try:
            with self.captured.timed("differentiate"):
                compiled = aot_module_simplified(
                    self.captured.graph,
                    inputs,
                    fw_compiler=self.forward,
                    bw_compiler=self.backward,
                    inference_compiler=self.forward,
                    partition_fn=partition,
                )
        except Exception:
            counters["aot_autograd"]["not_ok"] += 1
            raise
        counters["aot_autograd"]["ok"] += 1
        self.captured.runtime = self.captured.runtime or "torch"
        return torch._dynamo.disable(compiled)

    def forward(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        self.captured.forward = self.half(graph, "forward")
        return self.captured.forward.compiled.run

    def backward(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        self.captured.backward = self.half(graph, "backward")
        return torch._dynamo.disable(self.captured.backward.compiled.run)

    def half(self, graph: GraphModule, stage: str) -> Half:
        with self.captured.timed(stage):
            return Half(graph, compile_graph(graph, self.options))
