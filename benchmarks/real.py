"""``real``: published models with the weights of their packages, restated in examples/models, against the package's own
way to run them."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from benchmarks.measure import ThreadTime, interleave, median_ratio, summarise
from benchmarks.published import start
from benchmarks.published.case import LOADED, Case, Way
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import REAL, target
from benchmarks.targets import PLAIN, Outcome
from fourfold.cli.timing import pinned_threads
from fourfold.cli.usage import UsageError

DIFFERENCE = 1e-5  # of results from plain PyTorch's


def tables(request: Request) -> Iterator[Report]:
    modules = [importlib.import_module(f"benchmarks.published.{name}") for name in request.kinds or REAL]
    packages = {name for module in modules for name in module.PACKAGES}
    missing = sorted(name for name in packages if importlib.util.find_spec(name) is None)
    if missing:
        raise UsageError(f"real: expected {', '.join(missing)}, which docs/models.md says how to install")
    with pinned_threads(1), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for module in modules:
            of_one: dict[str, dict[str, list[float]]] = {}
            for case in module.cases(Path(folder), request.quick):
                apart, times = differences(case.ways), times_of(case.ways, request)
                of_one[case.title] = times
                yield report(case, apart, times, of_one.get(case.batch_of))
        yield start.table(request.kinds or REAL, Path(folder), request.quick)


def times_of(ways: Mapping[str, Way], request: Request) -> dict[str, list[float]]:
    """Seconds of CPU time a call, in turns."""

    def sample(way: Way) -> Callable[[int], dict[str, float]]:
        def run(iterations: int) -> dict[str, float]:
            begin, end = ThreadTime(), ThreadTime()
            begin.record()
            for _ in range(iterations):
                way()
            end.record()
            return {"": begin.elapsed_time(end) / 1e3 / iterations}

        return run

    return {
        name: each[""] for name, each in interleave({n: sample(w) for n, w in ways.items()}, request.repeats).items()
    }


def differences(ways: Mapping[str, Way]) -> dict[str, float]:
    """From plain PyTorch, in the first call."""
    first = {name: way() for name, way in ways.items()}
    return {name: (each - first[PLAIN]).abs().max().item() for name, each in first.items()}


def report(
    case: Case,
    apart: Mapping[str, float],
    times: Mapping[str, list[float]],
    of_one: Mapping[str, list[float]] | None,
) -> Report:
    """of_one: the times of one at a time; a batch's target is in calls of these."""
    medians = {name: summarise(each).median / case.per for name, each in times.items()}
    ratios = {name: median_ratio(times[case.against], each) for name, each in times.items()}
    cells = [(name, f"{1e6 * medians[name]:.1f}", f"{ratios[name]:.2f}×") for name in times]
    largest = max(each for name, each in apart.items() if name != case.approximate)
    aim = target(case.title)
    rival, calls = (times, 1) if of_one is None else (of_one, case.per)
    reached = calls * (median_ratio(rival[aim.against], times[LOADED]) or 0)
    return Report(
        title=case.title,
        headings=("CPU time on one thread", f"µs a {case.unit}", f"times {case.against}"),
        cells=cells,
        figures=[
            {"way": n, "seconds": medians[n], "against": case.against, "ratio": ratios[n], "difference": apart[n]}
            for n in times
        ],
        notes=[f"Largest difference from {PLAIN} in the first call: {largest:.1g}"],
        outcomes=[Outcome(aim, case.title, reached)],
        wrong=largest > DIFFERENCE,
    )
