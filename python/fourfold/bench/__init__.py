"""``python -m fourfold bench``: fourfold against other ways to run the same mathematics."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fourfold.bench import environment, tables, timing
from fourfold.bench.comparison import compare
from fourfold.bench.request import Request

LEGEND = (
    "Each row ran in turns with the others. spread: interquartile range; ratio: times as fast as the first row,\n"
    "or the one named under the table; the median over pairs of samples taken side by side."
)
GPU_LEGEND = """\
Timed with events; before each sample the GPU's cache is overwritten and nothing is in flight. A row is what its calls
take from Python, one after the other: where the GPU waits for them, the host's time. A row with CUDA graph replays
what one call put on the GPU: the device's time. "cold cache": overwritten before every call, each timed by itself."""


def run(request: Request) -> int:
    """Run one benchmark at each number of threads; returns the exit code: 1 when a row's numbers were wrong, else 0."""
    module = importlib.import_module(f"fourfold.bench.{request.benchmark}")
    facts = environment.collect(request.repeats, request.device)
    print(environment.opening(facts), flush=True)
    results: list[dict[str, Any]] = []
    with on_device(request.device):
        clock = timing.clock_for(request.device)
        for problem in module.problems(request):
            for count in request.threads:
                with timing.pinned_threads(count), problem.precision.allowed():
                    rows = compare(problem, module.contenders(problem, request.skip), request.repeats, clock)
                comparison = tables.Comparison(problem, count if request.device.type == "cpu" else None, rows)
                show(comparison)
                results.append(tables.as_dictionary(comparison))
                save(request, facts, results, complete=False)  # so that a run cut short leaves what it measured
    if request.device.type == "cuda":
        facts["gpu"]["at_the_end"] = environment.nvidia_smi(environment.uuid(request.device))
    print("\n".join(["", LEGEND] + [GPU_LEGEND] * (request.device.type == "cuda")))
    save(request, facts, results, complete=True)
    return 1 if any(row["wrong"] for result in results for row in result["rows"]) else 0


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def save(request: Request, facts: Mapping[str, Any], results: Sequence[Mapping[str, Any]], complete: bool) -> None:
    if request.json_file is not None:
        contents = {
            "benchmark": request.benchmark,
            "sizes": dict(request.sizes),
            "complete": complete,
            "environment": facts,
            "results": results,
        }
        request.json_file.write_text(json.dumps(contents, indent=2) + "\n")


def show(comparison: tables.Comparison) -> None:
    print()
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        tables.print_rich(comparison)
    else:
        print(tables.plain(comparison), flush=True)
