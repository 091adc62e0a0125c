"""What a benchmark measured as JSON, one row a line: small enough to keep, and to read a change of."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from benchmarks.comparison import Row
from benchmarks.tables import Comparison, judged

DIGITS = 4  # of a figure: more than a measurement has
WIDTH = 120


def as_dictionary(comparison: Comparison) -> dict[str, Any]:
    """Everything measured, in seconds and bytes, ready for JSON; what has no value is null."""
    problem = comparison.problem
    return {
        "title": problem.title,
        "kind": problem.kind or None,
        "sizes": dict(problem.sizes),
        "precision": problem.precision.name,
        "tolerance": problem.tolerance,
        "threads": comparison.threads,
        "baseline": comparison.baseline.label,
        "rate": problem.rate and problem.rate.heading,
        "rows": [row_as_dictionary(comparison, row) for row in comparison.rows],
        **({} if comparison.clocks is None else {"clocks": dict(comparison.clocks)}),
        "targets": [
            {
                "phase": verdict.target.phase,
                "limit": verdict.target.limit,
                "rival": verdict.target.rival,
                "measured": verdict.measured,
                "met": verdict.met,
            }
            for verdict in judged(comparison)
        ],
    }


def row_as_dictionary(comparison: Comparison, row: Row) -> dict[str, Any]:
    phases, rate = {}, comparison.problem.rate
    for phase in row.samples:
        figures = row.statistics(phase)
        phases[phase] = dataclasses.asdict(figures)
        if rate is not None:
            phases[phase]["rate"] = rate.of(figures.median)
        if phase in comparison.baseline.samples:
            ratio = comparison.ratio(row, phase)
            quartiles = {"lower_quartile": ratio.lower_quartile, "upper_quartile": ratio.upper_quartile}
            phases[phase]["ratio"] = {"median": ratio.median, **quartiles}
    return {
        "name": row.label,
        "graphed": row.graphed,
        "reason": row.reason or None,
        "wrong": row.wrong,
        "relative_error": finite(row.error),
        "tolerance": finite(row.tolerance),
        "first_call": finite(row.first_call),
        "kept": row.kept,
        "phases": phases,
    }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def text(contents: dict[str, Any]) -> str:
    return laid_out(rounded(contents), 0) + "\n"


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def laid_out(value: Any, indent: int, row: bool = False) -> str:
    """On one line where it fits or is an item of a list of objects' rows; else an item a line."""
    line = json.dumps(value, ensure_ascii=False)
    if row or indent + len(line) <= WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {laid_out(item, indent + 1)}" for key, item in value.items()]
    else:
        items = [laid_out(item, indent + 1, is_row(item)) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(items) + f"\n{' ' * indent}{closing}"


def is_row(item: Any) -> bool:
    """A table's row or a target: what a change is read by."""
    return isinstance(item, dict) and "rows" not in item
