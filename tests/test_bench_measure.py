"""How rows are timed and judged: on every machine with GPU clocks and graphs that are made up, and on a machine with a
GPU the commands themselves."""

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
from benchmarks import cell, elementwise, environment, graphs, layers, measure, mlp, results, sequence, targets
from benchmarks.__main__ import main
from benchmarks.measure import Clock, Row, seconds_per_call
from benchmarks.problem import Contender, Rate
from benchmarks.results import Comparison
from benchmarks.suites import LSTM, OUR_FUNCTION, SEQUENTIAL
from benchmarks.targets import BACKWARD, BOTH, COLD, FORWARD, NO_GRAD, OURS, PHASES, PLAIN, SAVED, Outcome, Target
from fourfold.cli.timing import is_noisy
from machine import devices

CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}
SIZES = {"batch_size": 3, "input_size": 4, "hidden_size": 16, "time": 12}


def test_statistics_of_samples():
    figures = measure.summarise([5.0, 1.0, 2.0, 4.0, 3.0])
    assert figures == measure.Statistics(3.0, 1.0, 2.0, 4.0, 5) and figures.spread == 2.0
    assert measure.summarise([7.0]) == measure.Statistics(7.0, 7.0, 7.0, 7.0, 1)
    assert measure.paired_ratios([6.0, 8.0, 9.0], [3.0, 16.0]) == [2.0, 0.5]  # a slow row is in the first rounds only


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


def row(name, microseconds, **facts):
    return Row(name, error=0.0, tolerance=1.0, samples={phase: [1e-6 * microseconds] * 3 for phase in PHASES}, **facts)


def judged(monkeypatch, found, rows, threads=1, problem=None):
    """A table with these targets; its problem belongs to all their works."""
    monkeypatch.setattr(results, "TARGETS", found)
    problem = problem or sequence.problem(SIZES)
    works = tuple(target.work for target in found)
    return Comparison(dataclasses.replace(problem, works=works), threads, rows)


def test_targets_come_of_rows_at_their_number_of_threads(monkeypatch):
    found = (
        Target("work", NO_GRAD, 2.0, "nn.LSTM", 1),
        Target("work", BOTH, 4.0, "nn.LSTM"),
        Target("work", BOTH, 1.0, "absent"),
        Target("work", FORWARD, 1.0, "nn.LSTM"),  # a phase that is not measured
        Target("steps", NO_GRAD, 2.4, at_most=True, unit=" µs/step"),
    )
    one = judged(monkeypatch, found, [row("nn.LSTM", 90), row(OURS, 30)])
    two = judged(monkeypatch, found, [row("nn.LSTM", 60), row(OURS, 30)], 2)
    assert [(o.target.phase, o.measured, o.met) for o in one.outcomes] == [
        (NO_GRAD, pytest.approx(3), True),
        (BOTH, pytest.approx(3), False),
        (BOTH, None, None),
        (NO_GRAD, pytest.approx(2.5), False),
    ]
    assert one.outcomes[1].missed_by == pytest.approx(0.25) and one.outcomes[0].missed_by is None
    assert [o.target.phase for o in two.outcomes] == [BOTH, BOTH, NO_GRAD]
    first, second, third, fourth = targets.lines([*one.outcomes, *two.outcomes])
    assert (first["work"], first["aim"], first["shown"], first["verdict"]) == (
        f"work, {NO_GRAD}",
        "≥ 2.00×",
        "3.00×",
        "reached",
    )
    assert (second["where"], second["shown"], second["tables"]) == (two.heading, "2.00×", 2)
    assert second["verdict"] == f"MISSED by 50 %; 0 of 2 tables reach it; furthest: {two.heading}"
    assert third["verdict"] == "not measured" and fourth["aim"] == "≤ 2.40 µs/step"
    text = targets.summary([*one.outcomes, *two.outcomes])
    assert text.startswith("Targets: 1 of 4 reached\n") and "≥ 4.00×" in text and "2.00×  MISSED by 50 %" in text
    lines = [line for line in one.plain().splitlines() if line.strip().startswith(OURS) and "target" in line]
    assert lines[0].endswith("target ≥ 2.00× nn.LSTM: met at 3.00×  target ≤ 2.4 µs/step: missed")
    assert lines[1].endswith("target ≥ 4.00× nn.LSTM: missed at 3.00×  target ≥ 1.00× absent: not measured")
    written = one.as_dictionary()["targets"]
    assert [verdict["met"] for verdict in written] == [True, False, None, False]
    assert written[0] == {"phase": NO_GRAD, "limit": 2.0, "rival": "nn.LSTM", "measured": pytest.approx(3), "met": True}


@pytest.mark.parametrize(
    ("limit", "measured", "verdict"),
    [
        (3.0, [4.5, 1.0], "MISSED by 50 %; 1 of 2 tables reach it; furthest: 0"),
        (0, [2], "MISSED"),
        (3.0, [None, 1.0], "reached; 1 of 2 tables reach it; 1 not measured"),
    ],
)
def test_a_largest_value_is_missed_from_above(limit, measured, verdict):
    target = Target("slow-down", "", limit, at_most=True)
    (line,) = targets.lines([Outcome(target, str(k), value) for k, value in enumerate(measured)])
    assert (line["work"], line["aim"], line["verdict"]) == ("slow-down", f"≤ {limit:.2f}×", verdict)


def test_targets_of_another_row_and_of_memory(monkeypatch):
    found = (Target("w", NO_GRAD, 1.3, SEQUENTIAL, 1, OUR_FUNCTION), Target("w", SAVED, 2.0, SEQUENTIAL, 1))
    rows = [row(SEQUENTIAL, 30, kept=1000), row(OUR_FUNCTION, 20, kept=800), row(OURS, 60, kept=800)]
    task = mlp.problem(dict(zip(mlp.NAMES, mlp.SIZES[0], strict=True)))
    table = judged(monkeypatch, found, rows, problem=task)
    assert [o.measured for o in table.outcomes] == [pytest.approx(1.5), pytest.approx(1.25)]
    lines = table.plain().splitlines()
    assert [line.split("  ")[1] for line in lines if "target ≥ 1.30×" in line] == [OUR_FUNCTION]
    assert any(line.startswith("Kept for the backward") and "missed at 1.25×" in line for line in lines)


def test_losses_are_in_plain_sight():
    task = cell.problem(CELL_SIZES)
    absent = Row("absent", reason="no compiler")
    text = Comparison(task, 1, [row("plain", 4.0), absent, row("rival", 1.0), row(OURS, 2.0)]).plain()
    assert "fourfold loses, backward: 0.50× of rival." in text and "absent    no compiler" in text
    assert text.splitlines()[0].endswith("float32: 1 thread")
    text = Comparison(task, 2, [row("plain", 4.0), row(OURS, 2.0)]).plain()
    assert "loses" not in text and "No row beats fourfold" in text and "2.00×" in text


def test_ratios_are_to_the_named_row_where_it_was_measured():
    problem = dataclasses.replace(sequence.problem(SIZES), baseline=LSTM)
    table = Comparison(problem, None, [row(PLAIN, 60), row(LSTM, 20), row(OURS, 10)])
    assert f"Ratios are to {LSTM}." in table.plain()
    assert table.as_dictionary()["rows"][2]["phases"][BOTH]["ratio"]["median"] == pytest.approx(2)
    table.rows[1].samples = {}
    assert table.baseline.name == PLAIN


def test_json_is_a_row_a_line_and_no_longer_than_a_measurement_is_exact():
    problem = dataclasses.replace(
        sequence.problem(SIZES, kind=layers.GRU), works=(), baseline="", rate=Rate("GB/s", lambda seconds: 1 / seconds)
    )
    table = Comparison(problem, 1, [row("nn.LSTM", 100 / 3), row(OURS, 10)])
    contents = {"benchmark": "x", "results": [table.as_dictionary()]}
    text = results.text(contents)
    assert json.loads(text) == results.rounded(contents)
    (line,) = [line for line in text.splitlines() if '"name": "nn.LSTM"' in line]
    phase = json.loads(line.strip().rstrip(","))["phases"][NO_GRAD]
    assert (phase["median"], phase["rate"]) == (3.333e-05, 30000)
    result = json.loads(text)["results"][0]
    assert (result["kind"], result["sizes"], result["threads"], result["rate"]) == ("GRU", SIZES, 1, "GB/s")
    assert result["rows"][1]["phases"][BOTH]["ratio"]["median"] == 3.333


def cell_contenders(problem):
    return [c for c in cell.contenders(problem) if c.name in (PLAIN, OURS)]


def test_one_rows_trouble_leaves_the_others_their_figures(capsys, monkeypatch):
    def fails():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    problem = cell.problem(CELL_SIZES)
    rows = measure.compare(problem, [*cell_contenders(problem), Contender("greedy", fails)], repeats=1)
    assert [bool(row.samples) for row in rows] == [True, True, False]
    assert rows[2].reason == "failed: OutOfMemoryError: CUDA out of memory" and not rows[2].wrong
    monkeypatch.setattr(cell, "contenders", lambda task: [Contender(OURS, fails)])
    assert main(["cell", "--quick", "--repeats", "1"]) == 1  # ours failing is a result
    assert "fourfold was not measured: failed: OutOfMemoryError" in capsys.readouterr().out


def test_what_is_checked_is_computed_where_float64_is():
    """Of tensors that are said to be Apple's: to the CPU first, then to float64."""
    moves = []

    class Tensor(torch.Tensor):
        device = torch.device("mps")

        def cpu(self):
            moves.append("cpu")
            return self.as_subclass(torch.Tensor)

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    problem = cell.problem(CELL_SIZES)
    there = {name: tuple(x.as_subclass(Tensor) for x in getattr(problem, name)) for name in ("inputs", "parameters")}
    exact = dataclasses.replace(problem, **there).exact()
    assert moves == ["cpu"] * 5
    for mine, expected in zip(exact, problem.exact(), strict=True):
        assert mine.dtype == torch.float64 and torch.equal(mine, expected)
    assert problem.distance([result.float().as_subclass(Tensor) for result in exact], exact) < 1e-6
    assert len(moves) == 5 + len(exact)


class FakeClock:
    """A GPU's clock whose time passes by one second a mark, and which writes down what it was asked."""

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
            assert done[-1] == "synchronize"  # an event that hasn't happened yet has no time
            return float(end.at - self.at)

    monkeypatch.setattr(fourfold, "Event", Event)
    monkeypatch.setattr(measure, "synchronize", lambda device: done.append("synchronize"))
    monkeypatch.setattr(measure, "scratch", lambda device: torch.ones(8))
    clock = Clock("cuda")
    assert clock.graphs and not Clock("mps").graphs and not Clock().graphs
    for made in (["made"], []):  # events are made once
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


def test_forward_and_backward_are_told_apart():
    problem, clock = cell.problem(CELL_SIZES), FakeClock()
    times = measure.training_seconds(problem, cell_contenders(problem)[0].build(), clock, 3)
    assert times == {FORWARD: 1, BACKWARD: 1, BOTH: 2} and clock.asked == ["settle", *["mark"] * 9]


def test_each_contender_has_a_row_from_a_graph(monkeypatch):
    made = capture_with(monkeypatch)
    problem = cell.problem(CELL_SIZES)
    contenders = cell_contenders(problem)
    contenders[0] = dataclasses.replace(contenders[0], uncaptured="it waits for the host")
    rows = measure.compare(problem, contenders, repeats=2, clock=FakeClock())
    assert [row.label for row in rows] == [PLAIN, f"{PLAIN}, CUDA graph", OURS, f"{OURS}, CUDA graph"]
    assert rows[1].reason == "can't be captured: it waits for the host" and not rows[1].wrong
    assert set(rows[2].samples) == {NO_GRAD, FORWARD, BACKWARD, BOTH} and set(rows[3].samples) == {NO_GRAD, BOTH}
    assert len(made) == 2 and all(graph.replays > 2 for graph in made)
    text = Comparison(problem, None, rows).plain()
    assert "it waits for the host" in text and text.splitlines()[0].endswith("float32: cpu")
    assert text.count(f"{OURS}, CUDA graph  ") == 4


@pytest.mark.parametrize("suite", [sequence, elementwise], ids=lambda module: module.__name__)
def test_graphs_hold_a_forward_and_its_gradients(suite, monkeypatch):
    capture_with(monkeypatch)
    problem = sequence.problem(SIZES)
    if suite is elementwise:
        problem = dataclasses.replace(elementwise.problem("axpby", 100), phases=(COLD, NO_GRAD))
    contenders = [c for c in suite.contenders(problem) if c.name != elementwise.COPY]
    rows = measure.compare(problem, contenders, repeats=1, clock=FakeClock())
    assert len(rows) == 2 * len(contenders)
    for row in rows:
        assert set(row.samples) == set(problem.phases), row.reason


def test_a_graph_is_replayed_cold_and_warm():
    problem = dataclasses.replace(elementwise.problem("axpby", 100), phases=(COLD, NO_GRAD))
    clock, graph = FakeClock(), FakeGraph(list, [])
    seconds = graphs.sampler(problem, {NO_GRAD: graphs.Captured(graph, [])}, clock)(2)
    assert clock.asked == ["settle", *["flush", "mark", "mark"] * 2, "settle", "mark", "mark"]
    assert graph.replays == 4 and seconds == {COLD: 1, NO_GRAD: 1 / 2}


def test_a_graph_that_missed_its_kernels_is_wrong(monkeypatch):
    capture_with(monkeypatch, missed=True)
    problem = cell.problem(CELL_SIZES)
    rows = measure.compare(problem, cell_contenders(problem), repeats=1, clock=FakeClock())
    assert [row.wrong for row in rows] == [False, True, False, True]
    assert rows[3].reason.startswith("WRONG: relative error inf") and not rows[3].samples
    table = Comparison(problem, None, rows)
    assert table.wrong and f"{OURS}, CUDA graph was not measured: {rows[3].reason}" in table.losses()


def test_a_call_that_cannot_be_captured_says_why(monkeypatch):
    def refuse(call):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "capture", refuse)
    problem = cell.problem(CELL_SIZES)
    row, captured = graphs.prepare(problem, Contender("x", None), cell_contenders(problem)[1].build(), [])
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
    assert len(asked.split()) == 3  # nothing that would change a setting
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
    problem = cell.problem(CELL_SIZES, "cuda")
    (contender,) = (c for c in cell.contenders(problem) if "CUDA kernels" in c.name)
    row, candidate = measure.prepare(problem, contender, problem.exact())
    if candidate is None and row.reason.startswith("can't be built"):
        pytest.skip(row.reason)
    assert candidate is not None, row.reason
