"""The compilation of one captured graph: AOTAutograd differentiates it, and each half is compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule

from fourfold.compiler import passes
from fourfold.compiler.analysis import in_place
from fourfold.compiler.lowering import decompositions
from fourfold.compiler.lowering.rounding_decompositions import rounding_as_eager
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline import fallback, runtime
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.compiler.pipeline.record import CapturedGraph, Half
from fourfold.compiler.pipeline.tracing import counting_loops, kept_whole

Function = Callable[..., object]


def boxed(function: Function) -> Function:
    """The function with torch's boxed calling convention: it takes a list of all inputs and empties it."""

    def call(given: list[object]) -> object:
        inputs = tuple(given)
        given.clear()
        return function(*inputs)

    return call


class Compilation:
    """The compilation of one captured graph. first: passes before those that every graph goes through."""

    def __init__(
        self, captured: CapturedGraph, options: Options, records: bool = False, first: Sequence[passes.Pass] = ()
    ):
        self.captured = captured
        self.options = options
        self.records = records
        self.first = first
        self.metadata: object = None  # AOTAutograd's, about inputs and outputs
        self.backward_graph: GraphModule | None = None
        self.lock = threading.RLock()  # several threads may reach the first backward

    def run(self, inputs: Sequence[object]) -> Function:
        from torch._dynamo.utils import GmWrapper, counters
        from torch._functorch.aot_autograd import aot_module_simplified

        counters["aot_autograd"]["total"] += 1
        try:
            graph = self.captured.graph
            with self.captured.timed("differentiate"), kept_whole(graph, inputs), counting_loops(graph, inputs):
                torchs = aot_module_simplified(
                    graph,
                    inputs,
                    fw_compiler=self.forward,
                    bw_compiler=torch._dynamo.disable(self.backward),
                    inference_compiler=self.inference,
                    partition_fn=self.partition,
                    decompositions=rounding_as_eager() if self.options.rounds_each else decompositions(),
                    keep_inference_input_mutations=True,
                )
        except Exception:
            counters["aot_autograd"]["not_ok"] += 1
            raise
        counters["aot_autograd"]["ok"] += 1
        direct = self.direct(inputs)
        if direct is not None and isinstance(self.captured.graph, GmWrapper):
            return boxed(direct)
        return direct or torch._dynamo.disable(torchs)

    def partition(
        self, joint: GraphModule, given: object, *, num_fwd_outputs: int, **settings: object
    ) -> tuple[GraphModule, GraphModule]:
        """Partitions a joint graph into forward and backward, like AOTAutograd's partitioners."""
        from torch._functorch.partitioners import default_partition

        joint.meta |= {"forward outputs": num_fwd_outputs, "options": self.options}
        joint = passes.run(passes.JOINT, joint)
        joint.recompile()
        forward, self.backward_graph = default_partition(joint, given, num_fwd_outputs=num_fwd_outputs, **settings)
        return forward, self.backward_graph

    def forward(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        context = torch._guards.TracingContext.try_get()
        self.metadata = context and context.fw_metadata
        self.captured.copied = getattr(self.metadata, "num_mutated_inp_runtime_indices", 0)
        if self.metadata is not None and self.backward_graph is None:
            graph.meta[in_place.RETURNED] = in_place.returned_inputs(self.metadata)
        self.captured.forward = self.half(graph, "forward")
        return runtime.for_torch(self.captured.forward.compiled)

    def inference(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        graph.meta["options"] = self.options
        return self.forward(passes.run(passes.INFERENCE, graph), fakes)

    def backward(self, graph: GraphModule, fakes: Sequence[object]) -> Function:
        return runtime.for_torch(self.compile_backward(graph))

    def compile_backward(self, graph: GraphModule) -> Compiled:
        with self.lock:
            if self.captured.backward is None:
                self.captured.backward = self.half(graph, "backward")
        return self.captured.backward.compiled

    def complete(self) -> None:
        """Compiles the backward now instead of at its first call."""
        if self.backward_graph is not None:
            self.compile_backward(self.backward_graph)

    def half(self, graph: GraphModule, stage: str) -> Half:
        """Compiles a graph. If it is recorded, keeps a copy of torch's graph beside the compiled one."""
        given = GraphModule(graph, fallback.copied(graph.graph)) if self.records else graph
        with self.captured.timed(stage):
            return Half(given, Compiled.of(graph, self.options, self.first))

    def direct(self, inputs: Sequence[object]) -> Function | None:
        """The call through our own runtime, or None if the graphs are not simple."""
        forward, backward = self.captured.forward, self.backward_graph
        self.captured.runtime = runtime.obstacle(self.metadata, inputs, forward.compiled, backward)
        if self.captured.runtime:
            return None
        if backward is None:
            function = runtime.inference(forward.compiled, len(inputs))
        else:
            # The first backward may run while torch traces: within another compiled function, or by compiled autograd.
            make_backward = torch._dynamo.disable(lambda: self.compile_backward(backward))
            function = runtime.training(forward.compiled, make_backward, self.metadata, backward)
        if function is None:
            self.captured.runtime = "the backward takes more than the forward gives"
        return function
