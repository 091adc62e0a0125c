"""Compiles torch's ``scan`` operator in a captured graph: cuts the graph before and after it, and runs the step like
``fourfold.scan``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.analysis.support import is_tensor
from fourfold.compiler.nodes import control_flow
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline import fallback
from fourfold.scanning.capture import CapturedStep, ScanCall, is_differentiable
from fourfold.scanning.function import Recurrence, RunsInPython, recurrence_of
from fourfold.scanning.lines import line_of

SCAN = torch.ops.higher_order.scan
REVERSE = "reverse"  # in the meta of a scan that runs from the last step to the first
VALUE = "example_value"  # of a node of a captured graph
Compile = Callable[[GraphModule, Sequence[object]], Callable[..., object]]


@dataclass
class Part:
    """A part of a cut graph: a function, the nodes that it reads, and those that it returns."""

    function: Callable[..., Sequence[object]]
    inputs: Sequence[Node]
    outputs: Sequence[Node]


def can_be_cut(graph: Graph) -> bool:
    """Whether the graph has torch's operator, and its parts can run separately: nothing in it changes a tensor in
    place, which a part may have kept for its backward, or a mode, such as autocast, for later parts."""
    return bool(graph.find_nodes(op="call_function", target=SCAN)) and not any(map(has_lasting_effect, graph.nodes))


def has_lasting_effect(node: Node) -> bool:
    values = node.meta.get(VALUE)
    tensors = [each for each in (values if isinstance(values, (tuple, list)) else [values]) if is_tensor(each)]
    if any(each.is_inference() or each._version for each in tensors):  # the fake tensor's version after the whole trace
        return True
    return node.op == "call_function" and getattr(node.target, "__name__", "").startswith(OF_MODES)


# Prefixes of the functions that Dynamo writes at the beginning and the end of a mode or a transform.
OF_MODES = ("_enter_", "_exit_", "_set_grad_enabled", "_vmap_", "_grad_", "_jvp_", "_unwrap_", "_wrap_")


def cut(module: GraphModule, compile: Compile, options: Options) -> Callable[..., object] | None:
    """The function of a captured graph that has the operator; None if no scan of it becomes a loop. compile: compiles
    the parts between these scans, other scans included."""
    graph = module.graph
    inputs, output = graph.find_nodes(op="placeholder"), graph.output_node()
    found = {node: recurrence_or_none(module, node, options) for node in graph.nodes if node.target is SCAN}
    loops = {node: recurrence for node, recurrence in found.items() if recurrence is not None}
    if not loops:
        return None
    for node in loops:
        turn_around(graph, node)
    parts: list[Part] = []
    for nodes in pieces(graph, loops):
        recurrence = loops.get(nodes[0])
        parts.append(between(module, nodes, compile) if recurrence is None else scanned(module, nodes, recurrence))
    constants = {node: attribute(module, node) for node in graph.find_nodes(op="get_attr")}

    @torch._dynamo.disable
    def run(*given: object) -> object:
        values = constants | dict(zip(inputs, given, strict=True))
        for part in parts:
            values.update(zip(part.outputs, part.function(*map(values.__getitem__, part.inputs)), strict=True))
        return torch.fx.map_arg(output.args[0], values.__getitem__)

    return run


def turn_around(graph: Graph, node: Node) -> None:
    """Removes the flips by which torch's scan runs from the last step to the first: our loop can start there."""
    _, carries, xs, _ = node.args
    items = [item for item in node.users if item.args[1] >= len(carries)]
    flipped = [user for item in items for user in item.users]
    if not all(map(is_flip, (*xs, *flipped))):
        return
    node.args = (node.args[0], carries, [x.args[0] for x in xs], node.args[3])
    node.meta[REVERSE] = True
    for user in flipped:
        user.replace_all_uses_with(user.args[0])
        graph.erase_node(user)
    for x in dict.fromkeys(xs):
        if not x.users:
            graph.erase_node(x)


def is_flip(node: Node) -> bool:
    """Whether it reverses the first dimension."""
    return node.target in (torch.flip, "flip") and len(node.args) == 2 and node.args[1] in ([0], (0,))


def pieces(graph: Graph, loops: Container[Node]) -> list[list[Node]]:
    """The operators, cut before and after each of these scans. Items of a tuple are in the same piece as the tuple."""
    found: dict[int, list[Node]] = {}
    number: dict[Node, int] = {}
    now = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.target is operator.getitem and isinstance(node.args[0].meta.get(VALUE), (tuple, list)):
            number[node] = number[node.args[0]]
        elif node in loops:
            number[node], now = now + 1, now + 2
        else:
            number[node] = now
        found.setdefault(number[node], []).append(node)
    return [found[k] for k in sorted(found)]


def between(module: GraphModule, nodes: Sequence[Node], compile: Compile) -> Part:
    """The part of these nodes, as a graph of its own."""
    own = set(nodes)
    read = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in own)
    given = [node for node in nodes if any(user not in own for user in node.users)]
    graph = Graph()
    known: dict[Node, Node] = {}
    for node in read:
        known[node] = graph.node_copy(node) if node.op == "get_attr" else graph.placeholder(node.name)
        known[node].meta = {key: value for key, value in node.meta.items() if key != "grapharg"}
    for node in nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(map(known.__getitem__, given)))
    inputs = [node for node in read if node.op != "get_attr"]
    compiled = compile(GraphModule(module, graph), [as_input(node.meta[VALUE]) for node in inputs])
    return Part(compiled, inputs, given)


def as_input(value: object, requires_grad: bool | None = None) -> object:
    """A fake value without history. requires_grad: None to keep the value's own."""
    if not is_tensor(value):
        return value
    return value.detach().requires_grad_(value.requires_grad if requires_grad is None else requires_grad)


def attribute(module: GraphModule, node: Node) -> object:
    found = module
    for name in str(node.target).split("."):
        found = getattr(found, name)
    return found


def recurrence_or_none(module: GraphModule, node: Node, options: Options) -> Recurrence | None:
    """The loop of a scan; None, with a warning, if its step can't be part of one."""
    body, carries, xs, others = node.args
    captured = captured_step(attribute(module, body), [*carries, *xs, *others], len(carries), len(xs))
    traced = ScanCall(captured.fakes[: len(carries)], captured.fakes[len(carries) :], 1, reverse=False)
    try:
        return recurrence_of(captured, traced, options)
    except RunsInPython as reason:
        fallback.report(f"torch's scan{line_of(node)}", reason)
        return None


def scanned(module: GraphModule, nodes: Sequence[Node], recurrence: Recurrence) -> Part:
    """nodes: the operator, and the items of its results."""
    body, carries, xs, closures = nodes[0].args
    items = nodes[1:]
    step, is_reverse = attribute(module, body), REVERSE in nodes[0].meta

    def run(*given: object) -> list[object]:
        states, sequences = given[: len(carries)], given[len(carries) : len(carries) + len(xs)]
        call = ScanCall(states, sequences, sequences[0].shape[0], is_reverse)
        try:
            results = recurrence(call, given)
        except RunsInPython as reason:
            fallback.report(f"torch's scan{line_of(nodes[0])}", reason)
            results = None
        others = given[len(carries) + len(xs) :]
        results = results or control_flow.scan(step, states, sequences, others, is_reverse)
        return [results[item.args[1]] for item in items]

    return Part(run, [*carries, *xs, *closures], items)


def captured_step(step: GraphModule, given: Sequence[Node], carries: int, xs: int) -> CapturedStep:
    """The step, with inputs that require a gradient if one may reach them, as in fourfold.scan."""
    inputs = step.graph.find_nodes(op="placeholder")
    trains = any(is_tensor(node.meta.get(VALUE)) and node.meta[VALUE].requires_grad for node in given)
    fakes = []
    for k, (node, outside) in enumerate(zip(inputs, given, strict=True)):
        value = node.meta[VALUE]
        if k < carries:
            fakes.append(as_input(value, trains and is_differentiable(value)))
        else:
            fakes.append(as_input(value, is_tensor(value) and outside.meta[VALUE].requires_grad))
    roles = [("carry", k) for k in range(carries)] + [("x", k) for k in range(xs)]
    roles += [("closure", k) for k in range(len(roles), len(inputs))]
    results = len(step.graph.output_node().args[0])
    return CapturedStep(step, fakes, roles, range(carries), range(carries, results), [], [""] * len(inputs))
