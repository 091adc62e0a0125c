"""``cold``: the first call of a compiled function in a fresh process: in the usual environment, and in one with only
Python and its packages: no compiler on PATH, no HOME, no writable directory."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import in_turn, median_ratio, summarise
from benchmarks.processes import ROOT, environment_in
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import AOT_EAGER, BACKENDS, INDUCTOR, OURS, PLAIN, Outcome

REPEATS, INDUCTOR_REPEATS = 5, 2
WAYS = (PLAIN, AOT_EAGER, OURS)
FILLED = f"{INDUCTOR}, its cache filled"
IMPORT, FIRST, SECOND = PARTS = ("import torch", "first call", "second function")
DYNAMO = "import sys, fourfold; print(sum(name.startswith('torch._dynamo') for name in sys.modules))"
# Remounts every mount read-only in the process's own mount namespace. The kernel's file systems refuse that, but hold
# no regular files.
READ_ONLY = """\
while read -r _ _ _ _ point _; do mount -o remount,ro,bind "$point" 2>/dev/null; done < /proc/self/mountinfo
mount -t tmpfs -o size=16k tmpfs "$TMPDIR" || exit
"""
NO_GROWTH = "ulimit -f 1\n"
LEAVE = 'unset HOME; PATH=; exec "$@"'
NAMESPACES = (("--mount",), ("--user", "--map-root-user", "--mount"))  # as root; as any user, if the kernel allows it
PLACES = ("/", "/tmp", "/var/tmp", "/dev/shm", sys.prefix, ".")
WRITABLE = f"import os, sys; sys.exit(any(os.access(place, os.W_OK) for place in {PLACES!r}))"
TORCH_NEEDS = "without a place for temporary files torch's own import of torch.compile fails"

Samples = dict[str, list[Mapping[str, float]]]  # by way, in the order of measurement


@dataclass(frozen=True)
class Surroundings:
    """launcher: the prefix of a command that runs in this environment."""

    name: str
    launcher: tuple[str, ...] = ()
    note: str = ""


USUAL = Surroundings("as usual, caches empty")
Start = Callable[[Surroundings, str, str], Mapping[str, float]]


class Failed(Exception):
    """A process that returned no times; ``str()`` is the line with its error."""


def bare() -> Surroundings:
    """No PATH, no HOME, and a file system as read-only as this machine allows."""
    name, shell = "PATH empty, HOME unset", shutil.which("sh")
    if shell is None:
        return Surroundings("nothing taken away", note="PATH and HOME are not taken away: that needs a shell.")
    for launcher in read_only_launchers(shell):
        with tempfile.TemporaryDirectory() as folder:
            command = [*launcher, sys.executable, "-c", WRITABLE]
            done = subprocess.run(command, capture_output=True, env=environment_in(folder))
        if done.returncode == 0:
            note = f"Only 16 kB for temporary files can be written to: {TORCH_NEEDS}."
            return Surroundings(f"{name}, file system read-only", launcher, note)
    note = f"No read-only file system can be made here, which needs unshare and mount. No more: {TORCH_NEEDS}."
    return Surroundings(f"{name}, no file above 512 bytes", (shell, "-c", NO_GROWTH + LEAVE, "sh"), note)


def read_only_launchers(shell: str) -> list[tuple[str, ...]]:
    unshare = shutil.which("unshare")
    if unshare is None or not Path("/proc/self/mountinfo").exists():
        return []
    return [(unshare, *options, shell, "-c", READ_ONLY + LEAVE, "sh") for options in NAMESPACES]


def tables(request: Request) -> Iterator[Report]:
    yield report(USUAL, *take(USUAL, request, start), modules=dynamo_modules())
    where = bare()
    yield report(where, *take(where, request, start))


def take(where: Surroundings, request: Request, started: Start) -> tuple[Samples, dict[str, str]]:
    """Times of fresh processes, measured in turns, and why a way has none. A full run discards the first round, which
    reads files from disk that later rounds find in memory."""
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

        for repeat in range(1 if request.quick else 1 + REPEATS):
            for way in in_turn(WAYS, repeat):
                sample(way, tempfile.mkdtemp(dir=folder))
            if repeat == 0 and not request.quick:
                samples.clear()
        for _ in range(0 if "inductor" in request.skip else INDUCTOR_REPEATS):
            cache = tempfile.mkdtemp(dir=folder)
            for way in (INDUCTOR, FILLED):
                if INDUCTOR not in reasons:
                    sample(way, cache)
    return samples, reasons


def start(where: Surroundings, backend: str, folder: str, module: str = "benchmarks.first_call") -> Mapping[str, float]:
    """Times in seconds of a fresh process, with its caches in ``folder``."""
    command = [*where.launcher, sys.executable, "-m", module, backend]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment_in(folder))
    if done.returncode:
        raise Failed(last_error(done.stderr) or f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def last_error(text: str) -> str:
    """The line of a traceback that names the error; torch writes advice after it."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)]
    return (lines or text.strip().splitlines() or [""])[-1]


def dynamo_modules() -> int:
    """The number of Dynamo's modules that ``import fourfold`` loads."""
    done = subprocess.run([sys.executable, "-c", DYNAMO], capture_output=True, text=True, cwd=ROOT, check=True)
    return int(done.stdout)


def report(where: Surroundings, samples: Samples, reasons: Mapping[str, str], modules: int | None = None) -> Report:
    def values(way: str, part: str) -> list[float]:
        return [found[part] for found in samples.get(way, ())]

    def over(way: str) -> float | None:
        """By how much the first call took longer than aot_eager's, in each round."""
        return median([a - b for a, b in zip(values(way, FIRST), values(AOT_EAGER, FIRST), strict=False)])

    sooner = median_ratio(values(INDUCTOR, FIRST), values(OURS, FIRST))
    outcomes = [
        Outcome(target(FIRST, AOT_EAGER), where.name, over(OURS)),
        Outcome(target(SECOND), where.name, median(values(OURS, SECOND))),
    ]
    if sooner is not None or where is USUAL:  # elsewhere Inductor has no compiler
        outcomes.append(Outcome(target(FIRST, INDUCTOR), where.name, sooner))
    if modules is not None:
        outcomes.append(Outcome(target("import fourfold"), "a fresh process", modules))
    cells, figures = [], []
    for way in (way for way in (*WAYS, INDUCTOR, FILLED) if way in samples):
        medians, longer = {part: median(values(way, part)) for part in PARTS}, over(way)
        words = [f"{medians[part]:.3f} (min {min(values(way, part)):.3f})" for part in PARTS]
        cells.append((way, *words, "-" if longer is None else f"{longer:+.3f}"))
        figures.append({"way": way, "surroundings": where.name, "repeats": len(samples[way]), **medians})
    return Report(
        title=f"First call, forward and backward, in a fresh process; {where.name}: seconds; medians",
        headings=("", *PARTS, f"first call over {AOT_EAGER}"),
        cells=cells,
        figures=figures,
        notes=[*[where.note] * bool(where.note), *(f"{way} fails: {reason}" for way, reason in reasons.items())],
        outcomes=outcomes,
        wrong=OURS in reasons,
    )


def median(found: Sequence[float]) -> float | None:
    return summarise(found).median if found else None
