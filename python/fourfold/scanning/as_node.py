"""Compiles torch's ``scan`` operator in a graph without gradients: the graph of the whole sequence, compiled like
``fourfold.scan``'s, becomes one node."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.concatenations import FOR_A_FILE
from fourfold.compiler.analysis.support import is_tensor
from fourfold.compiler.analysis.views import has_hints, hint
from fourfold.compiler.nodes.recorder import NotRecorded
from fourfold.compiler.nodes.subgraph import Subgraph
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline import fallback, runtime
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.scanning.capture import ScanCall
from fourfold.scanning.function import RunsInPython, check_states
from fourfold.scanning.in_graphs import VALUE, captured_step
from fourfold.scanning.sequence import RunsInLoop, whole_of
from fourfold.scanning.step_graphs import Refused, step_graphs_of


class NotOneLoop(Exception):
    """The message gives the reason."""


def replace_scan(module: GraphModule, node: Node, in_file: bool = False) -> None:
    """in_file: whether the graph is for a file. Raises NotOneLoop."""
    body, carries, xs, others = node.args
    given = [*carries, *xs, *others]
    if not has_hints(xs[0].meta["val"]):
        raise NotOneLoop("the number of steps depends on data")
    whole = next((user for user in node.users if user.target is not operator.getitem), None)
    if whole is not None:
        raise NotOneLoop(f"{whole.name} reads all results at once")
    options = module.meta.get("options") or Options()
    step = getattr(module, body.target)
    step = GraphModule(step, fallback.copied(step.graph))
    steps = size_of_first(module, xs[0], node)
    try:
        compiled = compiled_sequence(step, given, len(carries), len(xs), steps, options, in_file)
    except (Refused, RunsInLoop, RunsInPython, NotRecorded, ValueError) as reason:
        raise NotOneLoop(str(reason)) from reason
    if compiled.plan is None:
        raise NotOneLoop(compiled.module.meta.get("needs Python", "its passes failed"))
    native = runtime.graph_of(compiled) if runtime.is_native() else None
    if native is None and not in_file:
        raise NotOneLoop("it needs the C++ module for this torch")
    with module.graph.inserting_before(node):
        call = module.graph.call_function(Subgraph(compiled, native), (steps, *given))
    call.meta["val"] = node.meta["val"]
    for item in list(node.users):
        with module.graph.inserting_before(item):
            own = module.graph.call_function(operator.getitem, (call, item.args[1]))
        own.meta["val"] = item.meta["val"]
        item.replace_all_uses_with(own)
        module.graph.erase_node(item)
    module.graph.erase_node(node)
    if not body.users:
        module.graph.erase_node(body)


def size_of_first(module: GraphModule, x: Node, before: Node) -> object:
    """The number of steps: a number, or the node of one."""
    size = x.meta["val"].shape[0]
    if isinstance(size, int):
        return size
    with module.graph.inserting_before(before):
        node = module.graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    node.meta["val"] = size
    return node


def compiled_sequence(
    step: GraphModule,
    given: Sequence[object],
    carries: int,
    xs: int,
    steps: object,
    options: Options,
    in_file: bool,
) -> Compiled:
    """Its inputs are the number of steps and the operator's arguments; its results are the operator's."""
    for node in step.graph.nodes:
        if "val" in node.meta:
            node.meta[VALUE] = node.meta["val"]
    inputs = step.graph.find_nodes(op="placeholder")
    fakes = [node.meta[VALUE] for node in inputs]
    captured = captured_step(step, inputs, carries, xs)
    check_states(captured, ScanCall(fakes[:carries], fakes[carries:], 1, reverse=False))
    mode = next(fake.fake_mode for fake in fakes if is_tensor(fake))
    count = steps if isinstance(steps, int) else hint(steps.meta["val"])
    with tracing(TracingContext(mode)), torch.no_grad():
        graphs = step_graphs_of(captured, options)
    if graphs.changed or graphs.checks:
        raise Refused("its step has an effect besides its results")
    whole = whole_of(graphs.inference, count, False, options)
    if in_file:
        whole.module.meta[FOR_A_FILE] = True
    return Compiled.of(whole.module, options)
