"""What became of a function, as plain text and pictures: nothing of torch's is held."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fourfold.explaining.sketch import Sketch


@dataclass(frozen=True)
class Program:
    """A group of operators that is one pass. bytes: what it reads and writes; None where its sizes depend on data."""

    name: str
    operators: tuple[str, ...]
    text: str  # as the library reads it
    bytes: int | None
    alike: str = field(repr=False)  # the text, with names that don't depend on the tensors'

    @property
    def kind(self) -> tuple[object, ...]:
        """What programs that are alike have in common."""
        return self.operators, self.bytes, self.alike


@dataclass(frozen=True)
class Programs:
    """Programs of one half that are the same but for the tensors that they are given, the first of them in full.
    names: of all, in order; where there are several graphs, with theirs."""

    half: str
    first: Program
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def bytes(self) -> int | None:
        """Of all together."""
        return None if self.first.bytes is None else self.first.bytes * self.count


@dataclass(frozen=True)
class Outside:
    """An operator that torch runs."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True)
class Half:
    """A forward or a backward."""

    name: str
    code: str  # torch's graph, as Python
    calls: str  # the Python that calls the programs
    sketch: Sketch = field(repr=False)
    title: str  # of the picture, and what it shows in words
    description: str
    programs: tuple[Program, ...]
    outside: tuple[Outside, ...]
    operators: int
    recomputed: int  # how many of these the forward has computed before
    bytes_before: int | None
    bytes_after: int | None

    def svg(self, whole: bool = False) -> str:
        """The picture; of a large graph its beginning, unless whole."""
        from fourfold.explaining.svg import svg

        sketch = self.sketch if whole else self.sketch.beginning()
        return svg(sketch.picture(), self.title, self.description)

    @property
    def fused(self) -> int:
        """How many of the operators are in programs."""
        return sum(len(program.operators) for program in self.programs)

    @property
    def summary(self) -> str:
        if not self.operators:
            return "no operators"
        words = (
            f"{plural(self.operators, 'operator')}, {self.fused:,} of them in {plural(len(self.programs), 'program')}"
        )
        if self.operators == self.fused:
            words = f"{plural(self.operators, 'operator')} in {plural(len(self.programs), 'program')}"
        if self.recomputed:
            words += f"; {self.recomputed:,} computed again, so that less is kept between forward and backward"
        return words


@dataclass(frozen=True)
class Graph:
    """One graph that torch captured."""

    code: str
    runtime: str  # why torch's own runtime calls the two; nothing where fourfold's does
    forward: Half
    backward: Half | None

    @property
    def halves(self) -> tuple[Half, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)


@dataclass(frozen=True)
class Stage:
    """Seconds, the first time and again; None where there is no such time."""

    name: str
    first: float | None
    again: float | None


@dataclass(frozen=True)
class Explanation:
    """``print`` it, ``save`` it as a page, take a picture by ``svg``, or leave it to a notebook."""

    name: str
    versions: str
    graphs: tuple[Graph, ...]
    breaks: tuple[str, ...]  # torch's reasons for there being several graphs
    stages: tuple[Stage, ...]  # none where nothing was timed
    compilations: int  # that the times of "again" are medians of

    def __str__(self) -> str:
        """All stages of a small function, the summary of a large one."""
        from fourfold.explaining.text import as_text

        return as_text(self)

    def summary(self) -> str:
        """In at most 40 lines, and about ten more with times, however large the function is."""
        from fourfold.explaining.text import summary

        return summary(self)

    def detail(self) -> str:
        """All stages, however long: graphs, programs, and what torch runs; programs that are alike once."""
        from fourfold.explaining.text import detail

        return detail(self)

    @property
    def programs(self) -> tuple[Programs, ...]:
        """Those that are alike together, in the order of the first of each."""
        found: dict[tuple[object, ...], tuple[Half, Program, list[str]]] = {}
        for k, graph in enumerate(self.graphs):
            for half in graph.halves:
                for one in half.programs:
                    name = f"{one.name} of graph {k}" if len(self.graphs) > 1 else one.name
                    key = half.name, *one.kind
                    found.setdefault(key, (half, one, []))[2].append(name)
        return tuple(Programs(half.name, one, tuple(names)) for half, one, names in found.values())

    @property
    def outside(self) -> tuple[Outside, ...]:
        """What torch runs in all graphs, forward and backward; most first."""
        found: Counter[tuple[str, str]] = Counter()
        for graph in self.graphs:
            for half in graph.halves:
                found.update({(one.operator, one.reason): one.count for one in half.outside})
        return tuple(Outside(operator, count, reason) for (operator, reason), count in found.most_common())

    def __repr__(self) -> str:
        return (
            f"<fourfold.explain of {self.name}: {plural(len(self.graphs), 'graph')}; print it, or .save('page.html')>"
        )

    def _repr_html_(self) -> str:
        from fourfold.explaining.page import fragment

        return fragment(self)

    def save(self, path: str | Path) -> None:
        """One HTML page, which needs nothing else."""
        from fourfold.explaining.page import page

        Path(path).write_text(page(self), encoding="utf-8")

    def svg(self, half: str = "forward", graph: int = 0, whole: bool = False) -> str:
        """The picture of ``"forward"`` or ``"backward"``; graph: of which, from 0 on. whole: all of a large graph too,
        of which otherwise the beginning is drawn; it takes seconds. Raises ValueError where there is none."""
        if not 0 <= graph < len(self.graphs):
            raise ValueError(f"explain: expected one of {plural(len(self.graphs), 'graph')}, but got {graph}")
        found = {one.name: one for one in self.graphs[graph].halves}
        if half not in found:
            raise ValueError(f"explain: expected {' or '.join(found)}, but got {half!r}")
        return found[half].svg(whole)


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
