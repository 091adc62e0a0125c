"""An explanation in 100 columns of plain text, and the tables that its page shows too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from fourfold.explaining.data import Graph, Half, Outside, Programs, Stage, grouped, plural

COLUMNS = 100
MOST_GRAPHS = 3  # with rows of their own in the first table
MOST_REASONS = 4  # in a summary
NOTHING = "Torch captured no graph: it found nothing to compute, or could not follow the function."
BYTES = (
    "Bytes: each operator or program reads each of its inputs and writes each of its results once; views move nothing. "
    "Before: the traced operators one by one, without recomputation, though torch may have one kernel for several. "
    "After: programs, and the operators that torch runs."
)
Row = tuple[str, ...]


def overview_rows(graphs: Sequence[Graph]) -> list[Row]:
    """A row for each forward and backward; many graphs share rows."""
    count = len(graphs)
    words = [f" {k}" if count <= MOST_GRAPHS else f", {count} graphs" for k in range(count)] if count > 1 else [""]
    named = [(half.name + words[k], half) for k, graph in enumerate(graphs) for half in graph.halves]
    rows = [(name, *counts([half for _, half in group])) for name, group in grouped(named, lambda one: one[0]).items()]
    return [("", "operators", "fused", "programs", "torch", "bytes before", "after", ""), *rows]


def counts(halves: Sequence[Half]) -> Row:
    numbers = zip(*((half.operators, half.fused, len(half.programs), half.left) for half in halves), strict=True)
    sizes = zip(*((half.bytes_before, half.bytes_after) for half in halves), strict=True)
    before, after = (None if None in column else sum(column) for column in sizes)
    fewer = before / after if before and after else 0.0
    ratio = f"{fewer:.1f}× fewer" if fewer >= 1.05 else ""
    return *(f"{sum(column):,}" for column in numbers), in_bytes(before), in_bytes(after), ratio


def program_rows(kinds: Iterable[Programs]) -> list[Row]:
    """The kinds by decreasing bytes."""
    kinds = sorted(kinds, key=lambda kind: kind.bytes or 0, reverse=True)
    rows = ((f"{one.count:,} × {one.half} {one.names[0]}", in_bytes(one.bytes), one.first.counted) for one in kinds)
    return [("", "bytes", "operators"), *rows]


def outside_rows(outside: Iterable[Outside]) -> list[Row]:
    return [("", "times", "why"), *((one.operator, f"{one.count:,}", one.reason) for one in outside)]


def time_rows(stages: Iterable[Stage]) -> list[Row]:
    return [("", "first", "again"), *((one.name, in_seconds(one.first), in_seconds(one.again)) for one in stages)]


def about_time(compilations: int) -> str:
    again = "one more compilation" if compilations == 1 else f"the median of {compilations} more compilations"
    return f"First: in this process, with all that torch loads on its way. Again: {again}; of later calls their median."


def called(graphs: Sequence[Graph]) -> str:
    """Which runtime calls the graphs, in one sentence."""
    if len(set(map(run_by, graphs))) == 1:
        return run_by(graphs[0])
    count = sum(bool(graph.runtime) for graph in graphs)
    return f"{count} of {len(graphs)} graphs are called through torch's own runtime, the others through fourfold's."


def run_by(graph: Graph) -> str:
    if graph.runtime:
        return f"Called through torch's own runtime: {graph.runtime}."
    return "Called through fourfold's runtime, one node of autograd in C++."


def reasons(outside: Iterable[Outside]) -> list[str]:
    """Each reason with its operators, in two lines at most."""
    found = grouped(outside, lambda one: one.reason)
    words = {reason: ", ".join(f"{one.count:,} {one.operator}" for one in group) for reason, group in found.items()}
    texts = [flow(f"{reason}: {operators}", "    ") for reason, operators in words.items()]
    short = ["\n".join(lines if len(lines) <= 2 else [lines[0], f"{lines[1]} …"]) for lines in texts]
    return few(short, "reason", MOST_REASONS)


def outside_lines(outside: Iterable[Outside]) -> list[str]:
    names = {one: f"{one.count} × {one.operator}" for one in outside}
    width = min(max(map(len, names.values())), 40)
    lines = (flow(f"{name.ljust(width)}  {one.reason}", " " * (width + 6), "    ") for one, name in names.items())
    return [line for part in lines for line in part]


def few(lines: Sequence[str], what: str, most: int) -> list[str]:
    """The first lines, and a line with the number of the others."""
    more = len(lines) - most
    return [*lines[:most], *([f"  and {plural(more, f'more {what}')}"] if more > 0 else [])]


def columns(rows: Sequence[Row], words: Iterable[int] = (0,)) -> list[str]:
    """Aligns rows in columns. words: the left-aligned columns; the others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([f"{cell:{'<' if k in words else '>'}{widths[k]}}" for k, cell in enumerate(row)] for row in rows)
    return [f"  {'   '.join(row)}".rstrip() for row in cells]


def code(text: str, indent: str = "  ") -> list[str]:
    """Lines of code; long lines continue with further indentation."""
    lines = [indent + line for line in text.splitlines()]
    deep = [len(line) - len(line.lstrip()) for line in lines]
    return [part for line, own in zip(lines, deep, strict=True) for part in flow(line, " " * min(own + 4, 50), "")]


def flow(text: str, further: str = "  ", start: str = "  ") -> list[str]:
    """Wraps a paragraph. start, further: the indent of the first and of the other lines."""
    return textwrap.wrap(text, COLUMNS, break_on_hyphens=False, initial_indent=start, subsequent_indent=further)


def in_bytes(count: int | None) -> str:
    if count is None:
        return "depends on data"
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 4)
    return f"{count / 1000**power:.1f} {'BkMGT'[power]}B"


def in_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    factor, unit = next(((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if seconds * f >= 1), (1e6, "µs"))
    return f"{seconds * factor:.3g} {unit}"
