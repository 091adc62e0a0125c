"""One benchmark, or all: tables as soon as they are measured, then the summary, the file and the pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from benchmarks import environment, records, tables, targets
from benchmarks.clocks import Clock
from benchmarks.comparison import compare
from benchmarks.problem import Problem
from benchmarks.report import Report
from benchmarks.request import Request
from benchmarks.targets import Outcome
from fourfold.cli import timing

SUITES = (
    "cell",
    "mlp",
    "elementwise",
    "stream",
    "rl",
    "sequence",
    "pointwise",
    "cold",
    "models",
    "compiling",
    "disturbed",
)
LEGEND = (
    "Each row ran in turns with the others. spread: interquartile range; ratio: times as fast as the first row,\n"
    "or the one named under the table; the median over pairs of samples taken side by side."
)
GPU_LEGEND = """\
Timed with events; before each sample the GPU's cache is overwritten and nothing is in flight. A row is what its calls
take from Python, one after the other: where the GPU waits for them, the host's time. "cold cache": overwritten before
every call, each timed by itself."""
GRAPH_LEGEND = "A row with CUDA graph replays what one call put on the GPU: the device's time."


@dataclasses.dataclass
class Run:
    """What has been measured so far."""

    facts: dict[str, Any]
    results: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)

    @property
    def wrong(self) -> bool:
        return any(table.get("wrong") for result in self.results for table in (result, *result.get("rows", ())))

    def contents(self, request: Request, complete: bool) -> dict[str, Any]:
        return {
            "benchmark": request.benchmark,
            "sizes": dict(request.sizes),
            "complete": complete,
            "environment": self.facts,
            "targets": [line.as_dictionary() for line in targets.lines(self.outcomes)],
            "results": self.results,
        }


def run(request: Request) -> int:
    """Run one benchmark, or all, at each number of threads; the exit code is 1 when a row's numbers were wrong."""
    done = Run(environment.collect(request.repeats, request.device))
    suites = SUITES if request.benchmark == "all" else (request.benchmark,)
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in suites}
    with on_device(request.device):
        print(environment.opening(done.facts), flush=True)
        for name, module in modules.items():
            for table in comparisons(module, request) if hasattr(module, "problems") else module.reports(request):
                print(f"\n{table.plain() if isinstance(table, Report) else tables.plain(table)}", flush=True)
                done.results.append({"suite": name, **as_dictionary(table)})
                done.outcomes += table.outcomes if isinstance(table, Report) else targets.outcomes(table)
                save(request, done, complete=False)  # so that a run cut short leaves what it measured
    if request.device.type == "cuda":
        done.facts["gpu"]["at_the_end"] = environment.nvidia_smi(environment.uuid(request.device))
    legends = [GPU_LEGEND] * (request.device.type != "cpu") + [GRAPH_LEGEND] * (request.device.type == "cuda")
    print("\n".join(["", LEGEND, *legends]))
    if done.outcomes:
        print(f"\n{targets.summary(done.outcomes)}")
    save(request, done, complete=True)
    draw(request, done)
    return int(done.wrong)


def threads_of(problem: Problem, request: Request) -> list[int]:
    return [count for count in request.threads if problem.threads is None or count in problem.threads]


def comparisons(module: ModuleType, request: Request) -> Iterator[tables.Comparison]:
    clock = Clock(request.device)
    for problem in module.problems(request):
        for count in threads_of(problem, request):
            with timing.pinned_threads(count), problem.precision.allowed(), problem.around():
                rows = compare(problem, module.contenders(problem, request.skip), request.repeats, clock)
            clocks = environment.clocks(request.device)
            yield tables.Comparison(problem, count if request.device.type == "cpu" else None, rows, clocks)


def as_dictionary(table: tables.Comparison | Report) -> dict[str, Any]:
    return table.as_dictionary() if isinstance(table, Report) else records.as_dictionary(table)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def save(request: Request, done: Run, complete: bool) -> None:
    if request.json_file is not None:
        request.json_file.write_text(records.text(done.contents(request, complete)), encoding="utf-8")


def draw(request: Request, done: Run) -> None:
    if request.plots is not None:
        from benchmarks import plots

        files = plots.draw(records.rounded(done.contents(request, True)), request.plots)
        print(
            "\n" + ("\n".join(f"Plot: {file}" for file in files) or "No plot: nothing here varies a sequence's size.")
        )
