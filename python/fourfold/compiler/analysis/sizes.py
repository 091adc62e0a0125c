"""Finds the node of a graph that has a symbolic size, by the size's expression."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node


class Sizes:
    """The sizes of numbers and of tensors' dimensions. If several nodes have one size, the first one added is used."""

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
        """A node and the index of its dimension, or None as the index if the node is the number itself."""
        return self.found.get(size.node.expr)
