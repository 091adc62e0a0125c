"""One suite, or all: prints tables as they are measured, then the summary; writes the file and the plots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import environment, results, targets
from benchmarks.measure import Clock, compare
from benchmarks.problem import Problem
from benchmarks.request import Request
from benchmarks.results import Comparison, Report
from benchmarks.suites import SUITES
from benchmarks.targets import Outcome
from fourfold.cli.timing import pinned_threads

LEGEND = """
Rows run in turns, in a random order, each after two untimed calls; on a CPU with one thread, times are CPU time.
spread: interquartile range; ratio: times as fast as the first row, or the one named under the table: the median
over pairs of samples taken side by side."""
GPU_LEGEND = """\
Timed with events; before each sample the GPU's cache is overwritten and nothing is in flight. A row's time is what its
calls take from Python, one after the other: the host's time where the GPU waits for it. "cold cache": overwritten
before every call, each timed by itself."""
GRAPH_LEGEND = "A row with CUDA graph replays what one call put on the GPU: the device's time."


@dataclass
class Run:
    """The results so far."""

    request: Request
    facts: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    wrong: bool = False

    def add(self, suite: str, table: Comparison | Report) -> None:
        print(f"\n{table.plain()}", flush=True)
        self.results.append({"suite": suite, **table.as_dictionary()})
        self.outcomes += table.outcomes
        self.wrong |= table.wrong
        self.save(complete=False)  # an interrupted run keeps its results

    def contents(self, complete: bool) -> dict[str, Any]:
        return {
            "benchmark": self.request.suite,
            "sizes": dict(self.request.sizes),
            "complete": complete,
            "environment": self.facts,
            "targets": targets.lines(self.outcomes),
            "results": self.results,
        }

    def save(self, complete: bool) -> None:
        if self.request.json_file is not None:
            self.request.json_file.write_text(results.text(self.contents(complete)), encoding="utf-8")


def chosen(name: str) -> list[str]:
    return [suite.name for suite in SUITES if suite.in_all] if name == "all" else [name]


def run(request: Request) -> int:
    """Run one suite, or all, at each number of threads; the exit code is 1 if a row's numbers were wrong."""
    device = request.device
    done = Run(request, environment.collect(request.repeats, device))
    suites = [suite for suite in SUITES if suite.name in chosen(request.suite)]
    sources = {suite.name: suite.tables for suite in suites}  # imported before anything is measured
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        print(environment.opening(done.facts), flush=True)
        clock = Clock(device)
        for name, tables in sources.items():
            for table in tables(request):
                for measured in [table] if isinstance(table, Report) else comparisons(table, request, clock):
                    done.add(name, measured)
    legends = [GPU_LEGEND] * (device.type != "cpu") + [GRAPH_LEGEND] * (device.type == "cuda")
    print("\n".join([LEGEND, *legends]))
    if done.outcomes:
        print(f"\n{targets.summary(done.outcomes)}")
    done.save(complete=True)
    draw(request, done)
    return int(done.wrong)


def comparisons(problem: Problem, request: Request, clock: Clock) -> Iterator[Comparison]:
    """The problem's rows at each number of threads."""
    for threads in (t for t in request.threads if problem.threads is None or t in problem.threads):
        with pinned_threads(threads), problem.precision.allowed(), problem.around():
            rows = compare(problem, problem.rows, request.repeats, clock, request.skip)
        on_cpu = request.device.type == "cpu"
        yield Comparison(problem, threads if on_cpu else None, rows, environment.clocks(request.device))


def draw(request: Request, done: Run) -> None:
    if request.plots is not None:
        from benchmarks import plots

        files = plots.draw(results.rounded(done.contents(True)), request.plots)
        said = "\n".join(f"Plot: {file}" for file in files) or "No plot: nothing here varies a sequence's size."
        print(f"\n{said}")
