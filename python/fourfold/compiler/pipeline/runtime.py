"""Selects the runtime of a compiled function's two graphs: one autograd node in C++ if they are simple, otherwise
AOTAutograd's wrappers, which handle mutation, aliasing and subclasses, and cost more than small graphs take to run."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import torch
from torch.fx import GraphModule, Node

from fourfold import _native
from fourfold.compiler.analysis.support import has_lasting_effect
from fourfold.compiler.pipeline.compiled import Compiled


def obstacle(metadata: object, inputs: Sequence[object], forward: Compiled, backward: GraphModule | None) -> str:
    """Why torch's runtime has to run them; empty if ours can. metadata: AOTAutograd's, for the captured function."""
    if not is_native():
        return f"fourfold has no C++ module for this torch: {_native.path}"
    if metadata is None:
        return "torch provides no information about the graph's inputs and outputs"
    graphs = [forward.module] if backward is None else [forward.module, backward]
    return (
        of_inputs(metadata, inputs, has_gradient=backward is not None)
        or of_outputs(metadata, has_gradient=backward is not None)
        or of_effects(metadata, graphs, forward.updates)
    )


def of_inputs(metadata: object, inputs: Sequence[object], has_gradient: bool) -> str:
    from torch._functorch._aot_autograd.schemas import MutationType, SubclassCreationMeta

    allowed = {MutationType.NOT_MUTATED} if has_gradient else {MutationType.NOT_MUTATED, MutationType.MUTATED_IN_GRAPH}
    if any(info.mutation_type not in allowed for info in metadata.input_info):
        return "an input is changed in place"
    if any(isinstance(meta, SubclassCreationMeta) for meta in metadata.subclass_inp_meta):
        return "an input is of a subclass of Tensor"
    if not all(isinstance(given, (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)) for given in inputs):
        return "an input is neither a tensor nor a number"
    if len(inputs) != len(metadata.input_info):
        return "the graph has additional inputs"
    return ""


def of_outputs(metadata: object, has_gradient: bool) -> str:
    from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta

    if any(not issubclass(info.raw_type, torch.Tensor) for info in metadata.output_info):
        return "an output is not a tensor"
    allowed = {OutputType.non_alias, OutputType.unsafe_view_alias} | (set() if has_gradient else {OutputType.is_input})
    if any(info.output_type not in allowed for info in metadata.output_info):
        return "an output is an input, or a view of an input or of a parameter"
    if metadata.num_intermediate_bases:
        return "two outputs are views of one tensor"
    if any(isinstance(meta, SubclassCreationMeta) for meta in metadata.subclass_fw_graph_out_meta):
        return "an output is of a subclass of Tensor"
    return ""


def of_effects(metadata: object, graphs: Sequence[GraphModule], updates: Container[Node]) -> str:
    """updates: copies that programs make unnecessary."""
    random = ("num_graphsafe_rng_states", "is_rng_op_functionalized")
    effects = ("tokens", "num_backward_tokens", "act_input_indices", *random)
    if any(getattr(metadata, name, None) for name in effects) or metadata.grad_enabled_mutation is not None:
        return "it has effects besides its results"
    if metadata.deterministic:
        return "deterministic algorithms are enabled"
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "hooks see the saved tensors"
    for graph in graphs:
        for node in graph.graph.nodes:
            if has_lasting_effect(node) and node not in updates:
                return f"{node.target} has an effect besides its results"
    return ""


def is_native() -> bool:
    """Whether graphs are called from C++, by the module compiled for this torch."""
    return _native.module is not None


def graph_of(compiled: Compiled) -> object:
    """The graph as C++ calls it: by its plan, or the Python function."""
    if compiled.native is None:
        plan = compiled.plan
        given = (None, None) if plan is None else (plan.steps, plan.outputs)
        compiled.native = _native.module.Graph(compiled.run, *given, compiled.layouts)
    return compiled.native


def graph_of_function(function: Callable[[list[object]], Sequence[object]]) -> object:
    """A graph that calls a Python function of the list of its inputs."""
    return _native.module.Graph(function, None, None, [])


def for_torch(compiled: Compiled) -> Callable[[list[object]], object]:
    """The callable for AOTAutograd's wrappers: the graph's plan, or the Python function."""
    if not is_native() or compiled.plan is None:
        return torch._dynamo.disable(compiled.run)
    return graph_of(compiled)


def inference(forward: Compiled, inputs: int) -> Callable[..., object]:
    return _native.module.Compiled(graph_of(forward), None, [], [False] * inputs)


def training(
    forward: Compiled, make_backward: Callable[[], Compiled], metadata: object, backward: GraphModule
) -> Callable[..., object] | None:
    """The function with its gradient; None if the backward takes values that the metadata does not describe."""
    differentiable = [info.requires_grad for info in metadata.output_info]
    wanted = [isinstance(node, Node) for node in backward.graph.output_node().args[0]]
    taken = len(backward.graph.find_nodes(op="placeholder"))
    if taken != forward.outputs - len(differentiable) + sum(differentiable) or len(wanted) != len(metadata.input_info):
        return None
    return _native.module.Compiled(graph_of(forward), lambda: graph_of(make_backward()), differentiable, wanted)


def twice_differentiable(
    forward: Compiled,
    make_backward: Callable[[], Compiled],
    differentiable: Sequence[bool],
    wanted: Sequence[bool],
    again: Callable[[Sequence[object], Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]] | None,
) -> Callable[..., object]:
    """A function with a gradient. differentiable: of each result; wanted: of each input, whether the backward gives its
    gradient. again: called with the inputs and the results' gradients under create_graph=True, for the inputs'; None if
    these can't be differentiated."""

    def backward() -> object:
        return graph_of(make_backward())

    return _native.module.Compiled(graph_of(forward), backward, differentiable, wanted, again)
