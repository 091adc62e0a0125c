"""``disturbed``: the slowdown of two threads beside a busy process, and of eight threads under a quota of one CPU.

Disturbed and undisturbed samples are taken in turns: the busy process is stopped and continued, and of two processes
one has the quota.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks import recurrent
from benchmarks.measure import paired_ratios, summarise
from benchmarks.processes import child, worker
from benchmarks.recurrent import LSTM
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import OURS, Outcome

RIVAL = "nn.LSTM"
NEIGHBOUR, QUOTA = "a busy neighbour on one core", "a quota of one CPU, eight threads asked for"
WORKS = {
    "B16 I32 H128, forward": (recurrent.CENTRE, False),
    "B16 I32 H128, training": (recurrent.CENTRE, True),
    "B1 I512 H512, forward": ((1, 512, 512, 100), False),
}
NEIGHBOUR_SECONDS = 0.05  # per sample: several time slices of a scheduler
QUOTA_SECONDS = 0.3  # per sample: several periods of the quota
PERIOD = 100_000  # µs, Linux's default
ASKED = 8  # threads under the quota
REPEATS = 30
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
PIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execvp(sys.argv[2], sys.argv[2:])"
JOIN = 'echo $$ > "$0" && exec "$@"'
CGROUPS = Path("/sys/fs/cgroup")

Samples = dict[tuple[str, str], list[float]]  # by work and row
Timer = Callable[[str, str, float], float]


def tables(request: Request) -> Iterator[Report]:
    if not hasattr(os, "sched_setaffinity"):
        note = "Not measured: the neighbour and the quota need Linux."
        yield Report("A disturbed machine", ("work",), notes=(note,))
        return
    works = list(WORKS)[: 1 if request.quick else None]
    cpus = sorted(os.sched_getaffinity(0))
    threads, repeats = min(2, len(cpus)), min(request.repeats, REPEATS)
    where = f"{threads} threads on {len(cpus)} CPUs"
    with beside_a_neighbour(cpus[-1], threads) as timers:
        found = interleaved(works, repeats, NEIGHBOUR_SECONDS, timers)
    yield report(NEIGHBOUR, f"LLTM T100, {where}", *found)
    with one_cpu(cpus[0]) as (free, bound, how):
        with timer(free, threads) as alone, timer(bound, ASKED) as under:
            found = interleaved(works, repeats, QUOTA_SECONDS, (alone, under))
        yield report(QUOTA, f"LLTM T100, {ASKED} threads asked for, {how}; undisturbed: {where}", *found)


def timer(launcher: Sequence[str], threads: int) -> contextlib.AbstractContextManager[Timer]:
    return worker("disturbed", "sequences", threads, launcher=launcher)


def sequences(threads: int) -> Timer:
    """Runs in a process of its own: the mean seconds of a work's calls, repeated for a given time."""
    torch.set_num_threads(threads)
    calls = {}
    for work, (sizes, trains) in WORKS.items():
        problem = recurrent.whole("LLTM", recurrent.named(sizes))
        for contender in problem.rows:
            if (row := {LSTM: RIVAL, OURS: OURS}.get(contender.name)) is not None:
                calls[work, row] = problem, contender.build(contender.own(problem)), trains

    def mean_seconds(work: str, row: str, seconds: float) -> float:
        problem, candidate, trains = calls[work, row]
        start = end = time.perf_counter()
        count = 0
        while end - start < seconds:
            if trains:
                problem.results(candidate)
            else:
                with torch.no_grad():
                    candidate.call(*problem.inputs)
            count, end = count + 1, time.perf_counter()
        return (end - start) / count

    return mean_seconds


@contextlib.contextmanager
def beside_a_neighbour(cpu: int, threads: int) -> Iterator[tuple[Timer, Timer]]:
    with child([sys.executable, "-c", SPIN, str(cpu)]) as neighbour, timer([], threads) as alone:
        neighbour.stdout.readline()  # it has reached its CPU
        neighbour.send_signal(signal.SIGSTOP)

        def beside(work: str, row: str, seconds: float) -> float:
            neighbour.send_signal(signal.SIGCONT)
            try:
                return alone(work, row, seconds)
            finally:
                neighbour.send_signal(signal.SIGSTOP)

        yield alone, beside


def interleaved(works: Sequence[str], repeats: int, seconds: float, conditions: Sequence[Timer]) -> list[Samples]:
    """Samples of every work and row under each condition, in turns; the first of each is a warm-up."""
    samples: list[Samples] = [{} for _ in conditions]
    for repeat in range(repeats + 1):
        for key in ((work, row) for work in works for row in (OURS, RIVAL)):
            for found, condition in zip(samples, conditions, strict=True):
                taken = condition(*key, seconds)
                found.setdefault(key, []).extend([taken] if repeat else [])
    return samples


def report(condition: str, words: str, alone: Samples, disturbed: Samples) -> Report:
    slower = {key: summarise(paired_ratios(disturbed[key], alone[key])) for key in alone}
    medians = {key: [summarise(samples[key]).median for samples in (alone, disturbed)] for key in alone}
    cells = []
    for work in dict.fromkeys(work for work, _ in alone):
        ratios = [slower[work, row] for row in (OURS, RIVAL)]
        spreads = [f"{r.median:.2f}× ({r.lower_quartile:.2f} to {r.upper_quartile:.2f})" for r in ratios]
        cells.append((work, *(f"{1e6 * median:.1f}" for median in medians[work, OURS]), *spreads))
    aim = target(f"slow-down by {condition}")
    return Report(
        title=f"Slow-down by {condition}: {words}",
        headings=("work", "alone, µs", "disturbed, µs", "times as slow", f"{RIVAL}: times as slow"),
        cells=cells,
        figures=[
            {"work": work, "row": row, **dict(zip(("alone", "disturbed"), medians[work, row], strict=True))}
            | {"slower": found.median, "lower_quartile": found.lower_quartile}
            | {"upper_quartile": found.upper_quartile, "repeats": found.repeats}
            for (work, row), found in slower.items()
        ],
        outcomes=[Outcome(aim, work, slower[work, OURS].median) for work, *_ in cells],
    )


@contextlib.contextmanager
def one_cpu(cpu: int) -> Iterator[tuple[list[str], list[str], str]]:
    """The command prefixes of an unrestricted process and of one with the time of one CPU, and a description of the
    latter. They use control groups without and with a quota if those can be created; else the second process is bound
    to one CPU."""
    with contextlib.ExitStack() as stack:
        groups = [group for quota in (None, PERIOD) if (group := new_group(quota)) is not None]
        for group in groups:
            stack.callback(group.rmdir)
        if len(groups) == 2:
            free, bound = (["sh", "-c", JOIN, str(group / "cgroup.procs")] for group in groups)
            yield free, bound, "a control group's quota"
        else:
            yield [], [sys.executable, "-c", PIN, str(cpu)], "bound to one CPU, as no control group can be made here"


def new_group(quota: int | None) -> Path | None:
    """A control group below this process's own that may run ``quota`` µs in each PERIOD; None if no group can be
    created."""
    for parent in own_groups():
        group = parent / f"fourfold-benchmark-{os.getpid()}-{'free' if quota is None else 'bound'}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
            else:  # version 2; the file is missing unless the parent delegates the controller
                (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD}")
            return group
        except OSError:
            group.rmdir()
    return None


def own_groups() -> Iterator[Path]:
    """This process's control groups that may have the cpu controller: version 1's, then version 2's."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        names = ("cpu", controllers) if "cpu" in controllers.split(",") else () if controllers else ("",)
        yield from (CGROUPS / name / path.lstrip("/") for name in names)
