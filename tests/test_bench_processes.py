"""The suites that start processes or compile: first calls, training of models, compile times, a busy machine."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fourfold
from benchmarks import cold, compiling, disturbed, models
from benchmarks.__main__ import main
from benchmarks.cold import USUAL
from benchmarks.processes import Ended, environment_in, worker
from benchmarks.request import Request
from benchmarks.targets import AOT_EAGER, BACKENDS, INDUCTOR, OURS, PLAIN
from machine import linux_only


def test_a_worker_answers_and_its_end_is_noticed():
    with worker("disturbed", "sequences", 1) as ask:
        assert all(0 < ask(work, row, 0.001) < 10 for work in list(disturbed.WORKS)[:2] for row in (OURS, "nn.LSTM"))
        with pytest.raises(Ended, match="the process of sequences ended"):
            ask("no such work", OURS, 0.001)
        with pytest.raises(Ended):
            ask("no such work", OURS, 0.001)


def seconds(first, second=0.1):
    return {cold.IMPORT: 1.0, cold.FIRST: first, cold.SECOND: second}


def test_ways_take_turns_and_a_full_runs_first_round_is_not_counted():
    order = []

    def start(where, backend, folder):
        order.append((backend, folder))
        return seconds(float(len(order)))

    samples, reasons = cold.take(USUAL, Request("cold"), start)
    rounds = 1 + cold.REPEATS
    assert [backend for backend, _ in order[: 3 * 3]] == [
        *("", "aot_eager", "fourfold"),
        *("aot_eager", "fourfold", ""),
        *("fourfold", "", "aot_eager"),
    ]
    assert not reasons and [len(samples[way]) for way in cold.WAYS] == [cold.REPEATS] * 3
    assert samples[AOT_EAGER][0][cold.FIRST] == 4.0
    assert [backend for backend, _ in order[3 * rounds :]] == ["inductor"] * 4
    empty, filled = [folder for _, folder in order[3 * rounds :]][:2]
    assert empty == filled and len({folder for _, folder in order}) == 3 * rounds + cold.INDUCTOR_REPEATS
    assert len(samples[INDUCTOR]) == len(samples[cold.FILLED]) == cold.INDUCTOR_REPEATS


def test_first_calls_are_judged_round_by_round():
    samples = {
        PLAIN: [seconds(0.2)] * 2,
        AOT_EAGER: [seconds(1.0), seconds(3.0)],
        OURS: [seconds(1.1, 0.2), seconds(3.3, 0.2)],
        INDUCTOR: [seconds(22.0), seconds(66.0)],
    }
    found = cold.report(USUAL, samples, {}, modules=2)
    assert [(o.target.limit, o.measured, o.met, o.missed_by) for o in found.outcomes] == [
        (0.2, pytest.approx(0.2), True, None),
        (0.3, pytest.approx(0.2), True, None),
        (10.0, pytest.approx(20.0), True, None),
        (0, 2, False, None),
    ]
    assert [cells[0] for cells in found.cells] == [PLAIN, AOT_EAGER, OURS, INDUCTOR]
    assert found.cells[2][2:] == ("2.200 (min 1.100)", "0.200 (min 0.200)", "+0.200")
    assert not found.wrong and "wrong" not in found.as_dictionary()


def test_a_process_that_fails_says_why_and_ours_is_wrong():
    def start(where, backend, folder):
        if backend == BACKENDS[OURS]:
            raise cold.Failed("OSError: read-only")
        return seconds(1.0)

    found = cold.report(USUAL, *cold.take(USUAL, Request("cold", quick=True, skip={"inductor"}), start))
    assert found.notes == ["fourfold fails: OSError: read-only"] and found.wrong and found.as_dictionary()["wrong"]
    assert [o.measured for o in found.outcomes] == [None] * 3
    assert cold.last_error("Traceback\n  File x\nabc.SomeError: this\n\nSet A=1\n") == "abc.SomeError: this"
    assert cold.last_error("AnException: this\n  an Exception: in its text\n") == "AnException: this"


def test_a_way_that_ran_in_the_discarded_round_alone_has_no_row():
    calls = []

    def start(where, backend, folder):
        calls.append(backend)
        if backend == BACKENDS[AOT_EAGER] and calls.count(backend) > 1:
            raise cold.Failed("OSError: no space")
        return seconds(1.0)

    found = cold.report(USUAL, *cold.take(USUAL, Request("cold", skip={"inductor"}), start))
    assert [cells[0] for cells in found.cells] == [PLAIN, OURS]
    assert found.notes == [f"{AOT_EAGER} fails: OSError: no space"]


def test_a_first_call_is_timed_in_a_fresh_process(tmp_path):
    assert cold.dynamo_modules() == 0
    found = cold.start(USUAL, "", str(tmp_path))
    assert set(found) == {cold.IMPORT, cold.FIRST, cold.SECOND} and all(0 < time < 60 for time in found.values())
    with pytest.raises(cold.Failed, match="no-such-backend"):
        cold.start(USUAL, "no-such-backend", str(tmp_path))


@pytest.mark.parametrize("readable", [True, False])
def test_bare_surroundings(readable, monkeypatch, tmp_path):
    if not readable:
        monkeypatch.setattr(cold, "read_only_launchers", lambda shell: [])
    where = cold.bare()
    look = "import json, os; print(json.dumps([os.environ.get('PATH'), os.environ.get('HOME'), os.environ['TMPDIR']]))"
    command = [*where.launcher, sys.executable, "-c", look]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment_in(str(tmp_path)))
    assert json.loads(done.stdout) == ["", None, str(tmp_path)]
    assert "PATH" in os.environ and os.access(tmp_path, os.W_OK)
    assert where.note and ("read-only" in where.name or "512 bytes" in where.name)


@linux_only
def test_files_do_not_grow_where_no_file_system_is_read_only(monkeypatch, tmp_path):
    monkeypatch.setattr(cold, "read_only_launchers", lambda shell: [])
    write = "import pathlib, tempfile; tempfile.gettempdir(); pathlib.Path('file').write_text('x' * 1000)"
    command = [*cold.bare().launcher, sys.executable, "-c", write]
    environment = environment_in(str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "File too large" in done.stderr


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return SimpleNamespace(loss=self.layer(x).square().mean())


def test_training_gives_losses_and_seconds(monkeypatch):
    monkeypatch.setattr(models, "model", lambda name: Model())
    monkeypatch.setattr(models, "batch", lambda name: {"x": torch.ones(2, 3)})
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    answer = models.training("GPT-2", "", 1)
    first = answer("first")
    assert len(first["losses"]) == models.STEPS and first["losses"][0] > first["losses"][2]
    assert 0 < first["seconds"] < 10 and 0 < answer("step") < 10 and 0 < answer("inference") < 10


def test_models_with_other_losses_are_not_timed():
    names = [PLAIN, INDUCTOR, AOT_EAGER, OURS]
    losses = {PLAIN: [3.0, 2.0, 1.0], INDUCTOR: [], AOT_EAGER: [3.0, 2.0, 1.00009], OURS: [3.0, 2.0, 1.000004]}

    def answer(way, question):
        if not losses[way]:
            raise Ended("its process ended")
        if question == "first":
            return {"seconds": 2.0, "losses": losses[way]}
        return 0.01 if question == "inference" else 0.04 if way == OURS else 0.02

    ways = models.measure([models.Way(name) for name in names], 3, answer)
    assert [[len(seconds) for seconds in way.seconds.values()] for way in ways] == [[3, 3], [0, 0], [0, 0], [3, 3]]
    found = models.report("GPT-2", 2, ways)
    assert found.cells == [
        (PLAIN, "2.00", "20.0", "0.0", "1.00×", "10.0", "0.0", "1.00×", "0.0e+00"),
        (OURS, "2.00", "40.0", "0.0", "0.50×", "10.0", "0.0", "1.00×", "4.0e-06"),
    ]
    assert found.notes[1:] == [
        f"{INDUCTOR}: its process ended",
        f"{AOT_EAGER}: WRONG: a loss is off by 9.0e-05 of it, tolerance 1e-05; not timed",
        "fourfold loses, training: 0.50× of plain PyTorch.",
    ]
    assert [(o.measured, o.met) for o in found.outcomes] == [(pytest.approx(0.4), True), (None, None), (None, None)]
    assert not found.wrong
    ways[-1].reason = "its process ended"
    assert models.report("GPT-2", 2, ways).wrong


def test_without_transformers_the_report_says_so(monkeypatch, capsys):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    assert main(["models", "--quick"]) == 0
    assert "Not measured: this benchmark needs the package transformers: pip install" in capsys.readouterr().out


def test_which_models_are_trained(monkeypatch):
    seen = []
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(models, "measure", lambda ways, repeats, ask: seen.append([way.name for way in ways]) or ways)
    monkeypatch.setattr(models, "report", lambda model, threads, ways: (model, threads))
    monkeypatch.setattr(models, "worker", lambda *words, environment: __import__("contextlib").nullcontext())
    every = ["ViT", "GPT-2", "Llama", "ResNet", "ConvNeXt"]
    assert list(models.tables(Request("models", threads=(1, 2)))) == [(name, 2) for name in every]
    assert list(models.tables(Request("models", quick=True, skip={"inductor"}))) == [("GPT-2", 1)]
    assert seen[0] == list(BACKENDS) and seen[-1] == [PLAIN, AOT_EAGER, OURS]


def test_a_compilation_that_fails_says_why():
    def measure(way, length):
        if way.backend == "inductor":
            raise RuntimeError("no C++ compiler found")
        return 0.5

    found = compiling.report(Request("compiling"), measure)
    assert "fourfold, Inductor can't be compiled: RuntimeError: no C++ compiler found" in found.notes
    outcomes = [(o.where, o.measured) for o in found.outcomes]
    assert outcomes == [("fourfold, aot_eager", 1.0), ("fourfold, Inductor", None)]
    assert [cells[0] for cells in found.cells] == ["16", "64", "256", "1024", "4096"]
    assert found.cells[-1][1:] == ("0.50 (min 0.50)", "-", "-")
    assert len(found.plain().splitlines()) == 2 + 5 + len(found.notes)


def test_compiling_is_measured_without_running():
    assert 0 < compiling.measure(compiling.Way("x", fourfold.nn.LLTM, "aot_eager", 1, 16), 4) < 60


def test_conditions_take_turns_and_the_first_round_is_not_counted():
    order, clock = [], iter(range(1, 100))

    def condition(name):
        return lambda work, row, seconds: order.append((name, row)) or float(next(clock))

    alone, beside = disturbed.interleaved(["w"], 2, 0.1, [condition("alone"), condition("beside")])
    assert order == [(name, row) for row in (OURS, "nn.LSTM") for name in ("alone", "beside")] * 3
    assert alone == {("w", OURS): [5, 9], ("w", "nn.LSTM"): [7, 11]}
    assert beside == {("w", OURS): [6, 10], ("w", "nn.LSTM"): [8, 12]}


def test_a_slow_down_is_reported_with_its_target():
    alone = {("w", OURS): [1.0, 1.0], ("w", "nn.LSTM"): [1.0, 1.0]}
    beside = {("w", OURS): [4.0, 4.0], ("w", "nn.LSTM"): [2.0, 2.0]}
    found = disturbed.report(disturbed.NEIGHBOUR, "words", alone, beside)
    assert found.cells == [("w", "1000000.0", "4000000.0", "4.00× (4.00 to 4.00)", "2.00× (2.00 to 2.00)")]
    assert [(o.met, o.measured, o.missed_by) for o in found.outcomes] == [(False, 4.0, pytest.approx(1 / 3))]
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


@linux_only
def test_without_control_groups_one_cpu_stands_for_the_quota(monkeypatch):
    monkeypatch.setattr(disturbed, "own_groups", list)
    cpu = min(os.sched_getaffinity(0))
    with disturbed.one_cpu(cpu) as (free, bound, how):
        look = [*bound, sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
        assert free == [] and subprocess.check_output(look, text=True) == f"{{{cpu}}}\n"
        assert how == "bound to one CPU, as no control group can be made here"
