"""The result of ``fourfold.explain``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fourfold.explaining import text
from fourfold.explaining.data import Graph, Half, Outside, Program, Programs, Scan, ScanHalf, Stage, alike, cut, plural
from fourfold.explaining.filling import render

T = TypeVar("T")
H = TypeVar("H", Half, ScanHalf)
SMALL = 50  # operators, forward and backward; larger functions print a summary


@dataclass(frozen=True, repr=False)
class Explanation:
    """The result of ``fourfold.explain``: ``print`` it, ``save`` it as a page, draw it with ``dot``, or show it in a
    notebook.
    """

    name: str
    versions: str
    graphs: tuple[Graph, ...]
    breaks: tuple[str, ...]  # torch's reasons for the graph breaks, without those at scans
    stages: tuple[Stage, ...]  # none without timing
    compilations: int  # "again" is the median of this many
    generator: str = "auto"  # what runs programs: the option of torch.compile
    rounds_each: bool = False  # whether programs round low precision after each operator: its option "round"
    scans: tuple[Scan, ...] = ()  # the calls of fourfold.scan, in the order of each kind's first call
    ends_graphs: bool = False  # whether scans end graphs: what comes before and after each is compiled separately

    @property
    def halves(self) -> list[tuple[int, Half]]:
        """Each forward and backward with the number of its graph."""
        return [(k, half) for k, graph in enumerate(self.graphs) for half in graph.halves]

    @property
    def programs(self) -> tuple[Programs, ...]:
        """The kinds of programs, in the order of each kind's first program."""
        several = len(self.graphs) > 1
        named = ((half, one, f"{one.name} of graph {k}" * several) for k, half in self.halves for one in half.programs)
        return alike((half.name, name or one.name, one) for half, one, name in named)

    @property
    def outside(self) -> tuple[Outside, ...]:
        """The operators that torch runs in all graphs, forward and backward, the most frequent first."""
        found: Counter[tuple[str, str]] = Counter()
        for _, half in self.halves:
            found.update({(one.operator, one.reason): one.count for one in half.outside})
        return tuple(Outside(operator, count, reason) for (operator, reason), count in found.most_common())

    @property
    def runner(self) -> str:
        """What runs the programs; empty if there are none."""
        from fourfold.explaining import nests

        programs = [one for _, half in self.halves for one in half.programs]
        rounding = " They round float16 and bfloat16 after each operator." if self.rounds_each else ""
        return nests.about(programs, self.generator) + rounding if programs else ""

    @property
    def is_small(self) -> bool:
        of_scans = (half.operators for scan in self.scans for half in scan.halves)
        return sum(half.operators for _, half in self.halves) + sum(of_scans) <= SMALL

    def __str__(self) -> str:
        """All stages of a small function, the summary of a large one."""
        return self.detail() if self.is_small else self.summary()

    def summary(self) -> str:
        """The summary, in at most 40 lines and about ten more with times, for functions of any size."""
        return "\n".join(cut(line, text.COLUMNS) for line in self.filled("text.txt", whole=False).splitlines()).strip()

    def detail(self) -> str:
        """All stages, of any length: graphs, programs (each kind once), and the operators that torch runs."""
        return self.filled("text.txt", whole=True).rstrip("\n")

    def __repr__(self) -> str:
        graphs = plural(len(self.graphs), "graph")
        return f"<fourfold.explain of {self.name}: {graphs}; print it, or .save('page.html')>"

    def _repr_html_(self) -> str:
        """The page without global style rules and link targets, which could clash with the notebook's."""
        return self.filled("page.html", links=False)

    def save(self, path: str | Path) -> None:
        """Writes one self-contained HTML page."""
        Path(path).write_text(self.filled("page.html", links=True), encoding="utf-8")

    def filled(self, template: str, **settings: bool) -> str:
        from fourfold.explaining import nests

        return render(template, explanation=self, text=text, nests=nests, **settings)

    def dot(self, half: str = "forward", graph: int = 0) -> str:
        """A graph for Graphviz: inputs, programs, the operators that torch runs, views and results.

        Args:
            half: "forward" or "backward".
            graph: the number of the captured graph.

        Raises:
            ValueError: there is no such graph.
        """
        return render("graph.dot", half=self.half(half, graph))

    def nest(
        self, half: str = "forward", program: int = 0, graph: int = 0, prelude: bool = False, scan: int | None = None
    ) -> str:
        """The loop nest of a program, for the layout of the example call, as C++ or in the GPU's language.

        Args:
            half: "forward" or "backward".
            program: the number of the program.
            graph: the number of the captured graph.
            prelude: include the functions that the nest calls: a complete file.
            scan: select the programs of the scan with this number, those in the loop first. If the loop runs as one
                nest, its program's nest is the one over all steps.

        Raises:
            ValueError: there is no such program, or it has no nest.
        """
        return self.printed("c", self.program(half, program, graph, scan), prelude)

    def llvm(self, half: str = "forward", program: int = 0, graph: int = 0, scan: int | None = None) -> str:
        """The same nest as LLVM IR."""
        return self.printed("llvm", self.program(half, program, graph, scan))

    def assembly(self, half: str = "forward", program: int = 0, graph: int = 0, scan: int | None = None) -> str:
        """The same nest as this processor's assembly. Raises ImportError without llvmlite."""
        return self.printed("assembly", self.program(half, program, graph, scan))

    def printed(self, what: str, program: Program, prelude: bool = False) -> str:
        from fourfold.compiler.nest.cpu.build import NotCompiled
        from fourfold.explaining import nests

        try:
            return nests.printed(program, what, prelude)
        except NotCompiled as reason:
            raise ValueError(
                f"explain: expected a program with a loop nest, but {program.name} has none: {reason}"
            ) from None

    def program(self, half: str, number: int, graph: int, scan: int | None = None) -> Program:
        programs = (self.half(half, graph) if scan is None else self.half_of_scan(half, scan)).programs
        if not programs:
            raise ValueError(f"explain: expected a {half} with programs, but it has none")
        if not 0 <= number < len(programs):
            raise ValueError(f"explain: expected one of {plural(len(programs), 'program')}, but got {number}")
        return programs[number]

    def half_of_scan(self, name: str, scan: int) -> ScanHalf:
        return named(name, numbered(scan, self.scans, "scan").halves)

    def half(self, name: str, graph: int) -> Half:
        return named(name, numbered(graph, self.graphs, "graph").halves)


def numbered(number: int, among: Sequence[T], what: str) -> T:
    if not 0 <= number < len(among):
        raise ValueError(f"explain: expected one of {plural(len(among), what)}, but got {number}")
    return among[number]


def named(name: str, halves: Sequence[H]) -> H:
    found = {one.name: one for one in halves}
    if name not in found:
        raise ValueError(f"explain: expected {' or '.join(found) or 'a scan that is compiled'}, but got {name!r}")
    return found[name]
