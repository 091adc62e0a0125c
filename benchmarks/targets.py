"""What fourfold is to reach, and what it reached: one summary over all benchmarks of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tables import Comparison, judged

UNIT = "×"


@dataclass(frozen=True)
class Outcome:
    """One target and what was measured for it.

    work: what is to be fast, the summary's line; where: the table it was measured in. measured is None where a row of
    the table is missing. unit: a ratio's, or that of the benchmark's rate. at_most: whether limit is the largest
    allowed value; else it is the smallest.
    """

    work: str
    against: str
    where: str
    limit: float
    measured: float | None
    at_most: bool = False
    unit: str = UNIT

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    @property
    def missed_by(self) -> float | None:
        """The part of the limit that is missing, or too much; None where it is met or not known, or there is no part of
        it."""
        if self.met in (None, True) or not self.limit:
            return None
        return abs(self.measured - self.limit) / self.limit

    def as_dictionary(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "met": self.met, "missed_by": self.missed_by}


def outcomes(comparison: Comparison) -> list[Outcome]:
    """A comparison's targets; those without a line of their own in the summary stand under its title."""
    rate = comparison.problem.rate
    found = []
    for verdict in judged(comparison):
        target = verdict.target
        work = f"{target.work or comparison.problem.title}, {target.phase}"
        unit = UNIT if target.rival else f" {rate.heading}"
        found.append(
            Outcome(work, target.rival, comparison.heading, target.limit, verdict.measured, not target.rival, unit)
        )
    return found


@dataclass(frozen=True)
class Line:
    """The summary's line of a work and a rival: of the tables that it was measured in, the furthest from the aim."""

    outcomes: Sequence[Outcome]

    @property
    def worst(self) -> Outcome:
        first = self.outcomes[0]
        measured = [outcome for outcome in self.outcomes if outcome.measured is not None]
        return (max if first.at_most else min)(measured, key=lambda outcome: outcome.measured, default=first)

    @property
    def aim(self) -> str:
        return f"{'≤' if self.worst.at_most else '≥'} {self.worst.limit:.2f}{self.worst.unit}"

    @property
    def measured(self) -> str:
        return "-" if self.worst.measured is None else f"{self.worst.measured:.2f}{self.worst.unit}"

    @property
    def verdict(self) -> str:
        if self.worst.measured is None:
            return "not measured"
        words = "reached" if self.worst.met else "MISSED"
        if self.worst.missed_by is not None:
            words += f" by {100 * self.worst.missed_by:.0f} %"
        if len(self.outcomes) > 1:
            met = sum(outcome.met is True for outcome in self.outcomes)
            words += f"; {met} of {len(self.outcomes)} tables reach it"
            words += "" if self.worst.met else f"; furthest: {self.worst.where}"
        missing = sum(outcome.measured is None for outcome in self.outcomes)
        return f"{words}; {missing} not measured" if missing else words

    def as_dictionary(self) -> dict[str, Any]:
        texts = {"aim": self.aim, "shown": self.measured, "verdict": self.verdict, "tables": len(self.outcomes)}
        return {**self.worst.as_dictionary(), **texts}


def lines(found: Iterable[Outcome]) -> list[Line]:
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in found:
        key = (outcome.work, outcome.against, outcome.limit, outcome.at_most, outcome.unit)
        groups.setdefault(key, []).append(outcome)
    return [Line(group) for group in groups.values()]


def summary(found: Iterable[Outcome]) -> str:
    chosen = lines(found)
    rows = [("target", "against", "aim", "measured", "")]
    rows += [(line.worst.work, line.worst.against, line.aim, line.measured, line.verdict) for line in chosen]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]

    def text(row: Sequence[str]) -> str:
        padded = [f"{cell:{side}{width}}" for cell, side, width in zip(row, "<<>>", widths, strict=False)]
        return "  ".join([*padded, row[-1]]).rstrip()

    met = sum(line.worst.met is True for line in chosen)
    return "\n".join([f"Targets: {met} of {len(chosen)} reached", *map(text, rows)])
