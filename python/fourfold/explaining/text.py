"""An explanation in 100 columns of plain text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from fourfold.explaining.explanation import Explanation, Graph, Half, Outside, Program, Programs, Stage, plural

COLUMNS = 100
SMALL = 50  # operators, forward and backward; a larger function is summed up
MOST_GRAPHS = 3  # of which a summary has a row each
MORE = "print(explanation.detail()) shows every stage, .save(file) draws; .graphs and .programs are data."
BYTES = (
    "Counted so: each operator, or program, reads each of its inputs and writes each of its results once; a view moves "
    "nothing. Before: the traced operators one by one, of which torch may have one kernel for several, without what is "
    "computed again. After: programs, and what torch runs."
)


def as_text(explanation: Explanation) -> str:
    return detail(explanation) if is_small(explanation) else summary(explanation)


def is_small(explanation: Explanation) -> bool:
    return sum(half.operators for graph in explanation.graphs for half in graph.halves) <= SMALL


def summary(explanation: Explanation) -> str:
    lines = overview(explanation)
    kinds = sorted(explanation.programs, key=lambda kind: kind.bytes or 0, reverse=True)
    if kinds:
        head, *rows = columns(program_rows(kinds), (0, 2))
        lines += ["Programs that move most", head, *few(rows, "kind", 6), ""]
    if explanation.outside:
        lines += ["Left to torch", *left_lines(explanation.outside), ""]
    if explanation.breaks:
        lines += ["Graph breaks", *few([f"  {reason}" for reason in explanation.breaks], "break", 3), ""]
    lines += time_lines(explanation)
    return "\n".join([*map(clipped, lines), MORE])


def few(lines: list[str], what: str, most: int) -> list[str]:
    """The first of a list, and how many there are besides."""
    left = len(lines) - most
    return lines if left <= 0 else [*lines[:most], f"  and {left:,} more {what}{'s' * (left > 1)}"]


def left_lines(outside: Iterable[Outside]) -> list[str]:
    """Each reason with its operators, in two lines at most."""
    reasons: dict[str, list[str]] = {}
    for one in outside:
        reasons.setdefault(one.reason, []).append(f"{one.count:,} {one.operator}")
    wrapped = [flow([f"{reason}: {', '.join(words)}"], "    ") for reason, words in reasons.items()]
    shown = [[*lines[:1], f"{lines[1]} …"] if len(lines) > 2 else lines for lines in wrapped[:4]]
    more = len(wrapped) - len(shown)
    return [line for lines in shown for line in lines] + ([f"  and {plural(more, 'more reason')}"] if more else [])


def clipped(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def detail(explanation: Explanation) -> str:
    lines = overview(explanation)
    for k, graph in enumerate(explanation.graphs):
        lines += graph_lines(explanation, k, graph)
    if explanation.breaks:
        lines += ["Graph breaks", *flow(explanation.breaks), ""]
    lines += ["Bytes", *flow([BYTES]), ""] if explanation.graphs else []
    return "\n".join([*lines, *time_lines(explanation)]).rstrip("\n")


def overview(explanation: Explanation) -> list[str]:
    head = [f"{explanation.name}, compiled by {explanation.versions}", ""]
    if not explanation.graphs:
        return [*head, NOTHING, ""]
    return [*head, *columns(overview_rows(explanation)), *flow([called(explanation.graphs)]), ""]


def overview_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """A row for each forward and backward; of many graphs, for all of them together."""
    graphs, several = explanation.graphs, len(explanation.graphs) > 1
    named = [
        (f"{half.name} {k}" if several else half.name, [half]) for k, one in enumerate(graphs) for half in one.halves
    ]
    if len(graphs) > MOST_GRAPHS:
        together: dict[str, list[Half]] = {}
        for half in (half for one in graphs for half in one.halves):
            together.setdefault(half.name, []).append(half)
        named = [(f"{name}, {plural(len(halves), 'graph')}", halves) for name, halves in together.items()]
    rows = [("", "operators", "fused", "programs", "torch", "bytes before", "after", "")]
    for name, halves in named:
        counts = [sum(one.operators for one in halves), sum(one.fused for one in halves)]
        counts += [sum(len(one.programs) for one in halves), sum(one.count for half in halves for one in half.outside)]
        before, after = added(one.bytes_before for one in halves), added(one.bytes_after for one in halves)
        moved = in_bytes(before), in_bytes(after), ratio(before, after)
        rows.append((name, *(f"{count:,}" for count in counts), *moved))
    return rows


def added(counts: Iterable[int | None]) -> int | None:
    counts = list(counts)
    return None if None in counts else sum(counts)


def program_rows(kinds: Sequence[Programs]) -> list[tuple[str, ...]]:
    rows = [("", "bytes", "operators")]
    for kind in kinds:
        name = f"{kind.count:,} × {kind.half} {kind.names[0]}"
        rows.append((name, in_bytes(kind.bytes), counted(kind.first.operators)))
    return rows


def outside_rows(outside: Sequence[Outside]) -> list[tuple[str, ...]]:
    return [("", "times", "why"), *((one.operator, f"{one.count:,}", one.reason) for one in outside)]


def time_lines(explanation: Explanation) -> list[str]:
    if not explanation.stages:
        return []
    return ["Time", *columns(time_rows(explanation.stages)), *flow([about_time(explanation)]), ""]


NOTHING = "Torch captured no graph: it found nothing to compute, or could not follow the function."


def about_time(explanation: Explanation) -> str:
    again = (
        "one more compilation"
        if explanation.compilations == 1
        else f"the median of {explanation.compilations} more compilations"
    )
    return f"First: in this process, with all that torch loads on its way. Again: {again}; of later calls their median."


def graph_lines(explanation: Explanation, k: int, graph: Graph) -> list[str]:
    number = f" {k}" if len(explanation.graphs) > 1 else ""
    lines = [f"Captured graph{number}", *code(graph.code), ""]
    for half in graph.halves:
        lines += hanging(f"{half.name.capitalize()}{number}: {half.summary}", 2)
        for one, others in once_each(half.programs):
            lines += flow([f"{one.name} does {counted(one.operators)}"])
            lines += flow(
                [f"{len(others) + 1:,} programs are the same: {', '.join([one.name, *others])}"] if others else []
            )
            lines += code(one.text, 4)
        if half.outside:
            lines += [f"  outside programs in the {half.name}", *outside(half)]
        lines.append("")
    return [*lines[:-1], *flow([run_by(graph)]), ""] if number else lines


def once_each(programs: Iterable[Program]) -> list[tuple[Program, list[str]]]:
    """Each program that is not like an earlier one, and the names of those that are like it."""
    found: dict[tuple[object, ...], tuple[Program, list[str]]] = {}
    for one in programs:
        if one.kind in found:
            found[one.kind][1].append(one.name)
        else:
            found[one.kind] = one, []
    return list(found.values())


def called(graphs: Sequence[Graph]) -> str:
    """Of all graphs in one sentence, where they have it in common."""
    sentences = Counter(map(run_by, graphs))
    if len(sentences) == 1:
        return next(iter(sentences))
    torchs = sum(bool(graph.runtime) for graph in graphs)
    return f"{torchs} of {len(graphs)} graphs are called through torch's own runtime, the others through fourfold's."


def run_by(graph: Graph) -> str:
    if graph.runtime:
        return f"Called through torch's own runtime: {graph.runtime}."
    return "Called through fourfold's runtime, one node of autograd in C++."


def outside(half: Half) -> list[str]:
    rows = [(f"{one.count} × {one.operator}", one.reason) for one in half.outside]
    width = min(max(len(name) for name, _ in rows), 40)
    return [line for name, reason in rows for line in hanging(f"    {name.ljust(width)}  {reason}", width + 6)]


def ratio(before: int | None, after: int | None) -> str:
    fewer = before / after if before and after else 0.0
    return f"{fewer:.1f}× fewer" if fewer >= 1.05 else ""


def time_rows(stages: Iterable[Stage]) -> list[tuple[str, ...]]:
    return [("", "first", "again"), *((one.name, in_seconds(one.first), in_seconds(one.again)) for one in stages)]


def columns(rows: Sequence[tuple[str, ...]], words: Iterable[int] = (0,)) -> list[str]:
    """words: the columns that stand to the left, the others to the right."""
    words = set(words)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if k in words else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'   '.join(cells)}".rstrip())
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


def flow(paragraphs: Iterable[str], further: str = "  ") -> list[str]:
    """Each paragraph filled; further: what its lines but the first begin with."""
    indent = {"initial_indent": "  ", "subsequent_indent": further}
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
