"""The record of a compilation for ``fourfold.explain``: the graphs and the time of every stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.fx import GraphModule

from fourfold.compiler.pipeline.compiled import Compiled


@dataclass
class Half:
    """A forward, a backward, or a forward without gradient: torch's graph and the compiled one."""

    graph: GraphModule
    compiled: Compiled


@dataclass
class CapturedGraph:
    """One graph that torch captured. A function with graph breaks has several."""

    graph: GraphModule
    forward: Half | None = None
    backward: Half | None = None
    copied: int = 0  # how many of the forward's first results torch copies into inputs that are mutated
    runtime: str = ""  # why torch's runtime runs the two graphs; empty if ours does
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: differentiate, forward, backward

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass
class Record:
    """Everything that calls of ``backend`` with this record compile."""

    captured: list[CapturedGraph] = field(default_factory=list)
    complete: list[Callable[[], None]] = field(default_factory=list)  # for each, compiles the backward without a call
