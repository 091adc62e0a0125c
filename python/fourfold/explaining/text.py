"""An explanation in 100 columns of plain text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from fourfold.explaining.explanation import Explanation, Graph, Half, Stage

COLUMNS = 100
BYTES = (
    "Counted so: each operator, or program, reads each of its inputs and writes each of its results once; a view moves "
    "nothing. Before: the traced operators one by one, of which torch may have one kernel for several, without what is "
    "computed again. After: programs, and what torch runs."
)


def as_text(explanation: Explanation) -> str:
    lines = [f"{explanation.name}, compiled by {explanation.versions}", ""]
    for k, graph in enumerate(explanation.graphs):
        lines += graph_lines(graph, f" {k}" if len(explanation.graphs) > 1 else "")
    if not explanation.graphs:
        lines += [NOTHING, ""]
    if explanation.breaks:
        lines += ["Graph breaks", *flow(explanation.breaks), ""]
    if explanation.graphs:
        lines += ["Bytes moved", *columns(byte_rows(explanation)), *flow([BYTES]), ""]
    lines += ["Time", *columns(time_rows(explanation.stages)), *flow([about_time(explanation)])]
    return "\n".join(lines)


NOTHING = "Torch captured no graph: it found nothing to compute, or could not follow the function."


def about_time(explanation: Explanation) -> str:
    again = (
        "one more compilation"
        if explanation.compilations == 1
        else f"the median of {explanation.compilations} more compilations"
    )
    return f"First: in this process, with all that torch loads on its way. Again: {again}; of later calls their median."


def graph_lines(graph: Graph, number: str) -> list[str]:
    lines = [f"Captured graph{number}", *code(graph.code), ""]
    for half in graph.halves:
        lines += hanging(f"{half.name.capitalize()}{number}: {half.summary}", 2)
        for program in half.programs:
            lines += flow([f"{program.name} does {counted(program.operators)}"])
            lines += code(program.text, 4)
            if program.cpp is not None:
                lines += flow([f"{program.name} as C++"])
                lines += code(program.cpp, 4)
        if half.outside:
            lines += [f"  outside programs in the {half.name}", *outside(half)]
        lines.append("")
    return [*lines[:-1], *flow([run_by(graph)]), ""]


def run_by(graph: Graph) -> str:
    if graph.runtime:
        return f"Called through torch's own runtime: {graph.runtime}."
    return "Called through fourfold's runtime, one node of autograd in C++."


def outside(half: Half) -> list[str]:
    rows = [(f"{one.count} × {one.operator}", one.reason) for one in half.outside]
    width = min(max(len(name) for name, _ in rows), 40)
    return [line for name, reason in rows for line in hanging(f"    {name.ljust(width)}  {reason}", width + 6)]


def byte_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "before", "after", "")]
    for k, graph in enumerate(explanation.graphs):
        number = f" {k}" if len(explanation.graphs) > 1 else ""
        for half in graph.halves:
            rows.append((f"{half.name}{number}", in_bytes(half.bytes_before), in_bytes(half.bytes_after), ratio(half)))
    return rows


def ratio(half: Half) -> str:
    fewer = half.bytes_before / half.bytes_after if half.bytes_before and half.bytes_after else 0.0
    return f"{fewer:.1f}× fewer" if fewer >= 1.05 else ""


def time_rows(stages: Iterable[Stage]) -> list[tuple[str, ...]]:
    return [("", "first", "again"), *((one.name, in_seconds(one.first), in_seconds(one.again)) for one in stages)]


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width + 3) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"  {row[0].ljust(widths[0])}{''.join(cells)}".rstrip())
    return lines


def code(text: str, indent: int = 2) -> list[str]:
    return [part for line in text.rstrip("\n").splitlines() for part in hanging(" " * indent + line)]


def hanging(line: str, more: int | None = None) -> list[str]:
    """A line, and where it is too long others below, further in."""
    if len(line) <= COLUMNS:
        return [line.rstrip()]
    own = len(line) - len(line.lstrip()) + 4 if more is None else more
    return textwrap.wrap(
        line,
        COLUMNS,
        subsequent_indent=" " * min(own, COLUMNS // 2),
        drop_whitespace=True,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def flow(paragraphs: Iterable[str]) -> list[str]:
    """Each paragraph filled."""
    indent = {"initial_indent": "  ", "subsequent_indent": "  "}
    return [line for one in paragraphs for line in textwrap.wrap(one, COLUMNS, break_on_hyphens=False, **indent)]


def counted(operators: Iterable[str]) -> str:
    """sin, 2 pow, cos, add"""
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in Counter(operators).items())


def in_bytes(count: int | None) -> str:
    if count is None:
        return "depends on data"
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def in_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
