"""The benchmarks that start fresh processes: of first calls, and of models' training."""

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks import cold, model_worker, models, surroundings
from benchmarks.__main__ import main
from benchmarks.backends import AOT_EAGER, BACKENDS, INDUCTOR, PLAIN
from benchmarks.problem import OURS
from benchmarks.request import Request
from benchmarks.surroundings import USUAL
from benchmarks.targets import Outcome, lines
from machine import linux_only

FULL = Request("cold")
QUICK = Request("cold", quick=True, skip={"inductor"})


def seconds(first, second=0.1):
    return {cold.IMPORT: 1.0, cold.FIRST: first, cold.SECOND: second}


def test_ways_take_turns_and_a_full_runs_first_round_is_not_counted():
    order = []

    def start(where, backend, folder):
        order.append((backend, folder))
        return seconds(float(len(order)))

    samples, reasons = cold.take(USUAL, FULL, start)
    rounds = 1 + cold.REPEATS
    assert [backend for backend, _ in order[: 3 * 3]] == [
        *("", "aot_eager", "fourfold"),
        *("aot_eager", "fourfold", ""),
        *("fourfold", "", "aot_eager"),
    ]
    assert not reasons and [len(samples[way]) for way in cold.WAYS] == [cold.REPEATS] * 3
    assert cold.values(samples, AOT_EAGER, cold.FIRST)[0] == 4.0
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
    found = cold.report(USUAL, samples, {}, modules=0)
    assert [(o.limit, o.measured, o.met) for o in found.outcomes] == [
        (0.2, pytest.approx(0.2), True),
        (0.3, pytest.approx(0.2), True),
        (10.0, pytest.approx(20.0), True),
        (0, 0, True),
    ]
    assert [cells[0] for cells in found.cells] == [PLAIN, AOT_EAGER, OURS, INDUCTOR]
    assert found.cells[2][2:] == ("2.200 (min 1.100)", "0.200 (min 0.200)", "+0.200")
    assert not found.wrong and "wrong" not in found.as_dictionary()


def test_a_process_that_fails_says_why_and_ours_is_wrong():
    def start(where, backend, folder):
        if backend == BACKENDS[OURS]:
            raise cold.Failed("OSError: read-only")
        return seconds(1.0)

    found = cold.report(USUAL, *cold.take(USUAL, QUICK, start))
    assert found.notes == ["fourfold fails: OSError: read-only"] and found.wrong and found.as_dictionary()["wrong"]
    assert [o.measured for o in found.outcomes] == [None] * 3
    assert cold.last_error("Traceback\n  File x\nabc.SomeError: this\n\nSet TORCHDYNAMO_VERBOSE=1\n") == (
        "abc.SomeError: this"
    )


def test_a_limit_of_nothing_is_missed_without_percents():
    (line,) = lines([Outcome("import fourfold", "", "here", 0, 2, True, " modules")])
    assert (line.aim, line.measured, line.verdict) == ("≤ 0.00 modules", "2.00 modules", "MISSED")


def test_import_fourfold_loads_no_dynamo():
    assert cold.dynamo_modules() == 0


@pytest.mark.parametrize("readable", [True, False])
def test_bare_surroundings(readable, monkeypatch, tmp_path):
    if not readable:
        monkeypatch.setattr(surroundings, "read_only_launchers", lambda shell: [])
    where = surroundings.bare()
    look = "import json, os; print(json.dumps([os.environ.get('PATH'), os.environ.get('HOME'), os.environ['TMPDIR']]))"
    command = [*where.launcher, sys.executable, "-c", look]
    environment = surroundings.environment(str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == ["", None, str(tmp_path)]
    assert "PATH" in os.environ and os.access(tmp_path, os.W_OK)
    assert where.notes and ("read-only" in where.name or "512 bytes" in where.name)


@linux_only
def test_files_do_not_grow_where_no_file_system_is_read_only(monkeypatch, tmp_path):
    monkeypatch.setattr(surroundings, "read_only_launchers", lambda shell: [])
    write = "import pathlib, tempfile; tempfile.gettempdir(); pathlib.Path('file').write_text('x' * 1000)"
    command = [*surroundings.bare().launcher, sys.executable, "-c", write]
    environment = surroundings.environment(str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "File too large" in done.stderr


def test_a_first_call_is_timed_in_a_fresh_process(tmp_path):
    found = cold.start(USUAL, "", str(tmp_path))
    assert set(found) == {cold.IMPORT, cold.FIRST, cold.SECOND} and all(0 < time < 60 for time in found.values())
    with pytest.raises(cold.Failed, match="no-such-backend"):
        cold.start(USUAL, "no-such-backend", str(tmp_path))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return SimpleNamespace(loss=self.layer(x).square().mean())


def test_the_model_worker_answers_each_line(monkeypatch, capsys):
    before = torch.get_num_threads()
    monkeypatch.setitem(model_worker.MODELS, "GPT-2", Model)
    monkeypatch.setattr(model_worker, "batch", lambda name: {"x": torch.ones(2, 3)})
    monkeypatch.setattr(sys, "argv", ["model_worker", "GPT-2", "", "1"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nstep\n"))
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    model_worker.main()
    torch.set_num_threads(before)
    first, step = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(first["losses"]) == model_worker.STEPS and first["losses"][0] > first["losses"][2]
    assert 0 < first["seconds"] < 10 and 0 < step < 10


def answers(losses, steps):
    """A worker's, by way; without losses it has ended."""

    def answer(way, question):
        if not losses[way]:
            raise models.Ended("its process ended")
        return {"seconds": 2.0, "losses": losses[way]} if question == "first" else steps[way]

    return answer


def test_models_with_other_losses_are_not_timed():
    names = [PLAIN, INDUCTOR, AOT_EAGER, OURS]
    losses = {PLAIN: [3.0, 2.0, 1.0], INDUCTOR: [], AOT_EAGER: [3.0, 2.0, 1.00009], OURS: [3.0, 2.0, 1.000004]}
    steps = dict.fromkeys(names, 0.02) | {OURS: 0.04}
    ways = models.measure([models.Way(name) for name in names], 3, answers(losses, steps))
    assert [len(way.seconds) for way in ways] == [3, 0, 0, 3]
    found = models.report("GPT-2", 2, ways)
    assert found.cells == [
        (PLAIN, "2.00", "20.0", "20.0", "0.0", "1.00×", "0.0e+00"),
        (OURS, "2.00", "40.0", "40.0", "0.0", "0.50×", "4.0e-06"),
    ]
    assert found.notes[1:] == [
        f"{INDUCTOR}: its process ended",
        f"{AOT_EAGER}: WRONG: a loss is off by 9.0e-05 of it, tolerance 1e-05; not timed",
        "fourfold loses: 0.50× of plain PyTorch.",
    ]
    assert [(o.measured, o.met) for o in found.outcomes] == [(pytest.approx(0.4), True)] and not found.wrong
    ways[-1].reason = "its process ended"
    assert models.report("GPT-2", 2, ways).wrong


def test_without_transformers_the_report_says_so(monkeypatch, capsys):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    assert main(["models", "--quick"]) == 0
    assert "Not measured: this benchmark needs the package transformers: pip install" in capsys.readouterr().out


def test_which_models_are_trained(monkeypatch):
    seen = []
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(
        models, "measure", lambda ways, repeats, answer: seen.append([way.name for way in ways]) or ways
    )
    monkeypatch.setattr(models, "report", lambda model, threads, ways: (model, threads))
    monkeypatch.setattr(models, "child", lambda command, environment: io.StringIO())
    assert list(models.reports(Request("models", threads=(1, 2)))) == [("ViT", 2), ("GPT-2", 2), ("Llama", 2)]
    assert list(models.reports(Request("models", quick=True, skip={"inductor"}))) == [("GPT-2", 1)]
    assert seen[0] == list(BACKENDS) and seen[-1] == [PLAIN, AOT_EAGER, OURS]
