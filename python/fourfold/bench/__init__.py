"""``python -m fourfold bench``: fourfold against other ways to run the same mathematics."""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fourfold
from fourfold.bench import tables, timing
from fourfold.bench.comparison import compare

LEGEND = (
    "Each row ran in turns with the others. spread: interquartile range; ratio: times as fast as the first row,\n"
    "the median over pairs of samples taken side by side."
)


def run(
    benchmark: str,
    sizes: Mapping[str, int],
    threads: Sequence[int],
    repeats: int,
    skip: Collection[str],
    json_file: Path | None,
) -> int:
    """Run one benchmark at each number of threads; returns the exit code: 1 when a row's numbers were wrong, else 0."""
    module = importlib.import_module(f"fourfold.bench.{benchmark}")
    facts = environment(repeats)
    print(opening(facts), flush=True)
    problem = module.problem(sizes)
    comparisons = []
    for count in threads:
        with timing.pinned_threads(count):
            rows = compare(problem, module.contenders(sizes, problem.inputs, skip), repeats)
        comparisons.append(tables.Comparison(problem, count, rows))
        show(comparisons[-1])
    print(f"\n{LEGEND}")
    if json_file is not None:
        results = [tables.as_dictionary(comparison) for comparison in comparisons]
        contents = {"benchmark": benchmark, "sizes": dict(sizes), "environment": facts, "results": results}
        json_file.write_text(json.dumps(contents, indent=2) + "\n")
    return 1 if any(row.wrong for comparison in comparisons for row in comparison.rows) else 0


def environment(repeats: int) -> dict[str, Any]:
    """Versions, machine and its load, taken before anything runs: what a figure needs beside it."""
    load = timing.load_average()
    return {
        "fourfold": fourfold.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": timing.processor(),
        "cpu_level": fourfold.cpu_capability(),
        "load_average": load,
        "noisy": timing.is_noisy(load),
        "repeats": repeats,
        "trial": repeats < timing.ENOUGH_REPEATS,
    }


def opening(facts: Mapping[str, Any]) -> str:
    versions = f"fourfold {facts['fourfold']}, torch {facts['torch']}, Python {facts['python']}, {facts['platform']}"
    load = "not kept by this system" if facts["load_average"] is None else f"{facts['load_average']:.2f}"
    lines = [versions, f"{facts['processor']}; fourfold runs its {facts['cpu_level']} kernels"]
    lines.append(f"{facts['repeats']} repeats, load average {load}")
    if facts["noisy"]:
        lines.append(f"NOISY: the load average was above {timing.NOISY_LOAD} at the start; don't quote these figures.")
    if facts["trial"]:
        lines.append(f"TRIAL: fewer than {timing.ENOUGH_REPEATS} repeats; don't quote these figures.")
    return "\n".join(lines)


def show(comparison: tables.Comparison) -> None:
    print()
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        tables.print_rich(comparison)
    else:
        print(tables.plain(comparison), flush=True)
