"""``disturbed``: how much slower two threads are beside a busy neighbour, and eight under a quota of one CPU.

Both are measured in turns with the undisturbed machine: the neighbour is stopped and continued, and of two processes
one is under the quota.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import worker
from benchmarks.problem import OURS
from benchmarks.processes import ask, child
from benchmarks.report import Report
from benchmarks.request import Request
from benchmarks.targets import Outcome
from benchmarks.timing import Statistics, paired_ratios, summarise

LIMIT = 3.0
NEIGHBOUR_SECONDS = 0.05  # of a sample: several of a scheduler's slices
QUOTA_SECONDS = 0.3  # of a sample: several of a quota's periods
PERIOD = 100_000  # µs, the kernel's own choice
ASKED = 8  # threads under the quota
REPEATS = 30
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
CGROUPS = Path("/sys/fs/cgroup")

Samples = dict[tuple[str, str], list[float]]  # by work and row


def reports(request: Request) -> Iterator[Report]:
    if not hasattr(os, "sched_setaffinity"):
        note = "Not measured: the neighbour and the quota are made with what Linux has for it."
        yield Report("A disturbed machine", ("work",), (), (), (note,))
        return
    works = list(worker.SIZES)[: 1 if request.quick else None]
    repeats = min(request.repeats, REPEATS)
    yield beside_a_neighbour(works, repeats)
    yield under_a_quota(works, repeats)


def beside_a_neighbour(works: Sequence[str], repeats: int) -> Report:
    cpus = sorted(os.sched_getaffinity(0))
    threads = min(2, len(cpus))
    with child([sys.executable, "-c", SPIN, str(cpus[-1])]) as neighbour, timer([], threads) as ask:
        neighbour.stdout.readline()  # it has reached its CPU

        def disturbed(work: str, row: str) -> float:
            neighbour.send_signal(signal.SIGCONT)
            try:
                return ask(work, row, NEIGHBOUR_SECONDS)
            finally:
                neighbour.send_signal(signal.SIGSTOP)

        neighbour.send_signal(signal.SIGSTOP)
        alone, beside = in_turns(works, repeats, lambda work, row: ask(work, row, NEIGHBOUR_SECONDS), disturbed)
    return report("a busy neighbour on one core", f"LLTM T100, {threads} threads on {len(cpus)} CPUs", alone, beside)


def under_a_quota(works: Sequence[str], repeats: int) -> Report:
    cpus = sorted(os.sched_getaffinity(0))
    threads = min(2, len(cpus))
    with (
        one_cpu(cpus[0]) as (launch_free, launch_bound, how),
        timer(launch_free, threads) as free,
        timer(launch_bound, ASKED) as bound,
    ):
        alone, under = in_turns(
            works,
            repeats,
            lambda work, row: free(work, row, QUOTA_SECONDS),
            lambda work, row: bound(work, row, QUOTA_SECONDS),
        )
    words = f"LLTM T100, {ASKED} threads asked for, {how}; undisturbed: {threads} threads on {len(cpus)} CPUs"
    return report("a quota of one CPU, eight threads asked for", words, alone, under)


def in_turns(works: Sequence[str], repeats: int, *conditions: Callable[[str, str], float]) -> tuple[Samples, ...]:
    """Samples of every work and row under each condition, in turns; the first of each is warm-up."""
    samples: tuple[Samples, ...] = tuple({} for _ in conditions)
    for repeat in range(repeats + 1):
        for work in works:
            for row in (OURS, worker.RIVAL):
                for found, condition in zip(samples, conditions, strict=True):
                    seconds = condition(work, row)
                    if repeat:
                        found.setdefault((work, row), []).append(seconds)
    return samples


def report(condition: str, words: str, alone: Samples, disturbed: Samples) -> Report:
    slower = {key: summarise(paired_ratios(disturbed[key], alone[key])) for key in alone}
    works = list(dict.fromkeys(work for work, _ in alone))
    return Report(
        title=f"Slow-down by {condition}: {words}",
        headings=("work", "alone, µs", "disturbed, µs", "times as slow", f"{worker.RIVAL}: times as slow"),
        cells=[cells(work, alone, disturbed, slower) for work in works],
        figures=[
            {
                "work": work,
                "row": row,
                "alone": summarise(alone[work, row]).median,
                "disturbed": summarise(disturbed[work, row]).median,
                "slower": figures.median,
                "lower_quartile": figures.lower_quartile,
                "upper_quartile": figures.upper_quartile,
                "repeats": figures.repeats,
            }
            for (work, row), figures in slower.items()
        ],
        outcomes=[
            Outcome(
                f"slow-down by {condition}", "itself undisturbed", work, LIMIT, slower[work, OURS].median, at_most=True
            )
            for work in works
        ],
    )


def cells(work: str, alone: Samples, disturbed: Samples, slower: Mapping[tuple[str, str], Statistics]) -> Sequence[str]:
    times = [f"{1e6 * summarise(samples[work, OURS]).median:.1f}" for samples in (alone, disturbed)]
    ratios = [slower[work, row] for row in (OURS, worker.RIVAL)]
    return (work, *times, *(f"{r.median:.2f}× ({r.lower_quartile:.2f} to {r.upper_quartile:.2f})" for r in ratios))


@contextlib.contextmanager
def timer(launcher: Sequence[str], threads: int) -> Iterator[Callable[[str, str, float], float]]:
    """A worker, asked for one sample at a time."""
    with child([*launcher, sys.executable, "-m", "benchmarks.worker", str(threads)]) as process:

        def timed(work: str, row: str, seconds: float) -> float:
            answer = ask(process, f"{work}\t{row}\t{seconds}")
            if not answer:
                raise RuntimeError(f"disturbed: expected a time of {work}, but got the end of its process")
            return float(answer)

        yield timed


@contextlib.contextmanager
def one_cpu(cpu: int) -> Iterator[tuple[list[str], list[str], str]]:
    """What to start a process with so that it is free, and so that it gets one CPU's time, and in words what that is:
    control groups without and with a quota, where those can be made; else the process may run on one CPU only."""
    with contextlib.ExitStack() as stack:
        groups = []
        for quota in (None, PERIOD):
            if (group := new_group(quota)) is not None:
                stack.callback(group.rmdir)
                groups.append(["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")])
        if len(groups) == 2:
            yield *groups, "a control group's quota"
        else:
            pin = f"import os, sys; os.sched_setaffinity(0, {{{cpu}}}); os.execvp(sys.argv[1], sys.argv[1:])"
            yield [], [sys.executable, "-c", pin], "bound to one CPU, as no control group can be made here"


def new_group(quota: int | None) -> Path | None:
    """A control group below this process's own, which may run for so many µs in each PERIOD; None where no group can
    be made."""
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
            else:  # version 2; the file is missing where the parent doesn't hand the controller down
                (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD}")
            return group
        except OSError:
            group.rmdir()
    return None


def own_groups() -> Iterator[Path]:
    """This process's control groups that may hold the cpu controller: version 1's, then version 2's."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            for name in ("cpu", controllers):
                yield CGROUPS / name / path.lstrip("/")
        elif not controllers:
            yield CGROUPS / path.lstrip("/")
