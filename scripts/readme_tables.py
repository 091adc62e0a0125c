"""Writes README's benchmark tables from the measurements in docs/benchmarks, so that no figure is typed by hand.

    python -m fourfold bench cell --json docs/benchmarks/cell.json
    python scripts/readme_tables.py            # and with --check, only say whether README holds them

A table stands between the lines `<!-- docs/benchmarks/cell.json -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TABLE = re.compile(r"(<!-- (docs/benchmarks/\S+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)
OURS = "fourfold"


def table(measured: dict[str, Any]) -> str:
    """One table for each number of threads: median µs, and times as fast as the first row."""
    facts = measured["environment"]
    parts = []
    for result in measured["results"]:
        threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
        phases = list(next(row["phases"] for row in result["rows"] if row["phases"]))
        parts.append(f"{result['title']}, {threads}:\n")
        parts.append(f"| µs (times as fast as plain PyTorch) | {' | '.join(phases)} |")
        parts.append("|---|" + "---|" * len(phases))
        parts += [line(row, phases) for row in result["rows"]]
        parts.append("")
    noisy = " The machine was busy, so take the ratios, not the times." if facts["noisy"] else ""
    parts.append(
        f"Medians of {facts['repeats']} samples in turns; {facts['processor']}; torch {facts['torch']}, fourfold "
        f"{facts['fourfold']}; load average {facts['load_average']:.2f}.{noisy}\n"
    )
    return "\n".join(parts)


def line(row: dict[str, Any], phases: list[str]) -> str:
    name = f"**{row['name']}**" if row["name"] == OURS else row["name"]
    if not row["phases"]:
        return f"| {name} | {row['reason']} |" + " |" * (len(phases) - 1)
    cells = (
        f"{1e6 * row['phases'][phase]['median']:.1f} ({row['phases'][phase]['ratio']['median']:.2f}×)"
        for phase in phases
    )
    return f"| {name} | {' | '.join(cells)} |"


def with_tables(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        measured = json.loads((ROOT / match[2]).read_text(encoding="utf-8"))
        return f"{match[1]}\n{table(measured)}\n{match[3]}"

    return TABLE.sub(replaced, text)


def main() -> int:
    text = README.read_text(encoding="utf-8")
    new = with_tables(text)
    if "--check" in sys.argv[1:]:
        print("README holds the tables" if new == text else "README differs: run python scripts/readme_tables.py")
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
