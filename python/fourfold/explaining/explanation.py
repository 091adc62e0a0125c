"""What became of a function, as plain text and pictures: nothing of torch's is held."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """A group of operators that is one pass. bytes: what it reads and writes; None where its sizes depend on data."""

    name: str
    operators: tuple[str, ...]
    text: str  # as the library reads it
    cpp: str | None  # the same as C++, where it is emitted


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
    svg: str
    programs: tuple[Program, ...]
    outside: tuple[Outside, ...]
    operators: int
    recomputed: int  # how many of these the forward has computed before
    bytes_before: int | None
    bytes_after: int | None
    collapsed: bool  # whether each program is one box in the picture

    @property
    def summary(self) -> str:
        if not self.operators:
            return "no operators"
        fused = sum(len(program.operators) for program in self.programs)
        words = f"{plural(self.operators, 'operator')}, {fused} of them in {plural(len(self.programs), 'program')}"
        if self.operators == fused:
            words = f"{plural(self.operators, 'operator')} in {plural(len(self.programs), 'program')}"
        if self.recomputed:
            words += f"; {self.recomputed} computed again, so that less is kept between forward and backward"
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
    stages: tuple[Stage, ...]
    compilations: int  # that the times of "again" are medians of
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        from fourfold.explaining.text import as_text

        return as_text(self)

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

    def svg(self, half: str = "forward", graph: int = 0) -> str:
        """The picture of ``"forward"`` or ``"backward"``; graph: of which, from 0 on. Raises ValueError where there is
        none."""
        if not 0 <= graph < len(self.graphs):
            raise ValueError(f"explain: expected one of {plural(len(self.graphs), 'graph')}, but got {graph}")
        found = {one.name: one for one in self.graphs[graph].halves}
        if half not in found:
            raise ValueError(f"explain: expected {' or '.join(found)}, but got {half!r}")
        return found[half].svg


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
