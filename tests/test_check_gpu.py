"""scripts/check_gpu.py without a GPU: how it runs its steps, what it makes of their output, how it ends."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import check_gpu
import gpu_proof
from check_gpu import FAILED, NOT_RUN, PASSED, Done, Outcome
from machine import ROOT, linux_only

DEVICE = check_gpu.Device("NVIDIA H100 80GB HBM3", "9.0", "580.1", "2.11.0", "13.0", "13.0")
REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_values" name="test_values[cuda-lltm_cell-odd-float32-strided]"/>
<testcase classname="tests.test_values" name="test_values[cuda-softshrink-one-float32-contiguous]"/>
<testcase classname="tests.test_values" name="test_values[cpu-lltm-odd-float32-contiguous]"/>
<testcase classname="tests.test_values" name="test_values[cuda-lltm-odd-float16-contiguous]"><failure/></testcase>
<testcase classname="tests.test_values" name="test_values[cuda-lltm-odd-float32-contiguous]"/>
<testcase classname="tests.test_values" name="test_values[cuda-mlp-odd-float32-contiguous]"><skipped/></testcase>
<testcase classname="tests.test_errors" name="test_cuda"/>
</testsuite></testsuites>"""


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A context whose files are all in tmp_path, and a machine that has its GPU."""
    monkeypatch.setattr(check_gpu, "BUILD", tmp_path / "build")
    monkeypatch.setattr(check_gpu, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(check_gpu, "find_device", lambda: DEVICE)
    monkeypatch.delenv("OUT", raising=False)
    check_gpu.BUILD.mkdir()
    return check_gpu.Context(check_gpu.parse([]), DEVICE, tmp_path / "log")


def answers(monkeypatch, *answered):
    """Commands that give these answers, (code, lines) each, and the list of what was asked."""
    asked, answered = [], list(answered)

    def run(self, *command, **variables):
        asked.append((" ".join(map(str, command)), variables))
        code, *lines = answered.pop(0)
        return Done(code, 1.0, lines)

    monkeypatch.setattr(check_gpu.Context, "run", run)
    return asked


def test_without_a_gpu_it_is_one_sentence():
    command = [sys.executable, str(ROOT / "scripts" / "check_gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("check_gpu: expected a") and done.stderr.count("\n") == 1


def test_an_unknown_step_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        check_gpu.parse(["--steps", "build,fly"])
    assert stopped.value.code == 2
    assert "expected some of build,tests,sanitizer,bench, but got 'fly'" in capsys.readouterr().err


def test_a_command_is_logged_and_read(context):
    script = "import os; print('one'); print(); print(os.environ['WORD'])"
    done = context.run(sys.executable, "-c", script, WORD="two")
    assert (done.code, done.lines) == (0, ["one", "two"])
    assert context.run(sys.executable, "-c", "raise SystemExit(3)").code == 3
    log = context.log.read_text()
    assert "one" in log and log.count("$ ") == 2


@linux_only
def test_a_command_is_stopped_with_its_children_when_time_is_up(context):
    context.arguments.minutes = 1.5 / 60
    child = "import time; time.sleep(60)"
    script = f"import subprocess as s, sys; p = s.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True)"
    script += "; p.wait()"
    done = context.run(sys.executable, "-c", script)
    assert done.code is None and done.seconds < 30
    assert check_gpu.stopped(done).endswith("no time left")
    pid = int(done.lines[0])
    for _ in range(100):  # until init has taken it over and buried it
        if not is_running(pid):
            break
        time.sleep(0.05)
    assert not is_running(pid)
    assert context.no_time()


def is_running(pid):
    """A process that has ended may still be listed, as a zombie, until its parent asks how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_telling_line_is_the_last_that_tells():
    done = Done(1, 0.0, ["error: one", "  error: two ", "after"])
    assert done.telling("error") == "error: two"
    assert done.telling("warning") == "after"
    assert Done(1, 0.0, []).telling("x", "silence") == "silence"


def test_a_build_that_is_there_is_not_repeated(context, monkeypatch):
    new = time.time() + 1000
    answers(monkeypatch, (0, f"{new} usable"))
    assert [outcome.state for outcome in check_gpu.build(context)] == [PASSED]
    asked = answers(monkeypatch, (0, "0.0 usable"), (0, "built"), (0, f"{new} torch sees no cuda device"))
    (outcome,) = check_gpu.build(context)
    assert (outcome.state, outcome.why) == (FAILED, "cuda: torch sees no cuda device")
    assert asked[1][1] == {"TORCH_CUDA_ARCH_LIST": "9.0"}
    assert "--no-index" in asked[1][0] and "cmake.define.FOURFOLD_CUDA=ON" in asked[1][0]
    answers(monkeypatch, (1, "ModuleNotFoundError: No module named 'fourfold'"), (1, "No module named pip"))
    (outcome,) = check_gpu.build(context)
    assert (outcome.state, outcome.why) == (FAILED, "No module named pip")


def test_operators_are_counted_by_their_tests_on_cuda(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    passed, failed = gpu_proof.count(tmp_path / "report.xml", ["axpby", "softshrink", "lltm_cell", "lltm", "mlp"])
    assert passed == {"lltm_cell": 1, "softshrink": 1, "lltm": 1}
    assert failed == {"lltm": 1}
    proof = gpu_proof.of({"name": "X", "capability": "9.0"}, passed, failed, "abc", False)
    assert proof["operators"] == {"lltm_cell": 1, "softshrink": 1} and proof["failed"] == {"lltm": 1}
    assert (proof["device"], proof["commit"], proof["every_test_passed"]) == ("X", "abc", False)


@pytest.mark.parametrize(("report", "state"), [(REPORT, PASSED), ("<testsuites/>", FAILED)])
def test_tests_leave_a_proof_or_fail(context, monkeypatch, tmp_path, report, state):
    asked = []

    def run(self, *command, **variables):
        asked.append((command, variables))
        if "pytest" in command:
            (check_gpu.BUILD / "check-gpu-tests.xml").write_text(report)
            return Done(0, 1.0, ["5 passed in 1.0s"])
        return Done(0, 1.0, ["softshrink lltm_cell"])

    monkeypatch.setattr(check_gpu.Context, "run", run)
    monkeypatch.setenv("OUT", str(tmp_path))
    (outcome,) = check_gpu.tests(context)
    assert outcome.state == state and "5 passed in 1.0s" in outcome.why
    assert ("no test of an operator ran on cuda" in outcome.why) is (state == FAILED)
    assert asked[0][1]["FOURFOLD_REQUIRE"] == "cuda"
    proof = json.loads((tmp_path / "measured" / "proof-h100-80gb-hbm3.json").read_text())
    assert proof == json.loads((tmp_path / "proof-h100-80gb-hbm3.json").read_text())
    assert proof["operators"] == ({"lltm_cell": 1, "softshrink": 1} if state == PASSED else {})


def test_tests_that_were_stopped_failed(context, monkeypatch):
    answers(monkeypatch, (None, "tests/test_values.py ...."))
    (outcome,) = check_gpu.tests(context)
    assert outcome.state == FAILED and outcome.why.startswith("stopped after 1 s")
    assert not check_gpu.MEASURED.exists()


def test_missing_plugins_are_said_and_stood_in_for(context, monkeypatch):
    monkeypatch.setattr(check_gpu, "importable", lambda name: False)
    notes, command, variables = check_gpu.pytest_command(context)
    assert [note.split()[0] for note in notes] == ["without", "expecttest"]
    assert "-p" not in command
    script = "import expecttest, unittest; assert issubclass(expecttest.TestCase, unittest.TestCase); print(expecttest)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert str(check_gpu.BUILD) in done.stdout, done.stderr
    monkeypatch.setattr(check_gpu, "importable", lambda name: True)
    context.arguments.workers = 4
    notes, command, _ = check_gpu.pytest_command(context)
    assert notes == [] and command[-6:] == ["-p", "pytest_randomly", "-p", "xdist", "-n", "4"]


def test_the_sanitizers_verdicts(context, monkeypatch):
    monkeypatch.setattr(check_gpu, "find_tool", lambda name: None)
    assert [outcome.state for outcome in check_gpu.sanitizer(context)] == [NOT_RUN]
    monkeypatch.setattr(check_gpu, "find_tool", lambda name: f"/cuda/bin/{name}")
    answers(monkeypatch, (1, "========= Error: Device not supported", "========= end"))
    (outcome,) = check_gpu.sanitizer(context)
    assert outcome.state == NOT_RUN and outcome.why.endswith("========= Error: Device not supported")
    summary = "========= ERROR SUMMARY: 1 error"
    asked = answers(monkeypatch, (0, "3"), (0, "4 passed in 2s", "========= ERROR SUMMARY: 0 errors"), (99, summary))
    memcheck, racecheck = check_gpu.sanitizer(context)
    assert (memcheck.state, memcheck.why) == (PASSED, "ERROR SUMMARY: 0 errors; 4 passed in 2s")
    assert racecheck.state == FAILED and racecheck.why.startswith("ERROR SUMMARY: 1 error")
    assert asked[1][1]["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert "--tool racecheck" in asked[2][0] and "kns=fourfold" in asked[2][0]
    answers(monkeypatch, (0, "3"), (None,), (1, "1 failed, 3 passed in 2s"))
    assert [outcome.state for outcome in check_gpu.sanitizer(context)] == [NOT_RUN, FAILED]


def test_benchmarks_go_to_files_named_after_the_device(context, monkeypatch, capsys):
    table = "fourfold  1.0  target ≤ 2.5 µs/step: met"
    asked = answers(monkeypatch, (0, table), (0,), (1, "WRONG: relative error 1"), (None,))
    states = [(outcome.step, outcome.state) for outcome in check_gpu.bench(context)]
    assert states == [
        ("bench cell", PASSED),
        ("bench mlp", PASSED),
        ("bench elementwise", FAILED),
        ("bench sequence", NOT_RUN),
    ]
    assert table in capsys.readouterr().out
    assert str(check_gpu.MEASURED / "h100-80gb-hbm3-cell.json") in asked[0][0]
    assert "--skip inductor" in asked[3][0] and "--skip" not in asked[0][0]


def steps(monkeypatch, **outcomes):
    for name, made in outcomes.items():
        monkeypatch.setattr(check_gpu, name, lambda context, made=made: iter(made))


def test_it_ends_in_a_table_and_exit_code_1_on_a_failure(context, monkeypatch, capsys):
    passing = {name: [Outcome(name, PASSED)] for name in check_gpu.STEPS}
    steps(monkeypatch, **passing)
    assert check_gpu.main([]) == 0
    assert check_gpu.main(["--steps", "build,tests"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NVIDIA H100 80GB HBM3, compute capability 9.0, driver 580.1"
    assert lines[-2:] == ["sanitizer  not run  left out by --steps", "bench      not run  left out by --steps"]
    steps(monkeypatch, sanitizer=[Outcome("memcheck", PASSED), Outcome("racecheck", FAILED, "1 hazard")])
    assert check_gpu.main([]) == 1
    assert "racecheck  failed   1 hazard" in capsys.readouterr().out.splitlines()


def test_after_a_failed_build_and_without_time_nothing_is_begun(context, monkeypatch, capsys):
    steps(monkeypatch, build=[Outcome("build", FAILED, "no nvcc")], **{name: None for name in check_gpu.STEPS[1:]})
    assert check_gpu.main([]) == 1
    assert capsys.readouterr().out.count("not run  the build failed") == 3
    assert check_gpu.main(["--minutes", "0.1"]) == 0
    assert capsys.readouterr().out.count("not run  no time left") == 4
