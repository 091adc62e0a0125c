"""Comparisons as text, and what is judged of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks import timing
from benchmarks.comparison import Row
from benchmarks.problem import OURS, SAVED, Problem, Target

HEADINGS = ("µs", "median", "minimum", "spread", "ratio")


@dataclass(frozen=True)
class Comparison:
    """One benchmark's rows at one number of threads; without a number, on a GPU."""

    problem: Problem
    threads: int | None
    rows: list[Row]
    clocks: Mapping[str, str | None] | None = None  # a GPU's, just after the rows

    @property
    def baseline(self) -> Row:
        measured = [row for row in self.rows if row.samples] or self.rows
        return next((row for row in measured if row.label == self.problem.baseline), measured[0])

    @property
    def ours(self) -> Row:
        return self.row(OURS)

    def row(self, label: str) -> Row | None:
        return next((row for row in self.rows if row.label == label), None)

    def ratio(self, row: Row, phase: str, to: Row | None = None) -> timing.Statistics:
        """How many times faster than the baseline, or than another row, in pairs of neighbouring samples."""
        other = to or self.baseline
        return timing.summarise(timing.paired_ratios(other.samples[phase], row.samples[phase]))

    @property
    def heading(self) -> str:
        if self.threads is None:
            return f"{self.problem.title}: {self.problem.device}"
        return f"{self.problem.title}: {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def headings(self) -> tuple[str, ...]:
        rate = self.problem.rate
        return (*HEADINGS[:-1], *([rate.heading] if rate else []), HEADINGS[-1])


def cells(comparison: Comparison, phase: str, row: Row) -> tuple[str, ...]:
    """A row's figures in one phase; without figures its reason, in full only where it comes first."""
    if not row.samples:
        return (row.label, row.reason if phase == comparison.problem.phases[0] else "not measured")
    if phase not in row.samples:
        return (row.label, *("-" for _ in comparison.headings[1:]))
    figures = row.statistics(phase)
    times = [f"{1e6 * seconds:.1f}" for seconds in (figures.median, figures.minimum, figures.spread)]
    if rate := comparison.problem.rate:
        times.append(f"{rate.of(figures.median):.2f}")
    compared = phase in comparison.baseline.samples
    return (row.label, *times, f"{comparison.ratio(row, phase).median:.2f}×" if compared else "-")


def plain(comparison: Comparison) -> str:
    width = 2 + max(len(row.label) for row in comparison.rows)
    headings = comparison.headings
    lines = [comparison.heading, "".join([headings[0].ljust(width), *(f"{word:>10}" for word in headings[1:])])]
    for phase in comparison.problem.phases:
        lines.append(phase)
        for row in comparison.rows:
            name, *figures = cells(comparison, phase, row)
            start = f"  {name}".ljust(width)
            figures = "".join(f"{figure:>10}" for figure in figures) if row.samples else f"  {figures[0]}"
            beside = verdicts(comparison, phase, row)
            lines.append("  ".join([start + figures, *beside]))
    return "\n".join(lines + [""] + list(remarks(comparison)))


def remarks(comparison: Comparison) -> Iterator[str]:
    """What else there is to know of a table: cold times, errors, every comparison that fourfold lost."""
    if comparison.baseline is not comparison.rows[0]:
        yield f"Ratios are to {comparison.baseline.label}."
    built = [row for row in comparison.rows if not math.isnan(row.first_call) and not row.graphed]
    first = ", ".join(f"{row.name} {seconds_words(row.first_call)}" for row in built)
    yield f"Cold, compilation included, until everything had run once: {first}."
    worst = max(built, key=lambda row: row.error, default=Row(""))
    errors = [f"{row.error:.1e} (tolerance {row.tolerance:.1e})" for row in (worst, comparison.ours)]
    own = f"; fourfold's {errors[1]}" if math.isfinite(comparison.ours.error) else ""
    yield f"Largest relative error against float64: {errors[0]}{own}."
    if kept := [f"{row.name} {row.kept / 1e3:,.1f} kB" for row in comparison.rows if row.kept is not None]:
        beside = "".join(f"; {words}" for words in verdicts(comparison, SAVED, comparison.ours))
        yield f"Kept for the backward beside inputs and parameters: {', '.join(kept)}{beside}."
    yield from losses(comparison) or ["No row beats fourfold in any phase."]


def seconds_words(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def losses(comparison: Comparison) -> list[str]:
    """One line for each phase in which another row beats fourfold's; those with CUDA graphs are compared apart."""
    lines = [f"{row.label} was not measured: {row.reason}" for row in comparison.rows if row.own and row.reason]
    for ours in (row for row in comparison.rows if row.own and row.samples):
        others = [row for row in comparison.rows if row.graphed == ours.graphed and not row.own]
        for phase in ours.samples:
            rivals = [row for row in others if phase in row.samples]
            ratios = {row.name: comparison.ratio(ours, phase, to=row).median for row in rivals}
            beaten = [f"{ratio:.2f}× of {name}" for name, ratio in ratios.items() if round(ratio, 2) < 1]
            if beaten:
                lines.append(f"{ours.label} loses, {phase}: {', '.join(beaten)}.")
    return lines


@dataclass(frozen=True)
class Verdict:
    target: Target
    measured: float | None  # None where a row is missing

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.target.limit if self.target.rival else self.measured <= self.target.limit


def judged(comparison: Comparison) -> list[Verdict]:
    """Every target that holds at this number of threads, with what fourfold reached."""
    rate = comparison.problem.rate
    verdicts = []
    for target in comparison.problem.targets:
        ours, rival = comparison.row(target.row), comparison.row(target.rival)
        if target.threads not in (None, comparison.threads):
            continue
        measured = None
        if ours is not None and rival is not None and target.phase == SAVED:
            measured = rival.kept / ours.kept if rival.kept and ours.kept else None
        elif ours is not None and target.phase in ours.samples and not target.rival and rate is not None:
            measured = rate.of(ours.statistics(target.phase).median)
        elif ours is not None and rival is not None and target.phase in ours.samples and target.phase in rival.samples:
            measured = comparison.ratio(ours, target.phase, to=rival).median
        verdicts.append(Verdict(target, measured))
    return verdicts


def verdicts(comparison: Comparison, phase: str, row: Row) -> list[str]:
    """What stands beside one of fourfold's rows in this phase."""
    lines, rate = [], comparison.problem.rate
    for verdict in judged(comparison):
        target = verdict.target
        if target.phase == phase and target.row == row.label:
            of = f"≥ {target.limit:.2f}× {target.rival}" if target.rival else f"≤ {target.limit:g} {rate.heading}"
            found = {None: "not measured", True: "met", False: "missed"}[verdict.met]
            value = f" at {verdict.measured:.2f}×" if target.rival and verdict.measured is not None else ""
            lines.append(f"target {of}: {found}{value}")
    return lines
