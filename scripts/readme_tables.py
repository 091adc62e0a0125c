"""Writes the benchmark tables of README and the pages from the measurements in docs/benchmarks.

    python -m benchmarks all --json docs/benchmarks/zen3.json --plots docs/benchmarks
    python scripts/readme_tables.py            # with --check, only report whether they are up to date

A table is written between a first line and `<!-- end -->`. The first line selects it:

    <!-- docs/benchmarks/cell.json -->              every table of the file
    <!-- targets of docs/benchmarks/zen3.json -->   one table, a row for each target
    <!-- recurrences of docs/benchmarks/… -->       one table, a row for each recurrence
    <!-- files of docs/benchmarks/… -->             one table of models in files
    <!-- libraries of docs/benchmarks/… -->         one table of other libraries
    <!-- ppo of docs/benchmarks/… -->               one table of recurrent PPO for each number of threads
    <!-- docs/benchmarks/gpu -->                    every table that scripts/check_gpu.py measured
    <!-- figures -->                                README's rows, FIGURES in scripts/readme_figures.py
    <!-- aims -->, <!-- gallery -->                 the start page's rows and cards, from there too
    <!-- suites -->                                 the list of suites, from benchmarks/suites.py

A missing file or folder leaves an empty table, except for the first kind and for figures.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("benchmarks", "files", "index", "libraries", "models", "scan")),
)
OURS = "fourfold"

OF_EACH_MODEL = ("plain PyTorch", "fourfold.optimize", 'torch.compile(backend="fourfold")', "fourfold.load")

sys.path.append(str(ROOT))

from benchmarks.suites import SUITES  # noqa: E402
from benchmarks.targets import BOTH, NO_GRAD  # noqa: E402
from readme_figures import FIGURES, aims, figure, gallery, read  # noqa: E402


def table(measured: dict[str, Any]) -> str:
    """One table for each size, precision and number of threads: median µs, and the speed-up over the baseline."""
    results = measured["results"]
    parts = [text for result in results for text in (one_table if "rows" in result else slower_points)(result)]
    return "\n".join([*parts, origin(measured["environment"])])


def one_table(result: dict[str, Any]) -> list[str]:
    phases = list(dict.fromkeys(phase for row in result["rows"] for phase in row["phases"]))
    threads = result["threads"]
    where = "" if threads is None else f", {threads} thread{'s' if threads > 1 else ''}"
    rate = f"; {result['rate']}" if result.get("rate") else ""
    return [
        f"{result['title']}{where}:\n",
        f"| µs (times as fast as {result.get('baseline', 'plain PyTorch')}{rate}) | {' | '.join(phases)} |",
        "|---|" + "---|" * len(phases),
        *(line(row, phases) for row in result["rows"]),
        *map(target, result.get("targets", ())),
        "",
    ]


def slower_points(result: dict[str, Any]) -> list[str]:
    """The random points of ``sweep`` at which fourfold is slower."""
    slower = sorted((point for point in result["figures"] if point["ratio"] < 1), key=lambda point: point["ratio"])
    return [
        f"{result['title']}: {' '.join(result['notes'])}\n",
        "| slower than torch.nn | CUDA graph | phase | torch.nn µs | fourfold µs | ratio |",
        "|---|---|---|---:|---:|---:|",
        *map(point_line, slower),
        "",
    ]


def point_line(point: dict[str, Any]) -> str:
    sizes = "T{time} B{batch_size} I{input_size} H{hidden_size}".format(**point)
    what = f"{point['layer']} {sizes} {point['dtype']}{', bidirectional' if point['bidirectional'] else ''}"
    phase, graph = BOTH if point["training"] else NO_GRAD, "yes" if point["graphed"] else "no"
    times = f"{1e6 * point['torch_seconds']:,.0f} | {1e6 * point['seconds']:,.0f}"
    return f"| {what} | {graph} | {phase} | {times} | {point['ratio']:.2f}× |"


def target_table(measured: dict[str, Any]) -> str:
    """Every target with its result, missed ones in bold."""
    met = sum(target["met"] is True for target in measured["targets"])
    return "\n".join(
        [
            f"{met} of {len(measured['targets'])} targets reached. Rows that cover several tables show the worst.\n",
            "| work | against | measured | target | |",
            "|---|---|---|---|---|",
            *map(target_line, measured["targets"]),
            "",
            origin(measured["environment"]),
        ]
    )


def target_line(target: dict[str, Any]) -> str:
    verdict = target["verdict"] if target["met"] is not False else f"**{target['verdict']}**"
    return f"| {target['work']} | {target['against']} | {target['shown']} | {target['aim']} | {verdict} |"


def figures() -> str:
    """README's rows, then the machine of each file."""
    contents = {file: read(ROOT / file) for file in dict.fromkeys(file for _, file, _, _ in FIGURES)}
    rows = [f"| {label} | {rival} | {figure(contents[file], work, rival)} |" for label, file, work, rival in FIGURES]
    origins = [
        f"- [{Path(file).stem}]({file}): {origin(each['environment'])}".rstrip() for file, each in contents.items()
    ]
    return "\n".join(["| work | against | times as fast |", "|---|---|---|", *rows, "", *origins, ""])


def recurrence_table(measured: dict[str, Any]) -> str:
    """Every recurrence on one thread, with its source."""
    phases = ("forward, no grad", "forward+backward")
    lines = [
        f"| {result['title'].removesuffix(', float32')} | {result['source']} | "
        + " | ".join(ratio(result, phase) for phase in phases)
        + " |"
        for result in measured["results"]
        if result.get("source") and result["threads"] == 1
    ]
    head = ["| step and sizes | from | forward | trained |", "|---|---|---|---|"]
    return "\n".join([*head, *lines, "", origin(measured["environment"])])


def ratio(result: dict[str, Any], phase: str) -> str:
    """The speed-up of fourfold's row over a Python loop."""
    rows = {row["name"]: row["phases"].get(phase) for row in result["rows"]}
    ours, plain = rows.get(OURS), rows.get("plain PyTorch")
    if not ours:
        return "-"
    milliseconds = f"{1e3 * ours['median']:.2f} ms"
    return f"{milliseconds}, {plain['median'] / ours['median']:.1f}×" if plain else milliseconds


def suite_table() -> str:
    rows = [f"| `{suite.name}` | {suite.times} | {suite.against} |" for suite in SUITES]
    return "\n".join(["| name | what it times | against |", "|---|---|---|", *rows, ""])


def origin(facts: dict[str, Any], samples: str = "") -> str:
    """The machine, and how it was measured."""
    noisy = " The machine was busy: use the ratios, not the times." if facts["noisy"] else ""
    trial = " Too few samples to quote." if facts["trial"] else ""
    machine = facts["processor"]
    samples = samples or f"{facts['repeats']} interleaved samples"
    if card := facts.get("gpu"):
        machine = f"{card['name']}, driver {card['driver'] or 'unknown'}, CUDA {card['cuda']}, cuDNN {card['cudnn']}"
    return (
        f"Medians of {samples}; {machine}; torch {facts['torch']}, fourfold "
        f"{facts['fourfold']}; load average {load_words(facts)}.{noisy}{trial}\n"
    )


def load_words(facts: dict[str, Any]) -> str:
    return "unknown" if facts["load_average"] is None else f"{facts['load_average']:.2f}"


def line(row: dict[str, Any], phases: list[str]) -> str:
    name = in_bold(row["name"])
    if not row["phases"]:
        return f"| {name} | {row['reason']} |" + " |" * (len(phases) - 1)
    return f"| {name} | {' | '.join(cell(row['phases'].get(phase)) for phase in phases)} |"


def in_bold(name: str) -> str:
    """fourfold's rows stand out."""
    return f"**{name}**" if name.split(",")[0] == OURS else name


def cell(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    beside = [f"{figures['ratio']['median']:.2f}×"] if "ratio" in figures else []
    beside += [f"{figures['rate']:.2f}"] if "rate" in figures else []
    return f"{1e6 * figures['median']:.1f}" + (f" ({'; '.join(beside)})" if beside else "")


def target(judged: dict[str, Any]) -> str:
    """A line under the table for a missed target, which the table alone wouldn't show."""
    aim = f"at least {judged['limit']:.2f}× {judged['rival']}" if judged["rival"] else f"at most {judged['limit']:g}"
    found = {None: "not measured", True: "met", False: "missed"}[judged["met"]]
    reached = "" if judged["measured"] is None else f" ({judged['measured']:.2f})"
    return f"\nTarget, {judged['phase']}: {aim}: {found}{reached}."


def files_table(contents: dict[str, Any]) -> str:
    """Saved models: each way's times and size."""
    headings = ("", "save, s", "MB", "load, ms", "first call, ms", "both, ms", "warm call, ms", "needs")
    lines = [f"| {' | '.join(headings)} |", "|---" + "|---:" * 6 + "|---|"]
    for report in (each for each in contents["results"] if each["suite"] == "files"):
        lines.append(f"| **{report['title'].partition(': saved')[0]}** |" + " |" * 7)
        for row in report["figures"]:
            parts = [f"{row['save']:.2f}", f"{row['size']:.1f}"]
            parts += [f"{row[part]:.1f}" for part in ("load", "first call", "load and first call")]
            lines.append(f"| {' | '.join([row['way'], *parts, format(row['warm call'], '.3f'), row['needs']])} |")
    lines.append("\n" + origin(contents["environment"], samples="3 fresh processes, one thread"))
    return "\n".join(lines)


def ppo_table(contents: dict[str, Any]) -> str:
    """Frames per second and an iteration's times, for each number of threads."""
    lines: list[str] = []
    for report in (each for each in contents["results"] if each["title"].startswith("Recurrent PPO")):
        lines += [f"{report['title']}:\n", "| | frames per second | times as fast | collecting, ms | learning, ms |"]
        lines.append("|---" + "|---:" * 4 + "|")
        for row in report["figures"]:
            parts = [in_bold(row["way"]), f"{row['frames_per_second']:,.0f}", f"{row['ratio']:.2f}×"]
            parts += [f"{1e3 * row[part]:.1f}" for part in ("collecting", "learning")]
            lines.append(f"| {' | '.join(parts)} |")
        lines.append("")
    lines.append(origin(contents["environment"], samples="15 iterations in turns"))
    return "\n".join(lines)


def classes_table(contents: dict[str, Any]) -> str:
    """A row for each class of random functions: the median, how many rows are slow, and the worst one."""
    lines = [
        "| class | rows | times Inductor (target) | below 0.95, 0.8 | times eager; below 0.95 | worst |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for report in contents["results"]:
        rows = [row for row in report["figures"] if row["phase"] and not math.isnan(row["of_inductor"])]
        of_inductor, of_eager = ([row[name] for row in rows] for name in ("of_inductor", "of_eager"))
        worst = min(rows, key=lambda row: row["of_inductor"])
        what = f"{worst['words']}, {worst['elements']:,} elements, {worst['dtype']}, {worst['phase']}"
        (aim,) = report["targets"]
        slow = f"{sum(r < 0.95 for r in of_inductor)}, {sum(r < 0.8 for r in of_inductor)}"
        eager = f"{statistics.median(of_eager):.2f}×; {sum(r < 0.95 for r in of_eager)}"
        median = f"{statistics.median(of_inductor):.2f}× ({aim['limit']:.1f})"
        worst_words = f"{worst['of_inductor']:.2f}×: {what}".replace("|", "/")
        lines.append(f"| {report['title']} | {len(rows)} | {median} | {slow} | {eager} | {worst_words} |")
    return "\n".join([*lines, "", origin(contents["environment"], samples="CPU time on one thread")])


def real_table(contents: dict[str, Any]) -> str:
    """Published models: a row for each work; in brackets how many times as fast as the package's own way to run it."""
    *reports, start = contents["results"]
    lines = [
        f"| µs | other ways | {' | '.join(map(in_bold, OF_EACH_MODEL))} |",
        "|---|---" + "|---:" * len(OF_EACH_MODEL) + "|",
    ]
    for report in reports:
        cells = {row["way"]: f"{1e6 * row['seconds']:,.0f} ({row['ratio']:.2f}×)" for row in report["figures"]}
        others = "; ".join(f"{way} {cell}" for way, cell in cells.items() if way not in OF_EACH_MODEL)
        lines.append(f"| {report['title']} | {others} | {' | '.join(cells[way] for way in OF_EACH_MODEL)} |")
    heads = list(start["figures"][0])
    lines += ["", f"| {' | '.join(['', *heads[1:]])} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, *numbers in (row.values() for row in start["figures"]):
        cells = [f"{number:,.{0 if number >= 100 else 1}f}" for number in numbers]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    missed = [each for report in contents["results"] for each in report["targets"] if not each["met"]]
    words = [
        f"\nMissed: {each['work']}, {each['limit']:.2f}{each['unit']} of {each['against']} ({each['measured']:.2f})."
        for each in missed
    ]
    return "\n".join([*lines, *words, "\n" + origin(contents["environment"], samples="CPU time on one thread")])


def libraries_table(contents: dict[str, Any]) -> str:
    lines = ["| ms | the other way | with fourfold | |", "|---|---:|---:|---:|"]
    for report in filter(lambda report: report["figures"], contents["results"]):
        theirs, ours = report["figures"]
        name = report["title"] + (f", against {theirs['way']}" if theirs["way"] != "the library's own" else "")
        ratio = f"{ours['ratio']:,.{0 if ours['ratio'] >= 100 else 1}f}×"
        lines.append(f"| {name} | {1e3 * theirs['seconds']:,.2f} | {1e3 * ours['seconds']:,.2f} | {ratio} |")
    return "\n".join([*lines, "", origin(contents["environment"], samples="CPU time on one thread")])


KINDS = {
    "targets": target_table,
    "recurrences": recurrence_table,
    "files": files_table,
    "ppo": ppo_table,
    "real": real_table,
    "libraries": libraries_table,
    "classes": classes_table,
}
ALONE = {"figures": figures, "aims": aims, "gallery": gallery, "suites": suite_table}
TABLE = re.compile(
    rf"<!-- (?P<head>(?:(?P<kind>{'|'.join(KINDS)}) of )?(?P<file>docs/benchmarks/\S+\.json)"
    r"|docs/benchmarks/gpu|figures|aims|gallery|suites) -->\n.*?<!-- end -->",
    re.DOTALL,
)


def with_tables(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        tables = selected(**match.groupdict())
        return f"<!-- {match['head']} -->\n" + (f"\n{tables}\n" if tables else "") + "<!-- end -->"

    return TABLE.sub(replaced, text)


def selected(head: str, kind: str | None, file: str | None) -> str:
    """The tables that a first line selects."""
    if head in ALONE:
        return ALONE[head]()
    if file is None:
        measured = sorted((ROOT / head).glob("*.json"))
        names = (each for each in measured if not each.name.startswith(("proof-", "paths-")))
        return "\n\n".join(table(read(each)) for each in names)
    if kind is None:
        return table(read(ROOT / file))
    return KINDS[kind](read(ROOT / file)) if (ROOT / file).exists() else ""


def main() -> int:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    stale = {page: new for page, text in texts.items() if (new := with_tables(text)) != text}
    if "--check" in sys.argv[1:]:
        for page in PAGES:
            found = "differs: run python scripts/readme_tables.py" if page in stale else "holds the tables"
            print(f"{page.relative_to(ROOT)} {found}")
        return int(bool(stale))
    for page, new in stale.items():
        page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
