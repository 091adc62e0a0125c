"""Writes the benchmark tables of README and docs/benchmarks.md from the measurements in docs/benchmarks, so that no
figure is typed by hand.

    python -m benchmarks all --json docs/benchmarks/zen3.json --plots docs/benchmarks
    python scripts/readme_tables.py            # and with --check, only say whether they are there

A table stands between the lines `<!-- docs/benchmarks/cell.json -->` and `<!-- end -->`. Where the first of them reads
`<!-- targets of docs/benchmarks/zen3.json -->`, one table with a line for each target; `<!-- recurrences of … -->`, one
with a line for each recurrence; `<!-- files of … -->`, one of models in files; where it names the folder
docs/benchmarks/gpu, all tables that scripts/check_gpu.py measured. Of these, nothing while nothing is measured.
Between `<!-- suites -->` and `<!-- end -->` stands the list of suites, from the table in benchmarks/suites.py.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("benchmarks", "files", "scan")))
TABLE = re.compile(r"(<!-- (docs/benchmarks/\S+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)
FILES = re.compile(r"(<!-- files of (docs/benchmarks/\S+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)
FOLDER = re.compile(r"(<!-- (docs/benchmarks/gpu) -->\n).*?(<!-- end -->)", re.DOTALL)
TARGETS = re.compile(r"(<!-- targets of (docs/benchmarks/\S+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)
RECURRENCES = re.compile(r"(<!-- recurrences of (docs/benchmarks/\S+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)
LIST = re.compile(r"(<!-- suites -->\n).*?(<!-- end -->)", re.DOTALL)
OURS = "fourfold"

sys.path.append(str(ROOT))

from benchmarks.suites import SUITES  # noqa: E402


def table(measured: dict[str, Any]) -> str:
    """One table for each size, precision and number of threads: median µs, and times as fast as the baseline."""
    parts = [text for result in measured["results"] for text in one_table(result)]
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


def target_table(measured: dict[str, Any]) -> str:
    """Every target with what was reached, the missed ones in bold."""
    met = sum(target["met"] is True for target in measured["targets"])
    return "\n".join(
        [
            f"{met} of {len(measured['targets'])} targets reached. Where a line stands for several tables, the one "
            "furthest from the aim:\n",
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


def recurrence_table(measured: dict[str, Any]) -> str:
    """Every recurrence on one thread, with where it is from."""
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
    """Of fourfold's row to a Python loop's."""
    rows = {row["name"]: row["phases"].get(phase) for row in result["rows"]}
    ours, plain = rows.get(OURS), rows.get("plain PyTorch")
    if not ours:
        return "-"
    milliseconds = f"{1e3 * ours['median']:.2f} ms"
    return f"{milliseconds}, {plain['median'] / ours['median']:.1f}×" if plain else milliseconds


def suite_table() -> str:
    rows = [f"| `{suite.name}` | {suite.times} | {suite.against} |" for suite in SUITES]
    return "\n".join(["", "| name | what it times | against |", "|---|---|---|", *rows, "", ""])


def origin(facts: dict[str, Any]) -> str:
    """What was measured on, and how."""
    noisy = " The machine was busy, so take the ratios, not the times." if facts["noisy"] else ""
    trial = " Too few samples to quote." if facts["trial"] else ""
    machine = facts["processor"]
    if card := facts.get("gpu"):
        machine = f"{card['name']}, driver {card['driver'] or 'unknown'}, CUDA {card['cuda']}, cuDNN {card['cudnn']}"
    return (
        f"Medians of {facts['repeats']} samples in turns; {machine}; torch {facts['torch']}, fourfold "
        f"{facts['fourfold']}; load average {facts['load_average']:.2f}.{noisy}{trial}\n"
    )


def line(row: dict[str, Any], phases: list[str]) -> str:
    name = f"**{row['name']}**" if row["name"].split(",")[0] == OURS else row["name"]
    if not row["phases"]:
        return f"| {name} | {row['reason']} |" + " |" * (len(phases) - 1)
    return f"| {name} | {' | '.join(cell(row['phases'].get(phase)) for phase in phases)} |"


def cell(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    beside = [f"{figures['ratio']['median']:.2f}×"] if "ratio" in figures else []
    beside += [f"{figures['rate']:.2f}"] if "rate" in figures else []
    return f"{1e6 * figures['median']:.1f}" + (f" ({'; '.join(beside)})" if beside else "")


def target(judged: dict[str, Any]) -> str:
    """A line under the table, which would otherwise hide what was missed."""
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
    facts = contents["environment"]
    noisy = " The machine was busy: take the ratios, not the times." if facts["noisy"] else ""
    lines.append(
        f"\nMedians of 3 fresh processes, one thread; {facts['processor']}; torch {facts['torch']}, fourfold "
        f"{facts['fourfold']}; load average {facts['load_average']:.2f}.{noisy}\n"
    )
    return "\n".join(lines)


def with_tables(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]}\n{table(read(ROOT / match[2]))}\n{match[3]}"

    def all_replaced(match: re.Match[str]) -> str:
        files = sorted(
            file for file in (ROOT / match[2]).glob("*.json") if not file.name.startswith(("proof-", "paths-"))
        )
        return match[1] + "".join(f"\n{table(read(file))}\n" for file in files) + match[3]

    def targets_replaced(match: re.Match[str]) -> str:
        file = ROOT / match[2]
        return match[1] + (f"\n{target_table(read(file))}\n" if file.exists() else "") + match[3]

    def recurrences_replaced(match: re.Match[str]) -> str:
        file = ROOT / match[2]
        return match[1] + (f"\n{recurrence_table(read(file))}\n" if file.exists() else "") + match[3]

    def files_replaced(match: re.Match[str]) -> str:
        file = ROOT / match[2]
        return match[1] + (f"\n{files_table(read(file))}\n" if file.exists() else "") + match[3]

    text = FILES.sub(files_replaced, RECURRENCES.sub(recurrences_replaced, text))
    text = LIST.sub(lambda match: match[1] + suite_table() + match[2], text)
    return FOLDER.sub(all_replaced, TARGETS.sub(targets_replaced, TABLE.sub(replaced, text)))


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


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
