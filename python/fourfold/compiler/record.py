"""What a compilation made, for ``fourfold.explain``: the graphs of every stage, and the time that it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.fx import GraphModule

from fourfold.compiler.compiled import Compiled


@dataclass
class Half:
    """A forward, a backward, or a forward without gradient: torch's graph, and what became of it."""

    graph: GraphModule
    compiled: Compiled


@dataclass
class Captured:
    """One graph that torch captured. A function with graph breaks has several."""

    graph: GraphModule
    forward: Half | None = None
    backward: Half | None = None
    copied: int = 0  # how many of the forward's results, the first, torch copies into inputs that are changed in place
    runtime: str = ""  # why torch's own runtime runs the two; nothing where ours does
    seconds: dict[str, float] = field(default_factory=dict)  # of differentiate, forward, backward

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass
class Record:
    """All that is compiled while it is the record of a call of ``backend``."""

    captured: list[Captured] = field(default_factory=list)
    complete: list[Callable[[], None]] = field(default_factory=list)  # of each, compiles its backward without a call
