"""The CPU's clock, the benchmarks of compile time and of a disturbed machine, and the plots."""

import io
import sys
import time

import pytest
import torch

import fourfold
from benchmarks import clocks, compiling, disturbed, plots, sequence, worker
from benchmarks.__main__ import main
from benchmarks.problem import BOTH, NO_GRAD, OURS
from benchmarks.request import Request
from machine import needs


def test_a_compilation_that_fails_says_why(monkeypatch):
    def measure(way, length):
        if way.backend == "inductor":
            raise RuntimeError("no C++ compiler found")
        return 0.5

    found = compiling.report(Request("compiling"), measure)
    assert "fourfold, Inductor can't be compiled: RuntimeError: no C++ compiler found" in found.notes
    assert [(o.where, o.measured) for o in found.outcomes] == [
        ("fourfold, aot_eager", 1.0),
        ("fourfold, Inductor", None),
    ]
    assert [cells[0] for cells in found.cells] == ["16", "64", "256", "1024", "4096"]
    assert found.cells[-1][1:] == ("0.50 (min 0.50)", "-", "-")
    assert len(found.plain().splitlines()) == 2 + 5 + len(found.notes)


def test_compiling_is_measured_without_running():
    way = compiling.Way("x", fourfold.nn.LLTM, "aot_eager", 1, 16)
    assert 0 < compiling.measure(way, 4) < 60


def test_conditions_take_turns_and_the_first_round_is_not_counted():
    order, clock = [], iter(range(1, 100))

    def condition(name):
        return lambda work, row: order.append((name, row)) or float(next(clock))

    alone, beside = disturbed.in_turns(["w"], 2, condition("alone"), condition("beside"))
    both = [("alone", OURS), ("beside", OURS), ("alone", "nn.LSTM"), ("beside", "nn.LSTM")]
    assert order == both * 3
    assert alone == {("w", OURS): [5, 9], ("w", "nn.LSTM"): [7, 11]}
    assert beside == {("w", OURS): [6, 10], ("w", "nn.LSTM"): [8, 12]}


def test_a_slow_down_is_reported_with_its_target():
    alone = {("w", OURS): [1.0, 1.0], ("w", "nn.LSTM"): [1.0, 1.0]}
    beside = {("w", OURS): [4.0, 4.0], ("w", "nn.LSTM"): [2.0, 2.0]}
    found = disturbed.report("a neighbour", "words", alone, beside)
    assert found.cells == [("w", "1000000.0", "4000000.0", "4.00× (4.00 to 4.00)", "2.00× (2.00 to 2.00)")]
    assert [(o.met, o.measured) for o in found.outcomes] == [(False, 4.0)]
    assert [figures["slower"] for figures in found.figures] == [4.0, 2.0]


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_is_written_where_control_groups_can_be_made(version, monkeypatch, tmp_path):
    made, real = [], type(tmp_path).mkdir

    def mkdir(path, *arguments, **keywords):
        real(path, *arguments, **keywords)
        made.append(path)
        if version == 1:
            (path / "cpu.cfs_quota_us").touch()

    monkeypatch.setattr(disturbed, "own_groups", lambda: [tmp_path / "absent", tmp_path])
    monkeypatch.setattr(type(tmp_path), "mkdir", mkdir)
    bound, free = disturbed.new_group(100_000), disturbed.new_group(None)
    assert made == [bound, free] and bound.parent == tmp_path
    name = "cpu.cfs_quota_us" if version == 1 else "cpu.max"
    words = [(group / name).read_text() for group in (bound, free)]
    assert words == (["100000", "-1"] if version == 1 else ["100000 100000", "max 100000"])


def test_without_control_groups_one_cpu_stands_for_the_quota(monkeypatch):
    monkeypatch.setattr(disturbed, "own_groups", list)
    with disturbed.one_cpu(0) as (free, bound, how):
        assert free == [] and bound[-1].count("sched_setaffinity") == 1
        assert how == "bound to one CPU, as no control group can be made here"


def test_the_worker_answers_each_line(monkeypatch, capsys):
    before = torch.get_num_threads()
    monkeypatch.setattr(worker, "SIZES", {work: (2, 3, 16, 4) for work in worker.SIZES})
    monkeypatch.setattr(sys, "argv", ["worker", "1"])
    lines = [f"{work}\t{row}\t0.001\n" for work in worker.SIZES for row in (OURS, worker.RIVAL)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(lines)))
    worker.main()
    torch.set_num_threads(before)
    answers = [float(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 6 and all(0 < seconds < 10 for seconds in answers)


def result_of(kind, size, threads=1, precision="float32", ours=10.0, title="x"):
    """A table as it stands in JSON, in which fourfold's row takes so long and torch's 20."""
    phases = {
        name: {p: {"median": s, "lower_quartile": s, "upper_quartile": s} for p in (NO_GRAD, BOTH)}
        for name, s in ((plots.RIVALS[kind], 20.0), (OURS, ours))
    }
    return {
        "suite": "sequence",
        "title": title,
        "kind": kind,
        "sizes": sequence.named(size),
        "threads": threads,
        "precision": precision,
        "rows": [{"name": name, "phases": figures} for name, figures in phases.items()],
    }


def test_plots_are_drawn_of_one_size_at_a_time(tmp_path):
    needs("matplotlib")
    results = [result_of(kind, size, ours=5.0) for kind in plots.COLORS for size in sequence.SWEEP]
    results += [result_of(kind, sequence.COMPILED) for kind in plots.COLORS]
    results += [result_of("GRU", sequence.COMPILED, threads=2, ours=1.0), {"suite": "compiling", "title": "x"}]
    results += [result_of("GRU", sequence.COMPILED, precision="autocast", ours=1.0)]
    results += [result_of("GRU", sequence.COMPILED, ours=1.0, title="packed")]
    by_batch = plots.speedups(results, "batch_size")
    assert {size: ratio["median"] for size, ratio in by_batch["GRU", NO_GRAD].items()} == {4: 4.0, 16: 2.0, 64: 4.0}
    facts = {"processor": "x", "torch": "2", "fourfold": "0", "load_average": None}
    files = plots.draw({"results": results, "environment": facts}, tmp_path / "new")
    assert [file.name for file in files] == ["speedup-batch-size.png", "speedup-hidden-size.png", "speedup-time.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert plots.draw({"results": results[-4:], "environment": facts}, tmp_path / "none") == []


def test_plots_without_matplotlib_are_refused_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("benchmarks.request.importlib.util.find_spec", lambda name: None)
    assert main(["sequence", "--plots", str(tmp_path)]) == 2
    assert "expected matplotlib for --plots, but it is missing: pip install" in capsys.readouterr().err


def test_on_the_cpu_marks_are_in_seconds_and_nothing_is_flushed():
    clock = clocks.Clock()
    clock.flush()
    assert 0.02 <= clocks.seconds_per_call(clock, lambda: time.sleep(0.02), 2) < 1
    assert 0.02 <= clocks.seconds_per_call(clock, lambda: time.sleep(0.02), 2, cold=True) < 1
    assert clock.scratch is None and len(clock.events) == 4
