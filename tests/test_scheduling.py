"""The number of threads in a team: torch's setting, limited by CPU affinity, OpenMP and control groups."""

import os
import sys

import pytest

from machine import ROOT, linux_only, missing, output_of, tool
from once import made_once

pytestmark = linux_only

# The CPU time of each thread during a fraction of a second of one layer's calls. Waiting threads of the pool take none,
# because OpenMP is set to let them sleep.
WORK = """
import os, time, torch, fourfold
from pathlib import Path

def seconds():
    stats = {t.name: (t / "stat").read_text().rsplit(")", 1)[1].split() for t in Path("/proc/self/task").iterdir()}
    return {t: (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") for t, stat in stats.items()}

AFFINITY
layer = fourfold.nn.LSTM(64, 512)
x = torch.randn(32, 64, 64)
torch.randn(1 << 20).exp_()  # starts the pool
with torch.no_grad():
    layer(x)
    before = seconds()
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        layer(x)
after = seconds()
print(*sorted((after[t] - before.get(t, 0) for t in after), reverse=True)[:2])
"""


def workers(change_affinity="", **environment):
    names = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
    surroundings = {name: value for name, value in os.environ.items() if name not in names}
    surroundings |= {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"} | environment
    code = WORK.replace("AFFINITY", change_affinity)
    first, second = output_of(sys.executable, "-c", code, env=surroundings).split()
    return 2 if float(second) > 0.1 * float(first) else 1


@pytest.fixture
def cpus():
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        missing("this test needs two CPUs")
    return found


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMP_PROC_BIND": "spread"},
        {"OMP_PLACES": "threads"},
        {"GOMP_CPU_AFFINITY": "{0} {1}"},  # OMP_PROC_BIND is then true
    ],
    ids=str,
)
@pytest.mark.slow
def test_bound_threads_work_together(cpus, environment):
    assert workers(**{name: value.format(*cpus) for name, value in environment.items()}) == 2


def test_one_cpu_is_given_one_thread(cpus):
    assert workers(f"os.sched_setaffinity(0, [{cpus[1]}])") == 1
    assert workers(GOMP_CPU_AFFINITY=str(cpus[1])) == 1


@pytest.fixture(scope="module")
def quota(shared):
    """Finds the quota in a folder of files, given as a table of names and texts."""
    sources = (ROOT / "tests" / "cpp" / "quota.cpp", ROOT / "cpp" / "cpu" / "quota.cpp")
    compile = (tool("g++", "g++"), "-std=c++20", "-I", ROOT / "cpp", *sources, "-o")
    program = made_once(shared / "quota", lambda folder: output_of(*compile, folder / "quota")) / "quota"

    def find(folder, files):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return float(output_of(program, folder))

    return find


V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
V1 = (
    "30 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n"
    "32 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw master:11 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 30 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
HYBRID = V1 + "41 30 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
# A container without a control group namespace: its own group is mounted at the top, but has the host's name.
CONTAINER = "32 30 0:29 /docker/1f /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "cpus"),
    [
        (V2, "0::/a/b/c\n", {"a/b/cpu.max": "150000 100000\n", "a/cpu.max": "400000 100000\n"}, 1.5),
        (V2, "0::/a/b/c\n", {"a/b/c/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        (V2, "0::/a/b\n", {"a/b/cpu.max": "100000 100000\n", "a/cpu.max": "max 100000\n"}, 1),
        (V2, "0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        (V2, "0::/../outside\n", {"cpu.max": "200000 100000\n"}, 2),
        (V2, "0::/a\n", {"a/cpu.max": "max 100000\n", "other/cpu.max": "1000 100000\n"}, 0),
        (
            V1,
            "9:cpuset:/c\n4:cpu,cpuacct:/a/b\n0::/\n",
            {
                "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            HYBRID,
            "4:cpu,cpuacct:/a\n0::/u/v\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "unified/u/cpu.max": "200000 100000\n",
            },
            2,
        ),
        (
            CONTAINER,
            "4:cpu:/docker/1f/inner\n",
            {
                "cpu/cpu.cfs_quota_us": "300000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "cpu/inner/cpu.cfs_quota_us": "100000\n",
                "cpu/inner/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ("", "", {}, 0),
    ],
)
def test_the_smallest_quota_counts(quota, tmp_path, mounts, groups, files, cpus):
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    files |= {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups}
    assert quota(tmp_path, files) == cpus


def test_a_group_without_its_files_has_no_quota(quota, tmp_path):
    assert quota(tmp_path, {"unrelated": ""}) == 0
