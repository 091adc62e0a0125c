"""An explanation in 100 columns of plain text, and the tables that the page shows too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from fourfold.explaining.data import Graph, Half, Kept, Outside, Programs, Scan, ScanHalf, Stage, grouped, plural

COLUMNS = 100
MOST_GRAPHS = 3  # with separate rows in the first table
MOST_REASONS = 4  # in a summary
NOTHING = "Torch captured no graph: it found nothing to compute, or could not follow the function."
APART = (
    "fourfold.scan compiles its step itself, so the operators before and after a scan are separate graphs. With "
    "torch.compile(..., fullgraph=True) they and the scan are one graph."
)
BYTES = (
    "Bytes: each operator or program reads each of its inputs and writes each of its results once; views move nothing. "
    "Before: the traced operators one by one, without recomputation, though torch may have one kernel for several. "
    "After: programs, and the operators that torch runs."
)
PLACES = {
    "before": "before the loop, for all steps at once",
    "inside": "in the loop",
    "after": "after the loop, for all steps at once",
}
WAYS = {
    "nest": "as one loop nest over the steps, with the states in registers",
    "stages": "in stages, which C++ runs one after another in each step",
    "steps": "step by step: C++ runs the graph of a step for each",
    "python": "step by step in Python",
}
SHORT = {"nest": "one loop nest", "steps": "step by step", "python": "in Python"}
WHY_NOT = {"cpp": "Not in C++", "nest": "Not as one loop nest", "stages": "Not in stages"}
MOST_SCANS = 6  # rows of forwards and backwards in a summary
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


def outside_lines(outside: Iterable[Outside], indent: str = "    ") -> list[str]:
    return paired([(f"{one.count} × {one.operator}", one.reason) for one in outside], indent)


def paired(pairs: Sequence[tuple[str, str]], indent: str) -> list[str]:
    """Two columns of words."""
    width = min(max(len(name) for name, _ in pairs), 40)
    lines = (flow(f"{name.ljust(width)}  {words}", f"{indent}{' ' * (width + 2)}", indent) for name, words in pairs)
    return [line for part in lines for line in part]


def scan_title(scan: Scan, number: int) -> str:
    place = f" ({scan.place})" if scan.place else ""
    order = ", the last one first" if scan.reverse else ""
    calls = f", {scan.count:,} calls" if scan.count > 1 else ""
    return f"Scan {number}: {scan.step}{place}, {plural(scan.steps, 'step')}{order}{calls}"


def input_rows(scan: Scan) -> list[Row]:
    """The states, the xs and what the step closes over."""
    parts = (("state", scan.states), ("x", scan.xs), ("from outside", scan.closures))
    rows = [(one.name, what, one.value, one.own) for what, every in parts for one in every]
    return [("", "", "one step's", "in programs" if any(row[3] for row in rows) else ""), *rows]


def not_compiled(scan: Scan) -> str:
    """Why a scan has neither a forward nor a backward."""
    if scan.reason:
        return f"The steps run in Python, one by one: {scan.reason}."
    return "It raised an error." if scan.steps else "There are no steps."


def operators_lines(half: ScanHalf, place: str, indent: str = "      ") -> list[str]:
    found = getattr(half, place)
    if not found:
        return [f"{indent}nothing"]
    return paired([(one.counted, one.source or "no line of its own") for one in found], indent)


def place_rows(half: ScanHalf) -> list[Row]:
    found = [(words, one.counted, one.source) for place, words in PLACES.items() for one in getattr(half, place)]
    return [("", "operators", ""), *found]


def scan_rows(scans: Sequence[Scan]) -> list[Row]:
    """A row for each forward and backward: operators by place, how the loop runs, and what is kept."""
    rows = [("", "before", "in the loop", "after", "kept", "the loop runs")]
    for number, scan in enumerate(scans):
        name = f"scan {number}, {scan.step}"
        if not scan.halves:
            rows.append((name, "", "", "", "", f"in Python: {scan.reason}" if scan.reason else not_compiled(scan)))
        for half in scan.halves:
            counts = (f"{sum(len(one.names) for one in getattr(half, place)):,}" for place in PLACES)
            kept = in_bytes(half.kept_bytes) if half is scan.forward and scan.backward else ""
            rows.append((f"{name}: {half.name}", *counts, kept, shortly(half)))
    return rows


def shortly(half: ScanHalf) -> str:
    if half.loop is None:
        return "no loop"
    return plural(len(half.loop.stages), "stage") + " a step" if half.loop.way == "stages" else SHORT[half.loop.way]


def how_it_runs(half: ScanHalf) -> str:
    """The loop of a forward or a backward, in a few sentences."""
    if half.loop is None:
        return "Nothing runs in a loop."
    loop, found = half.loop, f"The loop runs {WAYS[half.loop.way]}"
    if loop.way == "stages":
        found += f": {', '.join(loop.stages)}"
    if loop.until:
        until = f"in stages: {', '.join(loop.stages)}" if loop.until == "stages" else "step by step"
        found += f", from the second call on; until then {until}"
    reasons = {} if loop.way == "nest" else loop.reasons
    words = [f"{found}.", *(f"{WHY_NOT[way]}: {reason}." for way, reason in reasons.items())]
    if half.trails:
        words.append(f"The values of {' and '.join(half.trails)} in all steps are stored.")
    return " ".join(words)


def about_kept(scan: Scan) -> str:
    """What the forward keeps, in one sentence."""
    steps = plural(scan.steps, "step")
    hooks = "; hooks, such as those of torch.utils.checkpoint, get it" if scan.has_hooks else ""
    inputs = "; inputs take no more memory" if any(one.note == "an input" for one in scan.forward.kept) else ""
    return f"Kept for the backward: {in_bytes(scan.forward.kept_bytes)} in {steps}{inputs}{hooks}."


def kept_rows(kept: Iterable[Kept]) -> list[Row]:
    rows = ((one.name, one.value, in_bytes(one.bytes) if one.bytes != 0 else "", one.note) for one in kept)
    return [("", "one step's", "bytes", ""), *rows]


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
