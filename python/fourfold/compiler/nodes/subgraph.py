"""A compiled graph as one node of another graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, repr=False)
class Subgraph:
    """The target of a node that calls a compiled graph (``compiled.Compiled``) with its inputs. native: the graph as
    C++ calls it, a ``fourfold.Graph``; None without a plan, or without the module for this torch."""

    compiled: object
    native: object
    __name__: str = "subgraph"

    def __call__(self, *given: object) -> object:
        return self.compiled.run(list(given))
