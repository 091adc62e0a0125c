"""Timing of rows: on every machine with simulated GPU clocks and graphs, and on a machine with a GPU the commands
themselves."""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import fourfold
from benchmarks import elementwise, environment, graphs, measure, recurrent
from benchmarks.__main__ import main
from benchmarks.measure import Clock, seconds_per_call
from benchmarks.problem import Contender
from benchmarks.results import Comparison
from benchmarks.targets import BACKWARD, BOTH, COLD, FORWARD, NO_GRAD, OURS, PLAIN
from fourfold.cli.timing import is_noisy
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


def test_contenders_run_in_turns_and_the_first_changes(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)
    order = []

    def sample(name, seconds):
        return lambda iterations: order.append(name) or {"forward": seconds * iterations}

    measured = measure.interleave({"a": sample("a", 1.0), "b": sample("b", 2.0)}, repeats=3, warmup=1)
    assert measured == {"a": {"forward": [1.0] * 3}, "b": {"forward": [2.0] * 3}}
    assert order == list("aabb" + "abbaab")


def test_a_slow_contender_takes_part_in_the_first_rounds(monkeypatch):
    monkeypatch.setattr(measure, "wall_seconds", lambda sample, iterations: sample(iterations)["x"])
    counts = {"fast": [], "slow": []}

    def sample(name, seconds):
        return lambda iterations: counts[name].append(iterations) or {"x": seconds}

    measured = measure.interleave({"fast": sample("fast", 1e-3), "slow": sample("slow", 0.5)}, repeats=10, warmup=2)
    assert {name: len(samples["x"]) for name, samples in measured.items()} == {"fast": 10, "slow": 4}
    assert counts == {"slow": [1] * 5, "fast": [1, 5, 5, *[25] * 10]}


@pytest.mark.parametrize(("load", "noisy"), [(None, False), (0.3, False), (0.31, True)])
def test_a_busy_machine_is_noisy(load, noisy):
    assert is_noisy(load) is noisy
    facts = {**environment.collect(30, torch.device("cpu")), "load_average": load, "noisy": noisy}
    assert ("NOISY" in environment.opening(facts)) is noisy
    assert "TRIAL" not in environment.opening(facts)


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


def test_what_is_checked_is_computed_where_float64_is(task):
    """Tensors on a simulated Apple GPU are moved to the CPU before they are converted to float64."""
    moves = []

    class Tensor(torch.Tensor):
        device = torch.device("mps")

        def cpu(self):
            moves.append("cpu")
            return self.as_subclass(torch.Tensor)

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    there = {name: tuple(x.as_subclass(Tensor) for x in getattr(task, name)) for name in ("inputs", "parameters")}
    exact = dataclasses.replace(task, **there).exact()
    assert moves == ["cpu"] * 5
    for mine, expected in zip(exact, task.exact(), strict=True):
        assert mine.dtype == torch.float64 and torch.equal(mine, expected)
    assert task.distance([result.float().as_subclass(Tensor) for result in exact], exact) < 1e-6
    assert len(moves) == 5 + len(exact)


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


class FakeGraph:
    """Replays by calling again and writing to the captured results; one that missed the call writes nothing."""

    def __init__(self, call, results, missed=False):
        self.call, self.results, self.missed, self.replays = call, results, missed, 0

    def replay(self):
        self.replays += 1
        if not self.missed:
            for result, value in zip(self.results, self.call(), strict=True):
                result.copy_(value)


@pytest.fixture
def capture(monkeypatch, request):
    """Replaces captures by fake graphs; returns the graphs that were made."""
    made = []

    def capture(call):
        results = call()
        made.append(FakeGraph(call, results, missed=getattr(request, "param", False)))
        return graphs.Captured(made[-1], results)

    monkeypatch.setattr(graphs, "capture", capture)
    return made


def test_warm_calls_share_two_marks_and_cold_ones_have_their_own():
    clock, calls = FakeClock(), []
    assert seconds_per_call(clock, lambda: calls.append(clock.asked.append("call")), 4) == 1 / 4
    assert clock.asked == ["settle", "mark", *["call"] * 4, "mark"]
    clock = FakeClock()
    assert seconds_per_call(clock, lambda: clock.asked.append("call"), 3, cold=True) == 1
    assert clock.asked == ["settle", *["flush", "mark", "call", "mark"] * 3]


def test_on_the_cpu_marks_are_in_seconds_and_nothing_is_flushed():
    clock = Clock()
    clock.flush()
    for cold in (False, True):
        assert 0.02 <= seconds_per_call(clock, lambda: time.sleep(0.02), 2, cold=cold) < 1
    assert clock.scratch is None and len(clock.events) == 4


def test_the_gpus_clock_flushes_and_waits_outside_its_events(monkeypatch):
    done, now = [], itertools.count(5)

    class Event:
        def __init__(self, device):
            assert device == torch.device("cuda")
            done.append("made")

        def record(self):
            self.at = next(now)
            done.append("record")

        def elapsed_time(self, end):
            assert done[-1] == "synchronize"  # a pending event has no time
            return float(end.at - self.at)

    monkeypatch.setattr(fourfold, "Event", Event)
    monkeypatch.setattr(measure, "synchronize", lambda device: done.append("synchronize"))
    monkeypatch.setattr(measure, "scratch", lambda device: torch.ones(8))
    clock = Clock("cuda")
    assert clock.graphs and not Clock("mps").graphs and not Clock().graphs
    for made in (["made"], []):  # events are created once
        assert seconds_per_call(clock, lambda: done.append("call"), 2) == pytest.approx(1e-3 / 2)
        assert done == ["synchronize", *made, "record", "call", "call", *made, "record", "synchronize"]
        assert not clock.scratch.any()
        del done[:]


def test_what_is_overwritten_is_more_than_the_gpus_cache(monkeypatch):
    sizes = []
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: sizes.append((size, dtype, device.type)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=100 * 2**20))
    for device in ("cuda", "mps"):
        measure.scratch(torch.device(device))
    assert sizes == [(400 * 2**20, torch.uint8, "cuda"), (2**28, torch.uint8, "mps")]


def test_forward_and_backward_are_told_apart(task):
    clock = FakeClock()
    times = measure.training_seconds(task, task.rows[0].build(task), clock, 3)
    assert times == {FORWARD: 1, BACKWARD: 1, BOTH: 2} and clock.asked == ["settle", *["mark"] * 9]


def test_each_contender_has_a_row_from_a_graph(task, capture):
    task.rows[0] = dataclasses.replace(task.rows[0], uncaptured="it waits for the host")
    rows = compare(task, FakeClock(), repeats=2)
    assert [row.label for row in rows] == [PLAIN, f"{PLAIN}, CUDA graph", OURS, f"{OURS}, CUDA graph"]
    assert rows[1].reason == "can't be captured: it waits for the host" and not rows[1].wrong
    assert set(rows[2].samples) == {NO_GRAD, FORWARD, BACKWARD, BOTH} and set(rows[3].samples) == {NO_GRAD, BOTH}
    assert len(capture) == 2 and all(graph.replays > 2 for graph in capture)
    text = Comparison(task, None, rows).plain()
    assert "it waits for the host" in text and text.splitlines()[0].endswith("float32: cpu")
    assert text.count(f"{OURS}, CUDA graph  ") == 4


def cold_axpby():
    return dataclasses.replace(
        elementwise.problem("axpby", 100), phases=(COLD, NO_GRAD), rows=elementwise.ROWS["axpby"]
    )


@pytest.mark.parametrize(
    "problem",
    [lambda: recurrent.whole("LLTM", {**CELL_SIZES, "time": 12}), cold_axpby],
    ids=["sequence", "elementwise"],
)
def test_graphs_hold_a_forward_and_its_gradients(problem, capture):
    problem = problem()
    rows = compare(problem, FakeClock())
    assert len(rows) == 2 * len(problem.rows) == 6
    for row in rows:
        assert set(row.samples) == set(problem.phases), row.reason


def test_a_graph_is_replayed_cold_and_warm():
    clock, graph = FakeClock(), FakeGraph(list, [])
    seconds = graphs.sampler(cold_axpby(), {NO_GRAD: graphs.Captured(graph, [])}, clock)(2)
    assert clock.asked == ["settle", *["flush", "mark", "mark"] * 2, "settle", "mark", "mark"]
    assert graph.replays == 4 and seconds == {COLD: 1, NO_GRAD: 1 / 2}


@pytest.mark.parametrize("capture", [True], indirect=True)
def test_a_graph_that_missed_its_kernels_is_wrong(task, capture):
    rows = compare(task, FakeClock())
    assert [row.wrong for row in rows] == [False, True, False, True]
    assert rows[3].reason.startswith("WRONG: relative error inf") and not rows[3].samples
    table = Comparison(task, None, rows)
    assert table.wrong and f"{OURS}, CUDA graph was not measured: {rows[3].reason}" in table.losses()


def test_a_call_that_cannot_be_captured_says_why(task, monkeypatch):
    def refuse(call):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "capture", refuse)
    row, captured = graphs.prepare(task, Contender("x", None), task.rows[1].build(task), [])
    assert not captured and not row.wrong
    assert row.reason.startswith("can't be captured: RuntimeError: CUDA error: operation not permitted")


def test_a_capture_is_warmed_up_on_a_stream_of_its_own(monkeypatch):
    order = []

    @contextlib.contextmanager
    def inside(name):
        order.append(name)
        yield
        order.append("end")

    stream = SimpleNamespace(wait_stream=lambda other: order.append("wait"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: inside("warm"))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: inside("capture"))
    captured = graphs.capture(lambda: order.append("call") or [torch.zeros(1)])
    calls = ["call"] * graphs.WARM_CALLS
    assert order == ["wait", "warm", *calls, "end", "wait", "capture", "call", "end"]
    assert captured.results[0].shape == (1,)


@pytest.mark.skipif(os.name != "posix", reason="puts a shell script on PATH")
def test_what_nvidia_smi_says_is_read(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    said = '#!/bin/sh\necho "$@" > "$0.asked"\necho "580.1, 1980 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700.00 W, 31"\n'
    program.write_text(said)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = environment.nvidia_smi("GPU-12")
    assert found["driver"] == "580.1" and found["clock_sm"] == "1980 MHz" and found["temperature"] == "31"
    asked = (tmp_path / "nvidia-smi.asked").read_text()
    assert "--id=GPU-12" in asked and "--query-gpu=" in asked
    assert len(asked.split()) == 3  # it changes no setting
    monkeypatch.setattr(environment, "uuid", lambda device: "GPU-12")
    clocks = {"clock_sm": "1980 MHz", "clock_memory": "3201 MHz", "temperature": "31"}
    assert environment.clocks(torch.device("cuda")) == clocks and environment.clocks(torch.device("cpu")) is None
    program.write_text("#!/bin/sh\nexit 9\n")
    assert set(environment.nvidia_smi("").values()) == {None}


def test_the_environment_of_a_gpu_names_it(monkeypatch):
    card = {"name": "NVIDIA X", "driver": None, "cuda": "13.0", "cudnn": 91000, "clock_sm": None}
    card |= {"clock_memory": "1 MHz", "fourfold_kernels": "CUDA 13.0 for 9.0"}
    text = environment.opening({**environment.collect(40, torch.device("cpu")), "gpu": card})
    assert "NVIDIA X, driver unknown, CUDA 13.0, cuDNN 91000" in text
    assert "clocks at the start unknown, memory 1 MHz; fourfold's kernels: CUDA 13.0 for 9.0" in text
    monkeypatch.setenv("FOURFOLD_COMMIT", "abc")
    assert environment.commit() == "abc"


on_a_gpu = pytest.mark.skipif(
    torch.version.cuda is None or "cuda" not in devices(), reason="needs a GPU (make check-gpu)"
)


@on_a_gpu
@pytest.mark.parametrize(
    "arguments",
    [
        "cell --skip aten inductor",
        "mlp --skip aten inductor",
        "elementwise --elements 100000",
        "sequence --batch-size 4 --input-size 16 --hidden-size 64 --time 20 --skip inductor",
    ],
    ids=lambda arguments: arguments.split()[0],
)
def test_a_suite_on_a_gpu(arguments, capsys, tmp_path):
    file = tmp_path / "result.json"
    code = main([*arguments.split(), "--device", "cuda", "--repeats", "2", "--json", str(file)])
    output, contents = capsys.readouterr().out, json.loads(file.read_text())
    assert code == 0, output
    assert contents["environment"]["gpu"]["name"] in output
    for result in contents["results"]:
        rows = {row["name"]: row for row in result["rows"]}
        for name in (OURS, f"{OURS}, CUDA graph"):
            assert rows[name]["phases"], rows[name]["reason"]
            assert all(phase["minimum"] > 0 for phase in rows[name]["phases"].values())


@on_a_gpu
def test_a_cold_call_of_a_gpu_takes_no_less_than_its_memory_does():
    clock, x = Clock("cuda"), torch.ones(10**8, device="cuda")
    start = time.perf_counter()
    seconds = seconds_per_call(clock, lambda: x + 1, 20, cold=True)
    wall = (time.perf_counter() - start) / 20
    assert 8e8 / 20e12 < seconds < wall  # no GPU's memory moves 20 TB/s


@on_a_gpu
@pytest.mark.skipif(sys.platform != "linux", reason="torch builds extensions there")
def test_the_tutorials_cuda_kernels_compute_the_definition():
    problem = recurrent.one_cell(CELL_SIZES, "cuda")
    (contender,) = (c for c in problem.rows if "CUDA kernels" in c.name)
    row, candidate = measure.prepare(problem, contender, problem.exact())
    if candidate is None and row.reason.startswith("can't be built"):
        pytest.skip(row.reason)
    assert candidate is not None, row.reason
