"""A table of a benchmark that doesn't compare rows in turns: of compile times, of a disturbed machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.targets import Outcome


@dataclass(frozen=True)
class Report:
    """cells: what is printed, a row each. figures: the same as numbers, for JSON. wrong: whether something of
    fourfold's gave other numbers, or none."""

    title: str
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    figures: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    outcomes: Sequence[Outcome] = ()
    wrong: bool = False

    def plain(self) -> str:
        table = [self.headings, *self.cells]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.headings))]

        def line(row: Sequence[str]) -> str:
            beside = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            return "  ".join([row[0].ljust(widths[0]), *beside])

        return "\n".join([self.title, *map(line, table), *self.notes])

    def as_dictionary(self) -> dict[str, Any]:
        targets = [outcome.as_dictionary() for outcome in self.outcomes]
        figures = {"notes": list(self.notes), "figures": list(self.figures), "targets": targets}
        return {"title": self.title, **figures, **({"wrong": True} if self.wrong else {})}
