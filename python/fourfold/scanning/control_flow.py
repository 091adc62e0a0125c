"""Compiles the bodies of torch's control flow operators: the branches of ``cond``, the condition and the step of
``while_loop``, the steps of ``scan`` and ``map``. Forward and backward graphs have these operators alike."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fourfold.compiler import passes
from fourfold.compiler.analysis.support import REFUSAL, bodies_of, has_effect, refuse
from fourfold.compiler.nodes.control_flow import RUN, Body, ControlFlow
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline import fallback, runtime
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.scanning.as_node import NotOneLoop, replace_scan

SCAN = torch.ops.higher_order.scan


def control_flow(module: GraphModule) -> GraphModule:
    for node in fallback.visiting(module):
        if node.op == "call_function" and node.target in RUN and REFUSAL not in node.meta:
            if has_effect(node):
                refuse(node, "a body that draws random numbers, writes to a tensor or has another effect")
            elif not (node.target is SCAN and becomes_loop(module, node)):
                replace(module, node)
    return module


def becomes_loop(module: GraphModule, node: Node) -> bool:
    """Replaces a scan by the graph of the whole sequence, if its step can be part of a loop."""
    try:
        replace_scan(module, node)
    except NotOneLoop:
        return False
    return True


def replace(module: GraphModule, node: Node) -> None:
    options, bodies = module.meta.get("options") or Options(), bodies_of(node)
    compiled = {each: body_of(body, options) for each, body in bodies.items()}
    leaves, structure = pytree.tree_flatten(node.args, is_leaf=lambda each: isinstance(each, Node))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Node) and leaf not in bodies]
    given = [leaves[k] for k in places]
    fixed = [compiled.get(leaf) if isinstance(leaf, Node) else leaf for leaf in leaves]
    target = ControlFlow(node.target, list(compiled.values()), fixed, structure, places)
    if runtime.is_native():
        target.native = runtime.graph_of_function(target.boxed)
    with module.graph.inserting_before(node):
        call = module.graph.call_function(target, tuple(given))
    call.meta = {key: value for key, value in node.meta.items() if key != REFUSAL}
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)
    for each in bodies:
        if not each.users:
            module.graph.erase_node(each)


def body_of(body: GraphModule, options: Options) -> Body:
    graph = fallback.copied(body.graph)
    output = graph.output_node()
    is_single = not isinstance(output.args[0], (tuple, list))
    if is_single:
        output.args = ((output.args[0],),)
    module = GraphModule(body, graph)
    module.meta["options"] = options
    compiled = Compiled.of(passes.run(passes.INFERENCE, module), options, first=(control_flow,))
    return Body(compiled, runtime.graph_of(compiled) if runtime.is_native() else compiled.run, is_single)
