"""``cold``: the first call of a compiled function in a fresh process, as it usually is and where there is nothing: no
compiler on PATH, no HOME, nothing that can be written to."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import surroundings
from benchmarks.backends import AOT_EAGER, BACKENDS, INDUCTOR, PLAIN
from benchmarks.problem import OURS
from benchmarks.processes import ROOT
from benchmarks.report import Report
from benchmarks.request import Request
from benchmarks.surroundings import Surroundings
from benchmarks.targets import Outcome
from benchmarks.timing import paired_ratios, summarise

REPEATS, QUICK_REPEATS, INDUCTOR_REPEATS = 5, 1, 2
WAYS = (PLAIN, AOT_EAGER, OURS)
FILLED = f"{INDUCTOR}, its cache filled"
IMPORT, FIRST, SECOND = PARTS = ("import torch", "first call", "second function")
OVER_AOT_EAGER, SECOND_FUNCTION, OF_INDUCTOR = 0.2, 0.3, 10.0
DYNAMO = "import sys, fourfold; print(sum(name.startswith('torch._dynamo') for name in sys.modules))"

Samples = dict[str, list[Mapping[str, float]]]  # by way, in the order they were taken
Start = Callable[[Surroundings, str, str], Mapping[str, float]]


class Failed(Exception):
    """A process that gave no times; ``str()`` is the last line that it said."""


def reports(request: Request) -> Iterator[Report]:
    yield report(surroundings.USUAL, *take(surroundings.USUAL, request, start), modules=dynamo_modules())
    bare = surroundings.bare()
    yield report(bare, *take(bare, request, start))


def take(where: Surroundings, request: Request, started: Start) -> tuple[Samples, dict[str, str]]:
    """Times of fresh processes in turns, and why a way gave none. A full run's first round is not counted: it reads
    from disk what the others find in memory."""
    samples: Samples = {}
    reasons: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:

        def sample(way: str, cache: str) -> None:
            try:
                found = started(where, BACKENDS[INDUCTOR if way == FILLED else way], cache)
            except Failed as failed:
                reasons[way] = str(failed)
            else:
                samples.setdefault(way, []).append(found)

        for repeat in range(QUICK_REPEATS if request.quick else 1 + REPEATS):
            first = repeat % len(WAYS)
            for way in WAYS[first:] + WAYS[:first]:
                sample(way, tempfile.mkdtemp(dir=folder))
        samples = {way: found[0 if request.quick else 1 :] for way, found in samples.items()}
        for _ in range(0 if "inductor" in request.skip else INDUCTOR_REPEATS):
            cache = tempfile.mkdtemp(dir=folder)
            for way in (INDUCTOR, FILLED):
                if INDUCTOR not in reasons:
                    sample(way, cache)
    return samples, reasons


def start(where: Surroundings, backend: str, folder: str) -> Mapping[str, float]:
    """A fresh process's seconds; its caches are in ``folder``."""
    command = [*where.launcher, sys.executable, "-m", "benchmarks.first_call", backend]
    environment = surroundings.environment(folder)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise Failed(last_error(done.stderr) or f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def last_error(text: str) -> str:
    """The line of a traceback that names the error; torch writes advice after it."""
    lines = [line for line in text.splitlines() if line[:1].isalpha() and "Error: " in line or "Exception: " in line]
    return (lines or text.strip().splitlines() or [""])[-1]


def dynamo_modules() -> int:
    """How many of Dynamo's modules ``import fourfold`` loads."""
    done = subprocess.run([sys.executable, "-c", DYNAMO], capture_output=True, text=True, cwd=ROOT, check=True)
    return int(done.stdout)


def report(where: Surroundings, samples: Samples, reasons: Mapping[str, str], modules: int | None = None) -> Report:
    ways = [way for way in (*WAYS, INDUCTOR, FILLED) if way in samples]
    notes = [*where.notes, *(f"{way} fails: {reason}" for way, reason in reasons.items())]
    found = outcomes(where, samples)
    if modules is not None:
        found.append(Outcome("import fourfold", "", "a fresh process", 0, modules, True, " modules of Dynamo"))
    return Report(
        title=f"First call, forward and backward, in a fresh process; {where.name}: seconds; medians",
        headings=("", *PARTS, f"first call over {AOT_EAGER}"),
        cells=[(way, *(words(values(samples, way, part)) for part in PARTS), over_words(samples, way)) for way in ways],
        figures=[
            {"way": way, "surroundings": where.name, "repeats": len(samples[way])}
            | {part: summarise(values(samples, way, part)).median for part in PARTS}
            for way in ways
        ],
        notes=notes,
        outcomes=found,
        wrong=OURS in reasons,
    )


def outcomes(where: Surroundings, samples: Samples) -> list[Outcome]:
    over, second = differences(samples, OURS), values(samples, OURS, SECOND)
    sooner = paired_ratios(values(samples, INDUCTOR, FIRST), values(samples, OURS, FIRST))
    found = [
        Outcome(FIRST, AOT_EAGER, where.name, OVER_AOT_EAGER, median(over), True, " s more"),
        Outcome(SECOND, "", where.name, SECOND_FUNCTION, median(second), True, " s"),
    ]
    if sooner or where is surroundings.USUAL:  # elsewhere Inductor has no compiler
        found.append(Outcome(FIRST, INDUCTOR, where.name, OF_INDUCTOR, median(sooner)))
    return found


def values(samples: Samples, way: str, part: str) -> list[float]:
    return [found[part] for found in samples.get(way, ())]


def differences(samples: Samples, way: str) -> list[float]:
    """How much longer than aot_eager's a first call took, round by round."""
    ours, others = (values(samples, name, FIRST) for name in (way, AOT_EAGER))
    return [a - b for a, b in zip(ours, others, strict=False)]


def median(found: Sequence[float]) -> float | None:
    return summarise(list(found)).median if found else None


def words(found: list[float]) -> str:
    return f"{summarise(found).median:.3f} (min {min(found):.3f})"


def over_words(samples: Samples, way: str) -> str:
    found = differences(samples, way)
    return f"{summarise(found).median:+.3f}" if found else "-"
