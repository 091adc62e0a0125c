"""Targets, and their measurements. Imports only the standard library, because scripts/readme_tables.py reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

COLD, NO_GRAD = "forward, cold cache", "forward, no grad"
FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
PHASES = (NO_GRAD, FORWARD, BACKWARD, BOTH)
SAVED = "memory kept for the backward"  # what a target may limit besides the phases
OURS, PLAIN = "fourfold", "plain PyTorch"
INDUCTOR, AOT_EAGER = "torch.compile (Inductor)", "torch.compile (aot_eager)"
BACKENDS = {PLAIN: "", INDUCTOR: "inductor", AOT_EAGER: "aot_eager", OURS: "fourfold"}  # by row; "": not compiled


@dataclass(frozen=True)
class Target:
    """A row's limit in a phase: the smallest ratio to the row ``against``, or with ``at_most`` the largest value.

    work: the summary's line; a problem lists the works that it belongs to. threads: the only count that it applies to.
    row: which of fourfold's rows it is for.
    """

    work: str
    phase: str
    limit: float
    against: str = ""
    threads: int | None = None
    row: str = OURS
    at_most: bool = False
    unit: str = "×"


@dataclass(frozen=True)
class Outcome:
    """measured: None if a row is missing. where: the table's heading."""

    target: Target
    where: str
    measured: float | None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.target.limit if self.target.at_most else self.measured >= self.target.limit

    @property
    def missed_by(self) -> float | None:
        """The deviation as a fraction of the limit; None if it is met, unknown, or the limit is 0."""
        limit = self.target.limit
        return abs(self.measured - limit) / limit if self.met is False and limit else None

    @property
    def words(self) -> str:
        target = self.target
        aim = f"≤ {target.limit:g}{target.unit}" if target.at_most else f"≥ {target.limit:.2f}× {target.against}"
        verdict = {None: "not measured", True: "met", False: "missed"}[self.met]
        return f"target {aim}: {verdict}" + ("" if target.at_most or self.met is None else f" at {self.measured:.2f}×")

    def as_dictionary(self) -> dict[str, Any]:
        target = self.target
        work = f"{target.work}, {target.phase}" if target.phase else target.work
        named = {"work": work, "against": target.against, "where": self.where, "limit": target.limit}
        facts = {"measured": self.measured, "at_most": target.at_most, "unit": target.unit}
        return {**named, **facts, "met": self.met, "missed_by": self.missed_by}


def lines(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The summary: a line for each target, with the table that is furthest from it."""
    groups: dict[Target, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.target, []).append(outcome)
    return [line(group) for group in groups.values()]


def line(group: Sequence[Outcome]) -> dict[str, Any]:
    target = group[0].target
    measured = [outcome for outcome in group if outcome.measured is not None]
    worst = (max if target.at_most else min)(measured, key=lambda outcome: outcome.measured, default=group[0])
    shown = "-" if worst.measured is None else f"{worst.measured:.2f}{target.unit}"
    texts = {"aim": f"{'≤' if target.at_most else '≥'} {target.limit:.2f}{target.unit}", "shown": shown}
    return {**worst.as_dictionary(), **texts, "verdict": verdict(worst, group), "tables": len(group)}


def verdict(worst: Outcome, group: Sequence[Outcome]) -> str:
    if worst.measured is None:
        return "not measured"
    words = "reached" if worst.met else "MISSED"
    if worst.missed_by is not None:
        words += f" by {100 * worst.missed_by:.0f} %"
    if len(group) > 1:
        words += f"; {sum(outcome.met is True for outcome in group)} of {len(group)} tables reach it"
        words += "" if worst.met else f"; furthest: {worst.where}"
    missing = sum(outcome.measured is None for outcome in group)
    return f"{words}; {missing} not measured" if missing else words


def summary(outcomes: Iterable[Outcome]) -> str:
    found = lines(outcomes)
    rows = [("target", "against", "aim", "measured", "")]
    rows += [tuple(line[key] for key in ("work", "against", "aim", "shown", "verdict")) for line in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    texts = [
        "  ".join([*(f"{c:{s}{w}}" for c, s, w in zip(row, "<<>>", widths, strict=False)), row[4]]) for row in rows
    ]
    reached = sum(line["met"] is True for line in found)
    return "\n".join([f"Targets: {reached} of {len(found)} reached", *(text.rstrip() for text in texts)])
