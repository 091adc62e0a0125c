"""An explanation in 100 columns of plain text, and the tables that its page shows too."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from fourfold.explaining.data import Box, Findings, Graph, Half, Outside, Program, plural

COLUMNS = 100
SMALL = 50  # operators, forward and backward; a larger function is summed up
MOST_GRAPHS = 3  # of which the first table has a row each
MORE = "print(explanation.detail()) shows every stage, .save(file) draws; .graphs and .programs are data."
NOTHING = "Torch captured no graph: it found nothing to compute, or could not follow the function."
BYTES = (
    "Bytes: each operator or program reads each of its inputs and writes each of its results once; views move nothing. "
    "Before: the traced operators one by one, without recomputation, though torch may have one kernel for several. "
    "After: programs, and the operators that torch runs."
)


def is_small(explanation: Findings) -> bool:
    return sum(half.operators for graph in explanation.graphs for half in graph.halves) <= SMALL


def summary(explanation: Findings) -> str:
    lines = overview(explanation)
    if explanation.programs:
        head, *rows = columns(program_rows(explanation), (0, 2))
        lines += ["Programs that move most", head, *few(rows, "kind", 6), ""]
    if explanation.outside:
        lines += ["Left to torch", *reasons(explanation.outside), ""]
    if explanation.breaks:
        lines += ["Graph breaks", *few([f"  {reason}" for reason in explanation.breaks], "break", 3), ""]
    lines += [*time_lines(explanation), MORE]
    return "\n".join(line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…" for line in lines)


def few(lines: list[str], what: str, most: int) -> list[str]:
    """The first of a list, and how many there are besides."""
    return lines[:most] + ([f"  and {plural(len(lines) - most, f'more {what}')}"] if len(lines) > most else [])


def reasons(outside: Iterable[Outside]) -> list[str]:
    """Each reason with its operators, in two lines at most."""
    found: dict[str, list[str]] = {}
    for one in outside:
        found.setdefault(one.reason, []).append(f"{one.count:,} {one.operator}")
    texts = [flow(f"{reason}: {', '.join(words)}", "    ") for reason, words in found.items()]
    shown = [[*lines[:1], f"{lines[1]} …"] if len(lines) > 2 else lines for lines in texts[:4]]
    return sum(shown, []) + ([f"  and {plural(len(texts) - 4, 'more reason')}"] if len(texts) > 4 else [])


def detail(explanation: Findings) -> str:
    lines = overview(explanation)
    for k, graph in enumerate(explanation.graphs):
        number = f" {k}" if len(explanation.graphs) > 1 else ""
        lines += [f"Captured graph{number}", *code(graph.code), ""]
        for half in graph.halves:
            lines += half_lines(half, number)
        lines += [*flow(run_by(graph)), ""] if number else []
    if explanation.breaks:
        lines += ["Graph breaks", *(line for one in explanation.breaks for line in flow(one)), ""]
    lines += [*flow(BYTES, start=""), ""] if explanation.graphs else []
    return "\n".join([*lines, *time_lines(explanation)]).rstrip("\n")


def overview(explanation: Findings) -> list[str]:
    head = [f"{explanation.name}, compiled by {explanation.versions}", ""]
    if not explanation.graphs:
        return [*head, NOTHING, ""]
    return [*head, *columns(overview_rows(explanation)), *flow(called(explanation.graphs)), ""]


def half_lines(half: Half, number: str) -> list[str]:
    lines = wrapped(f"{half.name.capitalize()}{number}: {half.summary}", 2)
    for one, others in once_each(half.programs):
        lines += flow(f"{one.name} does {one.counted}")
        lines += flow(f"{len(others) + 1:,} programs are the same: {', '.join([one.name, *others])}") if others else []
        lines += code(one.text, "    ")
    if half.outside:
        lines.append(f"  outside programs in the {half.name}")
        names = [f"{one.count} × {one.operator}" for one in half.outside]
        width = min(max(map(len, names)), 40)
        for name, one in zip(names, half.outside, strict=True):
            lines += wrapped(f"    {name.ljust(width)}  {one.reason}", width + 6)
    return [*lines, ""]


def once_each(programs: Iterable[Program]) -> list[tuple[Program, list[str]]]:
    """Each program that is not like an earlier one, and the names of those that are like it."""
    found: dict[tuple[object, ...], tuple[Program, list[str]]] = {}
    for one in programs:
        found.setdefault(one.kind, (one, []))[1].append(one.name)
    return [(one, names[1:]) for one, names in found.values()]


def overview_rows(explanation: Findings) -> list[tuple[str, ...]]:
    """A row for each forward and backward; of many graphs, for all of them together."""
    rows: dict[str, list[Half]] = {}
    count = len(explanation.graphs)
    for k, graph in enumerate(explanation.graphs):
        for half in graph.halves:
            words = "" if count == 1 else f" {k}" if count <= MOST_GRAPHS else f", {count} graphs"
            rows.setdefault(half.name + words, []).append(half)
    return [
        ("", "operators", "fused", "programs", "torch", "bytes before", "after", ""),
        *((name, *counts(halves)) for name, halves in rows.items()),
    ]


def counts(halves: Sequence[Half]) -> tuple[str, ...]:
    before, after = (added(h.bytes_before for h in halves), added(h.bytes_after for h in halves))
    fewer = before / after if before and after else 0.0
    numbers = [sum(half.operators for half in halves), sum(half.fused for half in halves)]
    numbers += [sum(len(half.programs) for half in halves), sum(one.count for half in halves for one in half.outside)]
    ratio = f"{fewer:.1f}× fewer" if fewer >= 1.05 else ""
    return *(f"{number:,}" for number in numbers), in_bytes(before), in_bytes(after), ratio


def added(counts: Iterable[int | None]) -> int | None:
    counts = list(counts)
    return None if None in counts else sum(counts)


def program_rows(explanation: Findings) -> list[tuple[str, ...]]:
    """Those that move most first."""
    kinds = sorted(explanation.programs, key=lambda kind: kind.bytes or 0, reverse=True)
    rows = [
        (f"{kind.count:,} × {kind.half} {kind.names[0]}", in_bytes(kind.bytes), kind.first.counted) for kind in kinds
    ]
    return [("", "bytes", "operators"), *rows]


def outside_rows(outside: Sequence[Outside]) -> list[tuple[str, ...]]:
    return [("", "times", "why"), *((one.operator, f"{one.count:,}", one.reason) for one in outside)]


def time_rows(explanation: Findings) -> list[tuple[str, ...]]:
    times = ((one.name, in_seconds(one.first), in_seconds(one.again)) for one in explanation.stages)
    return [("", "first", "again"), *times]


def time_lines(explanation: Findings) -> list[str]:
    if not explanation.stages:
        return []
    return ["Time", *columns(time_rows(explanation)), *flow(about_time(explanation)), ""]


def about_time(explanation: Findings) -> str:
    count = explanation.compilations
    again = "one more compilation" if count == 1 else f"the median of {count} more compilations"
    return f"First: in this process, with all that torch loads on its way. Again: {again}; of later calls their median."


def called(graphs: Sequence[Graph]) -> str:
    """Of all graphs in one sentence, where they have it in common."""
    sentences = Counter(map(run_by, graphs))
    if len(sentences) == 1:
        return next(iter(sentences))
    count = sum(bool(graph.runtime) for graph in graphs)
    return f"{count} of {len(graphs)} graphs are called through torch's own runtime, the others through fourfold's."


def run_by(graph: Graph) -> str:
    if graph.runtime:
        return f"Called through torch's own runtime: {graph.runtime}."
    return "Called through fourfold's runtime, one node of autograd in C++."


def box_lines(boxes: Iterable[Box]) -> list[str]:
    """A graph without a picture."""
    lines = []
    for box in boxes:
        reads = f"  <- {', '.join(box.reads)}" if box.reads else ""
        lines += [
            f"{box.name}: {', '.join(filter(None, box.lines))}{reads}",
            *(f"    {one}" for one in box_lines(box.inside)),
        ]
    return lines


def columns(rows: Sequence[tuple[str, ...]], words: Iterable[int] = (0,)) -> list[str]:
    """words: the columns that stand to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [
        [cell.ljust(widths[k]) if k in words else cell.rjust(widths[k]) for k, cell in enumerate(row)] for row in rows
    ]
    return [f"  {'   '.join(row)}".rstrip() for row in cells]


def code(text: str, indent: str = "  ") -> list[str]:
    lines = (indent + line for line in text.rstrip("\n").splitlines())
    return [part for line in lines for part in wrapped(line, len(line) - len(line.lstrip()) + 4)]


def wrapped(line: str, more: int) -> list[str]:
    """A line, and where it is too long others below, further in."""
    settings = {"subsequent_indent": " " * min(more, COLUMNS // 2), "break_on_hyphens": False}
    return textwrap.wrap(line, COLUMNS, replace_whitespace=False, **settings) or [""]


def flow(text: str, further: str = "  ", start: str = "  ") -> list[str]:
    """A paragraph filled; further: what its lines but the first begin with."""
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
