"""Which node of a graph has a symbolic size: known by its expression, not searched for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node


class Sizes:
    """Of numbers, and of the dimensions of tensors; of several nodes with one size, the first that was added."""

    def __init__(self, nodes: Iterable[Node] = ()):
        self.found: dict[object, tuple[Node, int | None]] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        value = node.meta.get("val")
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for d, size in sizes:
            if isinstance(size, torch.SymInt):
                self.found.setdefault(size.node.expr, (node, d))

    def find(self, size: torch.SymInt) -> tuple[Node, int | None] | None:
        """A node, and which of its dimensions; None in its place where the node is the number itself."""
        return self.found.get(size.node.expr)
