"""``models``: training of small models of the package transformers under torch.compile's backends, each in a process of
its own: a first step is a fresh process's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import surroundings
from benchmarks.backends import BACKENDS, PLAIN
from benchmarks.model_worker import BATCH, MODELS, STEPS
from benchmarks.problem import OURS
from benchmarks.processes import ask, child
from benchmarks.report import Report
from benchmarks.request import Request
from benchmarks.targets import Outcome
from benchmarks.timing import Statistics, paired_ratios, summarise

TOLERANCE = 1e-5  # of a loss: what Inductor's is off after three steps is a twentieth of it
QUICK_MODELS = ("GPT-2",)

Answer = Callable[[str, str], Any]  # of a way, to a question


class Ended(Exception):
    """A worker that has ended; ``str()`` says of what."""


@dataclass
class Way:
    """What became of a backend. losses: of the first steps. seconds: of warm ones."""

    name: str
    reason: str = ""
    first: float = 0.0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def reports(request: Request) -> Iterator[Report]:
    if importlib.util.find_spec("transformers") is None:
        note = "Not measured: this benchmark needs the package transformers: pip install transformers"
        yield Report("Training of small models", ("model",), (), (), (note,))
        return
    threads = max(request.threads)
    names = [name for name, backend in BACKENDS.items() if backend not in request.skip]
    for model in request.kinds or (QUICK_MODELS if request.quick else MODELS):
        with workers(model, names, threads) as answer:
            yield report(model, threads, measure([Way(name) for name in names], request.repeats, answer))


@contextlib.contextmanager
def workers(model: str, names: list[str], threads: int) -> Iterator[Answer]:
    """A process for each way, its caches empty."""
    with contextlib.ExitStack() as stack:
        processes: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            environment = surroundings.environment(stack.enter_context(tempfile.TemporaryDirectory()))
            command = [sys.executable, "-m", "benchmarks.model_worker", model, BACKENDS[name], str(threads)]
            processes[name] = stack.enter_context(child(command, environment))

        def answer(name: str, question: str) -> Any:
            line = ask(processes[name], question)
            if not line:
                raise Ended("its process ended; what it said stands above")
            return json.loads(line)

        yield answer


def measure(ways: list[Way], repeats: int, answer: Answer) -> list[Way]:
    """First steps one after the other, then warm ones in turns of those ways whose losses are right."""
    for way in ways:
        try:
            found = answer(way.name, "first")
            way.first, way.losses = found["seconds"], found["losses"]
        except Ended as ended:
            way.reason = str(ended)
    right = [way for way in ways if way.losses]
    for way in right:
        if not (error := difference(way, ways)) <= TOLERANCE:
            way.reason = f"WRONG: a loss is off by {error:.1e} of it, tolerance {TOLERANCE:.0e}; not timed"
    right = [way for way in right if not way.reason]
    for repeat in range(repeats):
        first = repeat % len(right) if right else 0
        for way in right[first:] + right[:first]:
            if not way.reason:
                warm_step(way, answer)
    return ways


def warm_step(way: Way, answer: Answer) -> None:
    try:
        way.seconds.append(answer(way.name, "step"))
    except Ended as ended:
        way.reason = str(ended)


def difference(way: Way, ways: list[Way]) -> float:
    """The largest relative one between its losses and plain PyTorch's."""
    exact = next(other.losses for other in ways if other.name == PLAIN)
    return max((abs(a - b) / abs(b) for a, b in zip(way.losses, exact, strict=False)), default=float("nan"))


def report(model: str, threads: int, ways: list[Way]) -> Report:
    by_name = {way.name: way for way in ways}
    plain, ours = by_name[PLAIN], by_name[OURS]
    ratios = {way.name: summarise(paired_ratios(plain.seconds, way.seconds)) for way in ways if way.seconds}
    where = f"{model}, {threads} thread{'s' if threads > 1 else ''}"
    losses = ", ".join(f"{loss:.4f}" for loss in plain.losses)
    notes = [f"Losses of {STEPS} steps of {PLAIN}: {losses}; the others' may be off by {TOLERANCE:.0e} of them."]
    notes += [f"{way.name}: {way.reason}" for way in ways if way.reason] + lost(ours, ways)
    return Report(
        title=f"Training of a small {where}, batch {BATCH}: seconds of a fresh process's first step; ms of a warm step",
        headings=("", "first step, s", "median, ms", "minimum", "spread", "ratio", "largest error of a loss"),
        cells=[cells(way, ways, ratios) for way in ways if way.seconds],
        figures=[figures(way, ways, model, threads, ratios) for way in ways if way.seconds],
        notes=notes,
        outcomes=[loss_outcome(ours, ways, where)],
        wrong=bool(ours.reason),
    )


def loss_outcome(ours: Way, ways: list[Way], where: str) -> Outcome:
    measured = difference(ours, ways) / TOLERANCE if ours.losses else None
    return Outcome(f"losses of {STEPS} steps of training", PLAIN, where, 1.0, measured, True, " of the tolerance")


def cells(way: Way, ways: list[Way], ratios: Mapping[str, Statistics]) -> tuple[str, ...]:
    found = summarise(way.seconds)
    times = (f"{1e3 * seconds:.1f}" for seconds in (found.median, found.minimum, found.spread))
    return (way.name, f"{way.first:.2f}", *times, f"{ratios[way.name].median:.2f}×", f"{difference(way, ways):.1e}")


def figures(way: Way, ways: list[Way], model: str, threads: int, ratios: Mapping[str, Statistics]) -> dict[str, Any]:
    return {
        "way": way.name,
        "model": model,
        "threads": threads,
        "first_step": way.first,
        "median": summarise(way.seconds).median,
        "minimum": min(way.seconds),
        "ratio": ratios[way.name].median,
        "relative_error": difference(way, ways),
        "repeats": len(way.seconds),
    }


def lost(ours: Way, ways: list[Way]) -> list[str]:
    """The comparisons of warm steps that fourfold lost, in one line."""
    others = [way for way in ways if way is not ours and way.seconds and ours.seconds]
    ratios = {way.name: summarise(paired_ratios(way.seconds, ours.seconds)).median for way in others}
    beaten = [f"{ratio:.2f}× of {name}" for name, ratio in ratios.items() if round(ratio, 2) < 1]
    return [f"{OURS} loses: {', '.join(beaten)}."] if beaten else []
