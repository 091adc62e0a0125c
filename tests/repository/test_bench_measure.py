"""Times are right: statistics, the order of samples, the clock, and CUDA graphs, which are simulated here. On a machine
with a GPU the commands themselves run."""

import dataclasses
import time

import pytest
import torch

from benchmarks import graphs, measure, recurrent
from benchmarks.__main__ import main
from benchmarks.measure import Clock, seconds_per_call
from benchmarks.problem import Contender
from benchmarks.results import Comparison
from benchmarks.targets import BACKWARD, BOTH, FORWARD, NO_GRAD, OURS, PLAIN
from fourfold.cli.timing import pinned_threads, with_float64
from machine import devices

CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}


@pytest.fixture
def task():
    """An LLTM cell with two rows that need no compiler."""
    problem = recurrent.one_cell(CELL_SIZES)
    return dataclasses.replace(problem, rows=[row for row in problem.rows if row.name in (PLAIN, OURS)])


def compare(problem, clock=None, repeats=1):
    return measure.compare(problem, problem.rows, repeats, clock)


def test_statistics_of_samples():
    figures = measure.summarise([5.0, 1.0, 2.0, 4.0, 3.0])
    assert figures == measure.Statistics(3.0, 1.0, 2.0, 4.0, 5) and figures.spread == 2.0
    assert measure.summarise([7.0]) == measure.Statistics(7.0, 7.0, 7.0, 7.0, 1)
    assert measure.paired_ratios([6.0, 8.0, 9.0], [3.0, 16.0]) == [2.0, 0.5]  # a slow row runs in the first rounds only
    assert measure.beaten({"x": [1.0, 2.0], "y": [3.0, 3.0]}, [2.0, 4.0]) == ["0.50× of x"]


def test_contenders_run_in_random_turns_after_untimed_calls(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)
    order = []

    def sample(name, seconds):
        return lambda iterations: order.append((name, iterations)) or {"forward": seconds * iterations}

    measured = measure.interleave({"a": sample("a", 1.0), "b": sample("b", 2.0)}, repeats=20, warmup=1)
    assert measured == {"a": {"forward": [1.0] * 20}, "b": {"forward": [2.0] * 20}}
    turns = order[4:]
    assert [iterations for _, iterations in turns] == [measure.UNTIMED, 1] * 40
    names = [name for name, _ in turns[::2]]
    rounds = {tuple(names[k : k + 2]) for k in range(0, 40, 2)}
    assert rounds == {("a", "b"), ("b", "a")} and names == [name for name, _ in turns[1::2]]


def test_a_slow_contender_takes_part_in_the_first_rounds(monkeypatch):
    monkeypatch.setattr(measure, "wall_seconds", lambda sample, iterations: sample(iterations)["x"])
    counts = {"fast": [], "slow": []}

    def sample(name, seconds):
        return lambda iterations: counts[name].append(iterations) or {"x": seconds}

    measured = measure.interleave({"fast": sample("fast", 1e-3), "slow": sample("slow", 0.5)}, repeats=10, warmup=2)
    assert {name: len(samples["x"]) for name, samples in measured.items()} == {"fast": 10, "slow": 4}
    assert counts == {"slow": [1, *[measure.UNTIMED, 1] * 4], "fast": [1, 5, 5, *[measure.UNTIMED, 25] * 10]}


@pytest.mark.parametrize("threads", [1, 2])
def test_one_threads_time_is_its_cpu_time(threads):
    clock = measure.Clock()
    with pinned_threads(threads):
        seconds = seconds_per_call(clock, lambda: time.sleep(0.05), 1)
    assert seconds < 0.025 if threads == 1 else seconds >= 0.05


def test_one_rows_trouble_leaves_the_others_their_figures(task, capsys, monkeypatch):
    def fails(problem):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    rows = compare(dataclasses.replace(task, rows=[*task.rows, Contender("greedy", fails)]))
    assert [bool(row.samples) for row in rows] == [True, True, False]
    assert rows[2].reason == "failed: OutOfMemoryError: CUDA out of memory" and not rows[2].wrong
    failing = dataclasses.replace(task, rows=[Contender(OURS, fails)])
    monkeypatch.setattr(recurrent, "one_cell", lambda sizes, device: failing)
    assert main(["cell", "--quick", "--repeats", "1"]) == 1  # a failure of fourfold's row is reported
    assert "fourfold was not measured: failed: OutOfMemoryError" in capsys.readouterr().out


def test_float64_of_an_apple_gpu_is_on_the_cpu():
    """Metal has no float64, and can't convert to it."""

    class Tensor(torch.Tensor):
        device = torch.device("mps")

        def cpu(self):
            return self.as_subclass(torch.Tensor)

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    assert with_float64(torch.ones(2).as_subclass(Tensor)).dtype == torch.float64


class FakeClock:
    """A GPU's clock that advances by one second per mark and records the calls."""

    graphs = True

    def __init__(self):
        self.asked, self.now = [], 0

    def mark(self):
        self.now += 1
        self.asked.append("mark")
        return self.now

    def seconds(self, pairs):
        return sum(end - start for start, end in pairs)

    def flush(self):
        self.asked.append("flush")

    def settle(self):
        self.asked.append("settle")


def test_warm_calls_share_two_marks_and_cold_ones_have_their_own():
    clock = FakeClock()
    assert seconds_per_call(clock, lambda: clock.asked.append("call"), 4) == 1 / 4
    assert clock.asked == ["settle", "mark", *["call"] * 4, "mark"]
    clock = FakeClock()
    assert seconds_per_call(clock, lambda: clock.asked.append("call"), 3, cold=True) == 1
    assert clock.asked == ["settle", *["flush", "mark", "call", "mark"] * 3]


def test_forward_and_backward_are_told_apart(task):
    clock = FakeClock()
    times = measure.training_seconds(task, task.rows[0].build(task), clock, 3)
    assert times == {FORWARD: 1, BACKWARD: 1, BOTH: 2} and clock.asked == ["settle", *["mark"] * 9]


class FakeGraph:
    """Replays by calling again and writing to the captured results; one that missed the call writes nothing."""

    def __init__(self, call, results, missed):
        self.call, self.results, self.missed = call, results, missed

    def replay(self):
        for result, value in zip(self.results, self.call(), strict=True):
            if not self.missed:
                result.copy_(value)


@pytest.mark.parametrize("missed", [False, True])
def test_each_contender_has_a_row_from_a_graph_unless_it_missed_its_kernels(task, missed, monkeypatch):
    def capture(call):
        results = call()
        return graphs.Captured(FakeGraph(call, results, missed), results)

    monkeypatch.setattr(graphs, "capture", capture)
    task.rows[0] = dataclasses.replace(task.rows[0], uncaptured="it waits for the host")
    rows = compare(task, FakeClock(), repeats=2)
    assert [row.label for row in rows] == [PLAIN, f"{PLAIN}, CUDA graph", OURS, f"{OURS}, CUDA graph"]
    assert rows[1].reason == "can't be captured: it waits for the host" and not rows[1].wrong
    assert set(rows[2].samples) == {NO_GRAD, FORWARD, BACKWARD, BOTH}
    table = Comparison(task, None, rows)
    assert table.wrong is missed and set(rows[3].samples) == (set() if missed else {NO_GRAD, BOTH})
    assert rows[3].reason.startswith("WRONG: relative error inf") is missed
    assert (f"{OURS}, CUDA graph was not measured: {rows[3].reason}" in table.losses()) is missed


on_a_gpu = pytest.mark.skipif(
    torch.version.cuda is None or "cuda" not in devices(), reason="needs a GPU (make check-gpu)"
)


@on_a_gpu
def test_a_cold_call_of_a_gpu_takes_no_less_than_its_memory_does():
    clock, x = Clock("cuda"), torch.ones(10**8, device="cuda")
    start = time.perf_counter()
    seconds = seconds_per_call(clock, lambda: x + 1, 20, cold=True)
    wall = (time.perf_counter() - start) / 20
    assert 8e8 / 20e12 < seconds < wall  # no GPU's memory moves 20 TB/s
