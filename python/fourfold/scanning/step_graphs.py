"""A captured step's forward and backward, as graphs of one step whose inputs and results have roles."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler import passes
from fourfold.compiler.analysis.in_place import is_new, is_returned
from fourfold.compiler.analysis.support import is_tensor
from fourfold.compiler.options import Options
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.passes.rematerialize import forward_nodes
from fourfold.compiler.pipeline.compilation import Compilation
from fourfold.compiler.pipeline.record import CapturedGraph
from fourfold.scanning.capture import CapturedStep
from fourfold.scanning.fission import Kind
from fourfold.scanning.products import factor

aten = torch.ops.aten
EFFECT = torch.ops.higher_order.with_effects
OF_ADDRESSES = (aten.as_strided.default, aten.as_strided_scatter.default)
KINDS = {"carry": Kind.CARRIED, "x": Kind.SERIES, "closure": Kind.INVARIANT}


class Refused(Exception):
    """The step can't run as one loop; the message gives the reason."""


@dataclass
class StepGraph:
    """A graph of one step. inputs: in the order of calls; kinds: theirs. reads: for each state, the input that holds
    it, or None if the step doesn't read it. states: the nodes of the new states, None for zeros. series: results of
    each step. totals: results summed over the steps. kept: values that the backward reads; None without one."""

    graph: Graph
    inputs: list[Node]
    kinds: dict[Node, Kind]
    reads: list[Node | None]
    states: list[Node | None]
    series: list[Node | None]
    totals: list[Node | None] = field(default_factory=list)
    kept: list[Node] | None = None

    def unchanged(self) -> list[Node]:
        """The inputs that hold states whose new value is the old one."""
        return [old for old, new in zip(self.reads, self.states, strict=True) if old is new is not None]

    def changing(self) -> list[int]:
        """The indices of the states that a loop computes."""
        pairs = zip(self.reads, self.states, strict=True)
        return [k for k, (old, new) in enumerate(pairs) if old is not new]


@dataclass
class StepGraphs:
    """forward: its states are those of the captured step, then values that the step leaves outside (effects), then the
    new values of outside tensors that it changes in place. inference: the forward without what is kept for the
    backward. backward: None without gradients. Its states are the gradients of states; its inputs are what the forward
    keeps, in that order, and the gradients of the differentiable results, states first. differentiable: for each result
    of the forward, states first. changed: the inputs that are changed in place. gradients: for each input of the
    forward the index of its gradient among the backward's results, or None. checks: the names of linear algebra
    functions, whose error codes are the last series; 0 is no error."""

    forward: StepGraph
    inference: StepGraph
    backward: StepGraph | None
    differentiable: list[bool]
    changed: list[int]
    gradients: list[int | None]
    checks: list[str]


class Differentiation(Compilation):
    """Traces the step's forward and backward with AOTAutograd, without compiling them."""

    def __init__(self, captured: CapturedStep, options: Options):
        super().__init__(CapturedGraph(captured.module), options)
        self.step = captured
        self.forward_graph: GraphModule | None = None

    def partition(
        self, joint: GraphModule, given: object, *, num_fwd_outputs: int, **settings: object
    ) -> tuple[GraphModule, GraphModule]:
        """Partitions results without their clones, so that the backward may read them directly."""
        take_clones_off(joint.graph, self.step)
        joint.meta["free"] = self.free
        return super().partition(joint, given, num_fwd_outputs=num_fwd_outputs, **settings)

    def free(self, graph: Graph) -> set[Node]:
        """The values of a joint graph that are in memory for every step in any case. States are not, except those that
        are also results of each step, and those that the backward reads at the start of each step: their new values are
        in the same memory."""
        forward = forward_nodes(graph)
        inputs = [node for node in graph.find_nodes(op="placeholder") if "tangents" not in str(node.target)]
        results = graph.output_node().args[0][tokens_of(graph) :]
        every = {results[k] for k in self.step.ys if isinstance(results[k], Node)}
        found = set(every)
        for node, (role, k) in zip(inputs[-len(self.step.inputs) :], self.step.inputs, strict=True):
            if role != "carry":
                found.add(node)
                continue
            new = results[self.step.carries[k]]
            if new in every or any(user not in forward and user.op != "output" for user in node.users):
                found |= {node, new}
        return found

    def forward(self, graph: GraphModule, fakes: Sequence[object]) -> Callable[..., object]:
        context = torch._guards.TracingContext.try_get()
        self.metadata = context and context.fw_metadata
        take_clones_off(graph.graph, self.step)
        self.forward_graph = graph
        return never

    def inference(self, graph: GraphModule, fakes: Sequence[object]) -> Callable[..., object]:
        graph.meta["options"] = self.options
        return self.forward(passes.run(passes.INFERENCE, graph), fakes)

    def backward(self, graph: GraphModule, fakes: Sequence[object]) -> Callable[..., object]:
        return never

    def direct(self, inputs: Sequence[object]) -> None:
        return None


def never(*given: object) -> None:
    raise AssertionError("a step runs as part of a loop")


def step_graphs_of(captured: CapturedStep, options: Options) -> StepGraphs:
    """Raises Refused."""
    differentiation = Differentiation(captured, options)
    differentiation.run(captured.fakes)
    forward, backward = differentiation.forward_graph, differentiation.backward_graph
    metadata = differentiation.metadata
    checks = take_checks_out(forward.graph)
    if backward is not None and tokens_of(backward.graph):
        raise Refused("its gradient has an effect")
    for graph in filter(None, (forward, backward)):
        for node in graph.graph.nodes:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise Refused(f"{node.target} can't be part of a loop")
            if node.target in OF_ADDRESSES:
                raise Refused(f"{node.target} uses an offset into a tensor's memory, which other steps share")
    inputs = forward.graph.find_nodes(op="placeholder")
    if metadata is None or len(inputs) != len(captured.inputs):
        raise Refused("AOTAutograd adds inputs to the step's graph")
    if metadata.num_mutated_inp_runtime_indices:
        raise Refused("it changes another tensor that requires a gradient in place")
    results = list(forward.graph.output_node().args[0])
    changes = changes_of(forward.graph, inputs)
    order = [*captured.carries, *captured.effects]
    reads: list[Node | None] = [None] * len(order)
    kinds = {}
    for node, (role, k) in zip(inputs, captured.inputs, strict=True):
        kinds[node] = KINDS[role]
        if role == "carry":
            reads[k] = node
    kinds |= dict.fromkeys(changes, Kind.CARRIED)
    states = [*(results[k] for k in order), *changes.values()]
    series = [*(results[k] for k in captured.ys), *checks]
    step = StepGraph(forward.graph, inputs, kinds, [*reads, *changes], states, series)
    requires = [info.requires_grad for info in metadata.output_info]
    differentiable = [requires[k] for k in order] + [False] * len(changes) + [requires[k] for k in captured.ys]
    differentiable += [False] * len(checks)
    names_of_checks = list(checks.values())
    changed = [inputs.index(node) for node in changes]
    if backward is None:
        finish(step)
        return StepGraphs(step, step, None, differentiable, changed, [], names_of_checks)
    names = {node.name: node for node in results[len(requires) :]}
    made, gradients = backward_of(backward.graph, captured, requires)
    step.kept = [names[node.name] for node in made.inputs if node.name in names]
    finish(step)
    inference = dataclasses.replace(step, kept=None)
    return StepGraphs(step, inference, made, differentiable, changed, gradients, names_of_checks)


def tokens_of(graph: Graph) -> int:
    """The number of leading results that only order operators with effects."""
    return len([each for each in graph.output_node().args[0] if isinstance(each, Node) and is_token(each)])


def is_token(node: Node) -> bool:
    return node.target is operator.getitem and is_effect(node.args[0]) and node.args[1] == 0


def is_effect(node: Node) -> bool:
    return node.target is EFFECT


def take_checks_out(graph: Graph) -> dict[Node, str]:
    """Removes the error checks after functions of linear algebra, and the tokens that order them. Returns the values
    that they check, with the functions' names. Raises Refused for other effects."""
    count, found = tokens_of(graph), {}
    output = graph.output_node()
    output.args = (type(output.args[0])(output.args[0][count:]),)
    for node in reversed(graph.nodes):
        if is_effect(node):
            token, target, *given = node.args
            if target is not aten._linalg_check_errors.default:
                raise Refused(f"{target} has an effect")
            found[given[0]] = given[1]
            for item in list(node.users):
                item.replace_all_uses_with(token)
                graph.erase_node(item)
            graph.erase_node(node)
    for node in graph.find_nodes(op="placeholder")[:count]:
        graph.erase_node(node)
    return found


def changes_of(graph: Graph, inputs: Sequence[Node]) -> dict[Node, Node]:
    """The inputs that the graph changes in place, each with its new value; removes the copies."""
    found: dict[Node, Node] = {}
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if copy.args[0] not in inputs:
            raise Refused("it changes a part of another tensor in place")
        found[copy.args[0]] = copy.args[1]
        copy.replace_all_uses_with(copy.args[1])
        graph.erase_node(copy)
    return found


def finish(step: StepGraph) -> None:
    """Rewrites the graph with its own results only. States that don't change become invariants."""
    step.kinds |= dict.fromkeys(step.unchanged(), Kind.INVARIANT)
    parts = [step.states, step.series, step.totals, step.kept or []]
    output = step.graph.output_node()
    output.args = (tuple(node for part in parts for node in part),)
    eliminate_dead_code(step.graph)
    factor(step.graph, step.kinds, step.states)
    results = iter(output.args[0])
    for part in parts:
        part[:] = itertools.islice(results, len(part))


def take_clones_off(graph: Graph, captured: CapturedStep) -> None:
    """Removes clones from states and results, except from results in the memory of inputs or of other results; and from
    values that only operators without side effects read."""
    for node in graph.nodes:
        if is_clone(node):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: not is_returned(user))
    output = graph.output_node()
    results = list(output.args[0])
    taken: set[Node] = set()
    first = tokens_of(graph)
    for k in (*captured.carries, *captured.effects):
        while is_clone(results[first + k]):
            results[first + k] = results[first + k].args[0]
    for k in (first + k for k in captured.ys):
        bare = results[k]
        while is_clone(bare):
            bare = bare.args[0]
        base = memory_of(bare)
        if base.op != "placeholder" and base not in taken:
            results[k] = bare
        taken.add(base)
    output.args = (type(output.args[0])(results),)
    eliminate_dead_code(graph)


def memory_of(node: Node) -> Node:
    """The base of a view, through views of views."""
    while node.op == "call_function" and not is_new(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def is_clone(node: Node) -> bool:
    """Whether it copies a tensor as it lies in memory."""
    if node.target is not aten.clone.default:
        return False
    form = node.kwargs.get("memory_format", torch.preserve_format)
    return form is torch.preserve_format or form is torch.contiguous_format and node.args[0].meta["val"].is_contiguous()


def backward_of(graph: Graph, captured: CapturedStep, requires: Sequence[bool]) -> tuple[StepGraph, list[int | None]]:
    """The backward, and for each input of the forward the index of its gradient."""
    inputs = graph.find_nodes(op="placeholder")
    tangents = [node for node in inputs if "tangents" in str(node.target)]
    kept = [node for node in inputs if node not in tangents]
    kept.sort(key=lambda node: is_tensor(node.meta["val"]))  # numbers first, in the order of cpp/bindings/compiled.cpp
    wanted = [k for k, requires_grad in enumerate(requires) if requires_grad]
    if len(tangents) != len(wanted):
        raise Refused("AOTAutograd's backward takes other gradients than those of the results")
    tangent_of = dict(zip(wanted, tangents, strict=True))
    order = [*captured.carries, *captured.effects]
    reads = [tangent_of.get(k) for k in order]
    ordered = [tangent_of[k] for k in (*order, *captured.ys) if k in tangent_of]
    kinds = dict.fromkeys(inputs, Kind.SERIES) | {node: Kind.CARRIED for node in reads if node is not None}
    gradients = list(graph.output_node().args[0])
    states: list[Node | None] = [None] * len(order)
    series: list[Node | None] = []
    totals: list[Node | None] = []
    places: list[tuple[str, int]] = []
    for (role, k), gradient in zip(captured.inputs, gradients, strict=True):
        if role == "carry":
            states[k] = gradient
            places.append(("states", k))
        else:
            own = series if role == "x" else totals
            places.append(("series" if role == "x" else "totals", len(own)))
            own.append(gradient)
    graph.output_node().args = ((*states, *series, *totals),)
    eliminate_dead_code(graph)
    first = {"states": 0, "series": len(states), "totals": len(states) + len(series)}
    found = [first[role] + k for role, k in places]
    known = [*(s if s is not None or r is None else r for s, r in zip(states, reads, strict=True)), *series, *totals]
    return (
        StepGraph(graph, [*kept, *ordered], kinds, reads, states, series, totals),
        [k if known[k] is not None else None for k in found],
    )
