"""How the benchmarks measure a GPU: on every machine with clocks and graphs that are made up, and on a machine with one
the commands themselves."""

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
from benchmarks import (
    cell,
    clocks,
    comparison,
    elementwise,
    environment,
    graphs,
    request,
    sequence,
    tables,
    timing,
)
from benchmarks.__main__ import main
from benchmarks.precision import FLOAT32
from benchmarks.problem import BACKWARD, BOTH, COLD, FORWARD, NO_GRAD, OURS, Contender
from machine import devices

CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}


class FakeClock:
    """A GPU's clock whose time passes by one second a mark, and which writes down what it was asked."""

    graphs = True

    def __init__(self):
        self.asked = []
        self.now = 0

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
    """Replays by calling again and writing where the captured call wrote; one that missed it all writes nothing."""

    def __init__(self, call, results, missed=False):
        self.call, self.results, self.missed, self.replays = call, results, missed, 0

    def replay(self):
        self.replays += 1
        if not self.missed:
            for result, value in zip(self.results, self.call(), strict=True):
                result.copy_(value)


def capture_with(monkeypatch, missed=False):
    made = []

    def capture(call):
        results = call()
        made.append(FakeGraph(call, results, missed))
        return graphs.Captured(made[-1], results)

    monkeypatch.setattr(graphs, "capture", capture)
    return made


def cell_contenders(problem):
    return [c for c in cell.contenders(problem, {"aten", "inductor"}) if c.name in ("plain PyTorch", OURS)]


def test_warm_calls_share_two_marks_and_cold_ones_have_their_own():
    clock, calls = FakeClock(), []
    assert clocks.seconds_per_call(clock, lambda: calls.append(clock.asked.append("call")), 4) == 1 / 4
    assert clock.asked == ["settle", "mark", *["call"] * 4, "mark"]
    clock = FakeClock()
    assert clocks.seconds_per_call(clock, lambda: clock.asked.append("call"), 3, cold=True) == 1
    assert clock.asked == ["settle", *["flush", "mark", "call", "mark"] * 3]


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
            assert done[-1] == "synchronize"  # an event that hasn't happened yet has no time
            return float(end.at - self.at)

    monkeypatch.setattr(fourfold, "Event", Event)
    monkeypatch.setattr(clocks, "synchronize", lambda device: done.append("synchronize"))
    monkeypatch.setattr(clocks, "scratch", lambda device: torch.ones(8))
    clock = clocks.Clock("cuda")
    assert clock.graphs and not clocks.Clock("mps").graphs and not clocks.Clock().graphs
    for made in (["made"], []):  # events are made once
        assert clocks.seconds_per_call(clock, lambda: done.append("call"), 2) == pytest.approx(1e-3 / 2)
        assert done == ["synchronize", *made, "record", "call", "call", *made, "record", "synchronize"]
        assert not clock.scratch.any()
        del done[:]


def test_what_is_overwritten_is_more_than_the_gpus_cache(monkeypatch):
    sizes = []
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: sizes.append((size, dtype, device.type)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=100 * 2**20))
    for device in ("cuda", "mps"):
        clocks.scratch(torch.device(device))
    assert sizes == [(400 * 2**20, torch.uint8, "cuda"), (2**28, torch.uint8, "mps")]


def test_forward_and_backward_are_told_apart():
    problem = cell.problem(CELL_SIZES)
    clock = FakeClock()
    candidate = cell_contenders(problem)[0].build()
    times = comparison.training_seconds(problem, candidate, clock, 3)
    assert times == {FORWARD: 1, BACKWARD: 1, BOTH: 2}
    assert clock.asked == ["settle", *["mark"] * 9]


def test_a_slow_contender_takes_part_in_the_first_rounds(monkeypatch):
    monkeypatch.setattr(timing, "wall_seconds", lambda sample, iterations: sample(iterations)["x"])
    counts = {"fast": [], "slow": []}

    def sample(name, seconds):
        return lambda iterations: counts[name].append(iterations) or {"x": seconds}

    measured = timing.interleave({"fast": sample("fast", 1e-3), "slow": sample("slow", 0.5)}, repeats=10, warmup=2)
    assert {name: len(samples["x"]) for name, samples in measured.items()} == {"fast": 10, "slow": 4}
    assert counts["slow"] == [1] * 5
    assert counts["fast"] == [1, 5, 5, *[25] * 10]
    assert timing.paired_ratios([4.0, 6.0, 9.0], [2.0, 2.0]) == [2.0, 3.0]


def test_each_contender_has_a_row_from_a_graph(monkeypatch):
    made = capture_with(monkeypatch)
    problem = cell.problem(CELL_SIZES)
    contenders = cell_contenders(problem)
    contenders[0] = dataclasses.replace(contenders[0], uncaptured="it waits for the host")
    rows = comparison.compare(problem, contenders, repeats=2, clock=FakeClock())
    assert [row.label for row in rows] == ["plain PyTorch", "plain PyTorch, CUDA graph", OURS, f"{OURS}, CUDA graph"]
    assert rows[1].reason == "can't be captured: it waits for the host" and not rows[1].wrong
    assert set(rows[2].samples) == {NO_GRAD, FORWARD, BACKWARD, BOTH}
    assert set(rows[3].samples) == {NO_GRAD, BOTH}
    assert len(made) == 2 and all(graph.replays > 2 for graph in made)
    text = tables.plain(tables.Comparison(problem, None, rows))
    assert "it waits for the host" in text and text.splitlines()[0].endswith("float32: cpu")
    assert text.count(f"{OURS}, CUDA graph  ") == 4


@pytest.mark.parametrize("benchmark", ["sequence", "elementwise"])
def test_graphs_hold_a_forward_and_its_gradients(benchmark, monkeypatch):
    capture_with(monkeypatch)
    if benchmark == "sequence":
        problem = sequence.problem({"batch_size": 2, "input_size": 3, "hidden_size": 8, "time": 4}, FLOAT32)
        contenders = sequence.contenders(problem, ())
    else:
        problem = dataclasses.replace(elementwise.problem("axpby", 100, FLOAT32), phases=(COLD, NO_GRAD))
        contenders = [dataclasses.replace(c, problem=None) for c in elementwise.contenders(problem, ())[1:]]
    rows = comparison.compare(problem, contenders, repeats=1, clock=FakeClock())
    assert len(rows) == 2 * len(contenders)
    for row in rows:
        assert set(row.samples) == set(problem.phases), row.reason


def test_a_graph_is_replayed_cold_and_warm():
    problem = dataclasses.replace(elementwise.problem("axpby", 100, FLOAT32), phases=(COLD, NO_GRAD))
    clock, graph = FakeClock(), FakeGraph(list, [])
    seconds = graphs.graph_sampler(problem, {NO_GRAD: graphs.Captured(graph, [])}, clock)(2)
    assert clock.asked == ["settle", *["flush", "mark", "mark"] * 2, "settle", "mark", "mark"]
    assert graph.replays == 4 and seconds == {COLD: 1, NO_GRAD: 1 / 2}


def test_a_graph_that_missed_its_kernels_is_wrong(monkeypatch):
    capture_with(monkeypatch, missed=True)
    problem = cell.problem(CELL_SIZES)
    rows = comparison.compare(problem, cell_contenders(problem), repeats=1, clock=FakeClock())
    assert [row.wrong for row in rows] == [False, True, False, True]
    assert rows[3].reason.startswith("WRONG: relative error inf") and not rows[3].samples
    lines = tables.losses(tables.Comparison(problem, None, rows))
    assert f"{OURS}, CUDA graph was not measured: {rows[3].reason}" in lines


def test_a_call_that_cannot_be_captured_says_why(monkeypatch):
    def refuse(call):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "capture", refuse)
    problem = cell.problem(CELL_SIZES)
    row, captured = comparison.prepare_graph(problem, Contender("x", None), cell_contenders(problem)[1].build(), [])
    assert not captured and not row.wrong
    assert row.reason.startswith("can't be captured: RuntimeError: CUDA error: operation not permitted")


def test_a_capture_is_warmed_up_on_a_stream_of_its_own(monkeypatch):
    order = []

    class Stream:
        def wait_stream(self, other):
            order.append("wait")

    @contextlib.contextmanager
    def inside(name):
        order.append(name)
        yield
        order.append("end")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: inside("warm"))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: inside("capture"))
    captured = graphs.capture(lambda: order.append("call") or [torch.zeros(1)])
    calls = ["call"] * graphs.WARM_CALLS
    assert order == ["wait", "warm", *calls, "end", "wait", "capture", "call", "end"]
    assert captured.results[0].shape == (1,)


def test_one_rows_trouble_leaves_the_others_their_figures():
    problem = cell.problem(CELL_SIZES)

    def fails():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    rows = comparison.compare(problem, [*cell_contenders(problem), Contender("greedy", fails)], repeats=1)
    assert [bool(row.samples) for row in rows] == [True, True, False]
    assert rows[2].reason == "failed: OutOfMemoryError: CUDA out of memory" and not rows[2].wrong
    ours = comparison.compare(problem, [Contender(OURS, fails)], repeats=1)[0]
    assert ours.wrong  # ours failing is a result, and exit code 1


def refusal(*arguments):
    return main(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("cell --device abacus", "cell: expected --device to be cpu, cuda, cuda:1 or mps, but got 'abacus'"),
        ("mlp --device xpu", "mlp: expected --device to be cpu, cuda, cuda:1 or mps, but got 'xpu'"),
        ("cell --memory-fraction 3", "argument --memory-fraction: expected a number from 0 to 2, but got '3'"),
        ("mlp --memory-fraction 0.5", "mlp: expected --memory-fraction only with --device cuda or mps, but got cpu"),
        ("sequence --dtype tf32", "sequence: expected --dtype tf32 only with --device cuda, but got cpu"),
        ("elementwise --dtype tf32", "argument --dtype: invalid choice: 'tf32'"),
        ("elementwise --elements 0", "argument --elements: expected a positive integer, but got '0'"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence(arguments, complaint, capsys):
    try:
        code = refusal(*arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    output, error = capsys.readouterr()
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert complaint in error


def test_a_missing_gpu_is_one_sentence(capsys, monkeypatch):
    present = None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: present)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert refusal("cell", "--device", "cuda") == 2
    assert f"but got 'cuda': torch {torch.__version__} sees no GPU" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
    present = torch.device("mps")
    assert refusal("cell", "--device", "cuda") == 2
    assert "sees one that is mps" in capsys.readouterr().err
    present = torch.device("cuda")
    assert refusal("cell", "--device", "cuda:2") == 2
    assert "expected one of the GPUs 0 to 1, but got 'cuda:2'" in capsys.readouterr().err
    state = {"built": False, "usable": False, "reason": "not built: switched off"}
    monkeypatch.setattr(fourfold, "backends", lambda: {"cuda": state, "hip": {**state, "reason": "none"}})
    assert refusal("cell", "--device", "cuda") == 2
    assert "expected a fourfold with CUDA kernels, but of them: not built: switched off" in capsys.readouterr().err
    with monkeypatch.context() as rocm:
        rocm.setattr(torch.version, "hip", "7.0")
        assert refusal("cell", "--device", "cuda") == 2
        assert "expected a fourfold with HIP kernels, but of them: none" in capsys.readouterr().err
    state["usable"] = True
    assert request.device_with_kernels("cell", "cuda:1") == torch.device("cuda", 1)
    assert refusal("cell", "--device", "cuda", "--threads", "1") == 2
    assert "expected --threads only with --device cpu, but got cuda:0" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="puts a shell script on PATH")
def test_what_nvidia_smi_says_is_read(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\necho "$@" > "$0.asked"\necho "580.1, 1980 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700.00 W, 31"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said = environment.nvidia_smi("GPU-12")
    assert said["driver"] == "580.1" and said["clock_sm"] == "1980 MHz" and said["temperature"] == "31"
    asked = (tmp_path / "nvidia-smi.asked").read_text()
    assert "--id=GPU-12" in asked and "--query-gpu=" in asked
    assert len(asked.split()) == 3  # nothing that would change a setting
    program.write_text("#!/bin/sh\nexit 9\n")
    assert set(environment.nvidia_smi("").values()) == {None}


def test_the_clocks_of_a_measurement_are_a_gpus(monkeypatch):
    monkeypatch.setattr(environment, "uuid", lambda device: "GPU-12")
    said = {"clock_sm": "1980 MHz", "clock_memory": "2619 MHz", "temperature": "41", "driver": "580.1"}
    monkeypatch.setattr(environment, "nvidia_smi", lambda uuid: said)
    clocks = environment.clocks(torch.device("cuda"))
    assert clocks == {"clock_sm": "1980 MHz", "clock_memory": "2619 MHz", "temperature": "41"}
    assert environment.clocks(torch.device("cpu")) is None


def test_the_environment_of_a_gpu_names_it(monkeypatch):
    card = {
        "name": "NVIDIA X",
        "driver": None,
        "cuda": "13.0",
        "cudnn": 91000,
        "clock_sm": None,
        "clock_memory": "1 MHz",
    }
    facts = {**environment.collect(40, torch.device("cpu")), "gpu": {**card, "fourfold_kernels": "CUDA 13.0 for 9.0"}}
    text = environment.opening(facts)
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
def test_bench_on_a_gpu(arguments, capsys, tmp_path):
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
    clock = clocks.Clock("cuda")
    x = torch.ones(10**8, device="cuda")
    start = time.perf_counter()
    seconds = clocks.seconds_per_call(clock, lambda: x + 1, 20, cold=True)
    wall = (time.perf_counter() - start) / 20
    assert 8e8 / 20e12 < seconds < wall  # no GPU's memory moves 20 TB/s


@on_a_gpu
@pytest.mark.skipif(sys.platform != "linux", reason="torch builds extensions there")
def test_the_tutorials_cuda_kernels_compute_the_definition():
    problem = cell.problem(CELL_SIZES, "cuda")
    (contender,) = (c for c in cell.contenders(problem, {"inductor"}) if "CUDA kernels" in c.name)
    row, candidate = comparison.prepare(problem, contender, problem.exact())
    if candidate is None and row.reason.startswith("can't be built"):
        pytest.skip(row.reason)
    assert candidate is not None, row.reason
