"""``libraries``: other libraries' layers, estimators and networks as they are, and with the adapters of
examples/libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import fourfold
from benchmarks.library_cases import CASES, THEIRS, Case, Way
from benchmarks.measure import median_ratio, summarise
from benchmarks.real import times_of
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import OURS, Outcome
from fourfold.cli.timing import pinned_threads

DIFFERENCE = 1e-5  # of results and gradients, relative to the largest: orders of float32 sums over a sequence differ


def tables(request: Request) -> Iterator[Report]:
    with pinned_threads(1):
        for library, (packages, cases) in CASES.items():
            if request.kinds and library not in request.kinds:
                continue
            missing = [name for name in packages if importlib.util.find_spec(name) is None]
            if missing:
                yield Report(f"{library}: not measured", ("",), notes=[f"needs {', '.join(missing)}"])
                continue
            for case in cases():
                yield report(case, request)


def report(case: Case, request: Request) -> Report:
    theirs, ours = case.theirs(), case.ours()  # what they return first, before fourfold compiles its programs
    largest = apart(theirs, ours)
    for _ in range(3):
        case.ours()
    fourfold.wait_for_nests()
    ways: dict[str, Way] = {case.against: case.theirs, OURS: case.ours}
    times = times_of(ways, request)
    medians = {name: summarise(each).median for name, each in times.items()}
    ratios = {name: median_ratio(times[case.against], each) for name, each in times.items()}
    return Report(
        title=case.title,
        headings=("CPU time on one thread", "ms", f"times {case.against}"),
        cells=[(name, f"{1e3 * medians[name]:.3f}", f"{ratios[name]:.2f}×") for name in times],
        figures=[{"way": n, "seconds": medians[n], "ratio": ratios[n]} for n in times],
        notes=[f"Largest relative difference of results and gradients: {largest:.1g}"],
        outcomes=[Outcome(target(case.title), case.title, ratios[OURS])],
        wrong=not largest <= DIFFERENCE,
    )


def apart(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    """The largest difference of a tensor's elements, relative to its largest one."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(theirs, ours, strict=True)]
    return max(float((a - b).abs().max() / a.abs().max().clamp_min(torch.finfo(torch.float32).tiny)) for a, b in pairs)


__all__ = ["THEIRS", "report", "tables"]
