"""Memory that a forward keeps for its backward: everything that the returned graph keeps alive, counted by malloc, and
the part that autograd's saved-tensor hooks see."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence

import fourfold
from benchmarks.problem import Candidate, Problem, bytes_kept
from benchmarks.results import Report

FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
REPEATS = 5


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def bytes_in_use() -> int | None:
    """Bytes allocated by malloc and not freed; None unless malloc is glibc's, from 2.33."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    mallinfo.restype = Mallinfo
    found = mallinfo()
    return found.uordblks + found.hblkhd


def graph_bytes(problem: Problem, candidate: Candidate) -> int | None:
    """Bytes that the graph keeps besides inputs, parameters and results; the minimum over several calls, because malloc
    holds back small blocks."""
    if bytes_in_use() is None:
        return None
    problem.results(candidate)
    counts = []
    for _ in range(REPEATS):
        gc.collect()
        fourfold.empty_cache()  # what is kept for later calls counts as new where a call uses it
        before = bytes_in_use()
        outputs = candidate.call(*problem.inputs)
        results = {y.untyped_storage().data_ptr(): y.untyped_storage().nbytes() for y in outputs}
        counts.append(bytes_in_use() - before - sum(results.values()))
        del outputs
    return max(0, min(counts))


def report(problems: Sequence[Problem]) -> Report:
    """All rows of the problems; ratios are to the first."""
    gc.collect()
    gc.freeze()  # the collections below are of new objects only
    cells, figures = [], []
    for problem in problems:
        first = None
        for row in problem.rows:
            candidate = row.build(problem)
            kept, seen = graph_bytes(problem, candidate), bytes_kept(problem, candidate)
            first = first or kept
            words = "-" if kept is None else f"{kept / 1e3:,.1f}"
            ratio = f"{first / kept:.2f}×" if kept else "-"
            cells.append((f"{problem.title}: {row.name}", words, f"{seen / 1e3:,.1f}", ratio))
            figures.append({"title": problem.title, "way": row.name, "kept": kept, "seen": seen})
    return Report(
        title="Memory that a forward keeps for its backward beside results, inputs and weights: kB",
        headings=("", "kept by the graph", "seen by saved_tensors_hooks", "ratio"),
        cells=cells,
        figures=figures,
        notes=["Kept by the graph: what malloc has handed out since, which needs glibc."],
    )
