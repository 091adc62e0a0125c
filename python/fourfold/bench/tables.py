"""Benchmarks as text, as rich tables on a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fourfold.bench import timing
from fourfold.bench.comparison import PHASES, Problem, Row

OURS = "fourfold"
HEADINGS = ("µs", "median", "minimum", "spread", "ratio")


@dataclass(frozen=True)
class Comparison:
    """One benchmark's rows at one number of threads."""

    problem: Problem
    threads: int
    rows: list[Row]

    @property
    def baseline(self) -> Row:
        return self.rows[0]

    def ratio(self, row: Row, phase: str, to: Row | None = None) -> timing.Statistics:
        """How many times faster than the baseline, or than another row, in pairs of neighbouring samples."""
        other = to or self.baseline
        return timing.summarise(timing.paired_ratios(other.samples[phase], row.samples[phase]))

    @property
    def heading(self) -> str:
        return f"{self.problem.title}: {self.threads} thread{'s' if self.threads > 1 else ''}"


def cells(comparison: Comparison, phase: str, row: Row) -> tuple[str, ...]:
    """A row's figures in one phase; without figures its reason, in full only where it comes first."""
    if not row.samples:
        return (row.name, row.reason if phase == PHASES[0] else "not measured")
    figures = row.statistics(phase)
    times = (figures.median, figures.minimum, figures.spread)
    ratio = f"{comparison.ratio(row, phase).median:.2f}×"
    return (row.name, *(f"{1e6 * seconds:.1f}" for seconds in times), ratio)


def plain(comparison: Comparison) -> str:
    width = 2 + max(len(row.name) for row in comparison.rows)
    lines = [comparison.heading, "".join([HEADINGS[0].ljust(width), *(f"{word:>10}" for word in HEADINGS[1:])])]
    for phase in PHASES:
        lines.append(phase)
        for row in comparison.rows:
            name, *figures = cells(comparison, phase, row)
            start = f"  {name}".ljust(width)
            lines.append(start + ("".join(f"{figure:>10}" for figure in figures) if row.samples else f"  {figures[0]}"))
    return "\n".join(lines + [""] + list(remarks(comparison)))


def print_rich(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=comparison.heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(HEADINGS[0])
    for word in HEADINGS[1:]:
        table.add_column(word, justify="right")
    reasons = {}
    for phase in PHASES:
        table.add_row(Text(phase, style="bold"))
        for row in comparison.rows:
            name, *figures = cells(comparison, phase, row)
            if not row.samples:
                reasons[name] = row.reason
                table.add_row(f"  {name}", "-", "-", "-", "-", style="dim")
                continue
            lost = round(comparison.ratio(row, phase).median, 2) < 1
            color = "red" if lost else "green" if row.name == OURS else ""
            texts = [Text(f"  {name}", style="bold" if row.name == OURS else ""), *map(Text, figures[:-1])]
            table.add_row(*texts, Text(figures[-1], style=color))
    console = Console(highlight=False)
    console.print(table)
    for line in [*(f"{name}: {reason}" for name, reason in reasons.items()), *remarks(comparison)]:
        console.print(Text(line))


def remarks(comparison: Comparison) -> Iterator[str]:
    """What else there is to know of a table: cold times, errors, and every comparison that fourfold lost."""
    built = [row for row in comparison.rows if not math.isnan(row.first_call)]
    first = ", ".join(f"{row.name} {seconds_words(row.first_call)}" for row in built)
    yield f"Cold, compilation included, until everything had run once: {first}."
    worst = max((row.error for row in built), default=math.nan)
    yield f"Largest relative error against float64: {worst:.1e} (tolerance {comparison.problem.tolerance:.1e})."
    yield from losses(comparison) or ["No row beats fourfold in any phase."]


def seconds_words(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def losses(comparison: Comparison) -> list[str]:
    """One line for each phase in which another row beats fourfold's."""
    ours = next(row for row in comparison.rows if row.name == OURS)
    others = [row for row in comparison.rows if row is not ours and row.samples]
    if not ours.samples:
        return [f"fourfold was not measured: {ours.reason}"]
    lines = []
    for phase in PHASES:
        ratios = {row.name: comparison.ratio(ours, phase, to=row).median for row in others}
        beaten = [f"{ratio:.2f}× of {name}" for name, ratio in ratios.items() if round(ratio, 2) < 1]
        if beaten:
            lines.append(f"fourfold loses, {phase}: {', '.join(beaten)}.")
    return lines


def as_dictionary(comparison: Comparison) -> dict[str, Any]:
    """Everything measured, in seconds, ready for JSON; what has no value is null."""
    rows = []
    for row in comparison.rows:
        phases = {}
        for phase, samples in row.samples.items():
            ratio = dataclasses.asdict(comparison.ratio(row, phase))
            phases[phase] = {**dataclasses.asdict(row.statistics(phase)), "ratio": ratio, "samples": samples}
        rows.append(
            {
                "name": row.name,
                "reason": row.reason or None,
                "relative_error": finite(row.error),
                "first_call": finite(row.first_call),
                "phases": phases,
            }
        )
    problem = comparison.problem
    return {"title": problem.title, "tolerance": problem.tolerance, "threads": comparison.threads, "rows": rows}


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
