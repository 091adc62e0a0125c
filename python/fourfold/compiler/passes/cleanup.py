"""Cleans up after passes that change groups: dead code, unused results, nodes out of order."""

from __future__ import annotations

import heapq

from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.analysis.in_place import COPY, readers
from fourfold.compiler.analysis.support import has_effect
from fourfold.compiler.nodes.fused import fused_nodes, remove_unread


def clean_up(module: GraphModule) -> GraphModule:
    eliminate_dead_code(module.graph)
    for node in reversed(fused_nodes(module.graph)):
        remove_unread(node)
    return sort(module)


def eliminate_dead_code(graph: Graph) -> None:
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not has_effect(node):
            graph.erase_node(node)


def sort(module: GraphModule) -> GraphModule:
    """Sorts the nodes topologically and otherwise keeps their order; the order of nodes with effects never changes. A
    node that reads an input before its new value is copied into it still does so."""
    nodes = list(module.graph.nodes)
    index = {node: k for k, node in enumerate(nodes)}
    waiting: dict[Node, int] = {}
    users: dict[Node, list[Node]] = {}
    last: Node | None = None
    for node in nodes:
        before = set(node.all_input_nodes)
        if has_effect(node) or node.op == "output":
            before |= {last} if last is not None else set()
            last = node
        if node.target is COPY:
            before |= {reader for reader in readers(node.args[0]) if index[reader] < index[node]}
        waiting[node] = len(before)
        for other in before:
            users.setdefault(other, []).append(node)
    ready = [index[node] for node in nodes if waiting[node] == 0]
    position = 0
    anchor = module.graph._root
    while ready:
        node = nodes[heapq.heappop(ready)]
        anchor.append(node)
        anchor, position = node, position + 1
        for user in users.get(node, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, index[user])
    if position != len(nodes):
        raise AssertionError("a fused group depends on its own result")
    return module
