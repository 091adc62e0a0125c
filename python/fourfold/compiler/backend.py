"""From a captured graph to what runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import GraphModule

from fourfold.compiler import runtime
from fourfold.compiler.generate import Compiled, compile_graph
from fourfold.compiler.lowering import decompositions
from fourfold.compiler.options import Options
from fourfold.compiler.recompute import partition
from fourfold.compiler.record import Captured, Half, Record

Function = Callable[..., object]


def backend(
    module: GraphModule,
    inputs: Sequence[object],
    *,
    options: Mapping[str, object] | None = None,
    record: Record | None = None,
) -> Function:
    """What torch.compile calls with a graph that it has captured.

    options: those of ``fourfold.compiler.options``. Raises ValueError or TypeError for others. record: takes what is
    made at each stage."""
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
        self.metadata: object = None  # AOTAutograd's, of inputs and outputs
        self.backward_graph: GraphModule | None = None

    def run(self, inputs: Sequence[object]) -> Function:
        from torch._dynamo.utils import counters
        from torch._functorch.aot_autograd import aot_module_simplified

        counters["aot_autograd"]["total"] += 1
        try:
            with self.captured.timed("differentiate"):
                torchs = aot_module_simplified(
                    self.captured.graph,
                    inputs,
                    fw_compiler=self.forward,
                    bw_compiler=self.backward,
                    inference_compiler=self.forward,
                    partition_fn=self.partition,
                    decompositions=decompositions(self.options.reductions),
                )
        except Exception:
            counters["aot_autograd"]["not_ok"] += 1
            raise
        counters["aot_autograd"]["ok"] += 1
        return self.thin(inputs) or torch._dynamo.disable(torchs)

    def partition(self, joint: GraphModule, given: object, **settings: object) -> tuple[GraphModule, GraphModule]:
        forward, self.backward_graph = partition(joint, given, **settings)
        return forward, self.backward_graph

    def forward(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        context = torch._guards.TracingContext.try_get()
        self.metadata = context and context.fw_metadata
        self.captured.forward = self.half(graph, "forward")
        return runtime.for_torch(self.captured.forward.compiled)

    def backward(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        return runtime.for_torch(self.compile_backward(graph))

    def compile_backward(self, graph: GraphModule) -> Compiled:
        if self.captured.backward is None:
            self.captured.backward = self.half(graph, "backward")
        return self.captured.backward.compiled

    def half(self, graph: GraphModule, stage: str) -> Half:
        with self.captured.timed(stage):
            return Half(graph, compile_graph(graph, self.options))

    def thin(self, inputs: Sequence[object]) -> Function | None:
        """Our own runtime where the graphs are simple."""
        forward, backward = self.captured.forward, self.backward_graph
        graphs = [forward.graph] if backward is None else [forward.graph, backward]
        self.captured.runtime = runtime.obstacle(self.metadata, inputs, graphs)
        if self.captured.runtime:
            return None
        if backward is None:
            return runtime.inference(forward.compiled, len(inputs))
        function = runtime.training(forward.compiled, lambda: self.compile_backward(backward), self.metadata, backward)
        if function is None:
            self.captured.runtime = "the backward takes more than the forward gives"
        return function
