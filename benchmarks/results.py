"""Tables as text and as JSON. The JSON has one row per line, so that it is small and diffs are readable."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Row, Statistics, beaten, median_ratio, paired_ratios, summarise
from benchmarks.problem import Problem
from benchmarks.suites import TARGETS
from benchmarks.targets import OURS, SAVED, Outcome, Target

DIGITS = 4  # more than a measurement's precision
WIDTH = 120


@dataclass(frozen=True)
class Comparison:
    """A problem's rows at one number of threads; on a GPU without a number."""

    problem: Problem
    threads: int | None
    rows: list[Row]
    clocks: Mapping[str, str | None] | None = None  # a GPU's, right after the rows

    @property
    def wrong(self) -> bool:
        return any(row.wrong for row in self.rows)

    @property
    def baseline(self) -> Row:
        measured = [row for row in self.rows if row.samples] or self.rows
        return next((row for row in measured if row.label == self.problem.baseline), measured[0])

    @property
    def heading(self) -> str:
        where = self.problem.device if self.threads is None else count(self.threads)
        return f"{self.problem.title}: {where}"

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes of all targets of the problem's works that apply to this number of threads."""
        problem = self.problem
        held = [t for t in TARGETS if t.work in problem.works and t.threads in (None, self.threads)]
        return [Outcome(t, self.heading, self.reached(t)) for t in held if t.phase in (*problem.phases, SAVED)]

    def reached(self, target: Target) -> float | None:
        rows = {row.label: row for row in self.rows}
        ours, rival = rows.get(target.row), rows.get(target.against)
        if target.phase == SAVED:
            return rival.kept / ours.kept if ours and rival and ours.kept and rival.kept else None
        samples = ours.samples.get(target.phase) if ours else None
        if not samples:
            return None
        if target.at_most:
            return self.problem.rate.of(summarise(samples).median)
        return median_ratio(rival.samples.get(target.phase, ()), samples) if rival else None

    def ratio(self, row: Row, phase: str) -> Statistics:
        """The speed-up over the baseline, from pairs of neighbouring samples."""
        return summarise(paired_ratios(self.baseline.samples[phase], row.samples[phase]))

    def plain(self) -> str:
        rate = self.problem.rate
        headings = ("median", "minimum", "spread", *([rate.heading] if rate else []), "ratio")
        width = 2 + max(len(row.label) for row in self.rows)
        lines = [self.heading, "µs".ljust(width) + "".join(f"{word:>10}" for word in headings)]
        for phase in self.problem.phases:
            lines.append(phase)
            for row in self.rows:
                start = f"  {row.label}".ljust(width) + self.figures(row, phase, len(headings))
                lines.append("  ".join([start, *self.verdicts(phase, row.label)]))
        return "\n".join([*lines, "", *self.remarks()])

    def figures(self, row: Row, phase: str, columns: int) -> str:
        """A row's measurements in one phase; without any, the reason, which is complete only in the first phase."""
        if not row.samples:
            return f"  {row.reason if phase == self.problem.phases[0] else 'not measured'}"
        if phase not in row.samples:
            return f"{'-':>10}" * columns
        found, rate = summarise(row.samples[phase]), self.problem.rate
        cells = [f"{1e6 * seconds:.1f}" for seconds in (found.median, found.minimum, found.spread)]
        cells += [f"{rate.of(found.median):.2f}"] if rate else []
        cells.append(f"{self.ratio(row, phase).median:.2f}×" if phase in self.baseline.samples else "-")
        return "".join(f"{cell:>10}" for cell in cells)

    def verdicts(self, phase: str, label: str) -> list[str]:
        return [o.words for o in self.outcomes if o.target.phase == phase and o.target.row == label]

    def remarks(self) -> Iterator[str]:
        """First calls, errors, and every comparison in which fourfold was slower."""
        if self.baseline is not self.rows[0]:
            yield f"Ratios are to {self.baseline.label}."
        built = [row for row in self.rows if not math.isnan(row.first_call) and not row.graphed]
        first = ", ".join(f"{row.name} {seconds_words(row.first_call)}" for row in built)
        yield f"Cold, compilation included, until everything had run once: {first}."
        worst = max(built, key=lambda row: row.error, default=Row(""))
        ours = [row for row in built if row.name == OURS]
        errors = [f"{row.error:.1e} (tolerance {row.tolerance:.1e})" for row in (worst, *ours)]
        yield f"Largest relative error against float64: {'; fourfold has '.join(errors)}."
        if kept := [f"{row.name} {row.kept / 1e3:,.1f} kB" for row in self.rows if row.kept is not None]:
            beside = "; ".join([", ".join(kept), *self.verdicts(SAVED, OURS)])
            yield f"Kept for the backward beside inputs and parameters: {beside}."
        yield from self.losses() or ["No row beats fourfold in any phase."]

    def losses(self) -> list[str]:
        """A line for each phase in which another row is faster than fourfold's; CUDA graphs are compared separately."""
        lines = [f"{row.label} was not measured: {row.reason}" for row in self.rows if row.own and row.reason]
        for ours in (row for row in self.rows if row.own and row.samples):
            others = [row for row in self.rows if row.graphed == ours.graphed and not row.own]
            for phase, samples in ours.samples.items():
                if found := beaten({row.name: row.samples.get(phase, ()) for row in others}, samples):
                    lines.append(f"{ours.label} loses, {phase}: {', '.join(found)}.")
        return lines

    def as_dictionary(self) -> dict[str, Any]:
        """All measurements, in seconds and bytes; missing values are null."""
        problem = self.problem
        return {
            "title": problem.title,
            "kind": problem.kind or None,
            **({"source": problem.source} if problem.source else {}),
            "sizes": dict(problem.sizes),
            "precision": problem.precision.name,
            "tolerance": problem.tolerance,
            "threads": self.threads,
            "baseline": self.baseline.label,
            "rate": problem.rate and problem.rate.heading,
            "rows": [self.row_as_dictionary(row) for row in self.rows],
            **({} if self.clocks is None else {"clocks": dict(self.clocks)}),
            "targets": [
                {"phase": o.target.phase, "limit": o.target.limit, "rival": o.target.against}
                | {"measured": o.measured, "met": o.met}
                for o in self.outcomes
            ],
        }

    def row_as_dictionary(self, row: Row) -> dict[str, Any]:
        phases = {}
        for phase, samples in row.samples.items():
            phases[phase] = dataclasses.asdict(summarise(samples))
            if self.problem.rate is not None:
                phases[phase]["rate"] = self.problem.rate.of(phases[phase]["median"])
            if phase in self.baseline.samples:
                ratio = dataclasses.asdict(self.ratio(row, phase))
                phases[phase]["ratio"] = {key: ratio[key] for key in ("median", "lower_quartile", "upper_quartile")}
        facts = {"name": row.label, "graphed": row.graphed, "reason": row.reason or None, "wrong": row.wrong}
        numbers = {"relative_error": row.error, "tolerance": row.tolerance, "first_call": row.first_call}
        known = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**facts, **known, "kept": row.kept, "phases": phases}


@dataclass(frozen=True)
class Report:
    """A table whose rows are not compared in turns. cells: the printed text. figures: the same as numbers, for JSON.
    wrong: whether fourfold returned wrong numbers, or none."""

    title: str
    headings: Sequence[str]
    cells: Sequence[Sequence[str]] = ()
    figures: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    outcomes: Sequence[Outcome] = ()
    wrong: bool = False

    def plain(self) -> str:
        table = [self.headings, *self.cells]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.headings))]
        pairs = [list(zip(row, widths, strict=True)) for row in table]
        lines = ["  ".join(f"{cell:{'>' if k else '<'}{w}}" for k, (cell, w) in enumerate(row)) for row in pairs]
        return "\n".join([self.title, *lines, *self.notes])

    def as_dictionary(self) -> dict[str, Any]:
        targets = [outcome.as_dictionary() for outcome in self.outcomes]
        figures = {"notes": list(self.notes), "figures": list(self.figures), "targets": targets}
        return {"title": self.title, **figures, **({"wrong": True} if self.wrong else {})}


def count(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def seconds_words(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def text(contents: dict[str, Any]) -> str:
    return laid_out(rounded(contents), 0) + "\n"


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def laid_out(value: Any, indent: int, row: bool = False) -> str:
    """On one line if it fits, or if it is a table's row or a target; else one item per line."""
    line = json.dumps(value, ensure_ascii=False)
    if row or indent + len(line) <= WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {laid_out(item, indent + 1)}" for key, item in value.items()]
    else:
        items = [laid_out(item, indent + 1, isinstance(item, dict) and "rows" not in item) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(items) + f"\n{' ' * indent}{closing}"
