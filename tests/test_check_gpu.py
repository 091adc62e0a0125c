"""scripts/check_gpu.py without a GPU: how it runs its steps, interprets their output, and ends."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import check_gpu
import gpu_proof
import gpu_sanitizers
from check_gpu_data import DEVICE, MAC, MI, RESULTS
from gpu_context import FAILED, NOT_RUN, PASSED, Context, Done, Outcome, stopped
from machine import ROOT, linux_only


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A context with all files in tmp_path, on a machine with its GPU."""
    monkeypatch.setattr(check_gpu, "BUILD", tmp_path / "build")
    monkeypatch.setattr(check_gpu, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(check_gpu, "find_device", lambda where: MAC if where == "mps" else DEVICE)
    monkeypatch.delenv("OUT", raising=False)
    check_gpu.BUILD.mkdir()
    return Context(check_gpu.parse([]), DEVICE, tmp_path / "log")


def answers(monkeypatch, *answered):
    """Replaces commands by these outcomes, (code, lines) each; returns the list of commands."""
    asked, answered = [], list(answered)

    def run(self, *command, limit=None, **variables):
        asked.append((" ".join(map(str, command)), variables))
        code, *lines = answered.pop(0)
        return Done(code, 1.0, lines)

    monkeypatch.setattr(Context, "run", run)
    return asked


@pytest.fixture
def on_a_mac(context):
    return Context(check_gpu.parse(["--device", "mps"]), MAC, context.log)


@pytest.mark.parametrize("where", ["cuda", "mps"])
def test_without_a_gpu_it_is_one_sentence(where):
    command = [sys.executable, str(ROOT / "scripts" / "check_gpu.py"), "--device", where]
    if where == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("check_gpu: expected a") and done.stderr.count("\n") == 1


def test_an_unknown_step_is_refused(capsys):
    with pytest.raises(SystemExit) as refusal:
        check_gpu.parse(["--steps", "build,fly"])
    assert refusal.value.code == 2
    assert "expected some of build,tests,bench,paths,sanitizer,rest, but got 'fly'" in capsys.readouterr().err


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
    assert stopped(done).endswith("at the end of its time")
    pid = int(done.lines[0])
    for _ in range(100):  # until init has reaped it
        if not is_running(pid):
            break
        time.sleep(0.05)
    assert not is_running(pid)
    assert context.no_time()


def is_running(pid):
    """A process that has ended is still listed, as a zombie, until its parent waits for it."""
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
    assert "--no-index" in asked[1][0]
    assert {ROOT / "pyproject.toml", ROOT / "scripts" / "bitcode.py"} <= set(check_gpu.sources())
    answers(monkeypatch, (1, "ModuleNotFoundError: No module named 'fourfold'"), (1, "No module named pip"))
    (outcome,) = check_gpu.build(context)
    assert (outcome.state, outcome.why) == (FAILED, "No module named pip")


@pytest.mark.parametrize(
    ("device", "options", "variables"),
    [
        (DEVICE, "CUDA=ON HIP=OFF METAL=OFF", {"TORCH_CUDA_ARCH_LIST": "9.0"}),
        (MI, "CUDA=OFF HIP=ON METAL=OFF", {"PYTORCH_ROCM_ARCH": "gfx90a"}),
        (MAC, "CUDA=OFF HIP=OFF METAL=ON", {}),
    ],
    ids=lambda value: getattr(value, "backend", None),
)
def test_the_kernels_of_this_gpu_alone_are_built(device, options, variables, context, monkeypatch):
    asked = answers(monkeypatch, (0, "0.0 not here"), (0, "built"), (0, f"{time.time() + 1000} usable"))
    (outcome,) = check_gpu.build(Context(context.arguments, device, context.log))
    assert outcome.state == PASSED
    assert f"backends()['{device.backend}']" in asked[0][0]
    assert all(f"cmake.define.FOURFOLD_{option}" in asked[1][0].split("=", 1)[1] for option in options.split())
    assert asked[1][1] == variables


def pytests(monkeypatch, ends):
    """Replaces runs of pytest, which write results and end with these codes, in turn; returns the list of commands."""
    asked, ends = [], list(ends)

    def run(self, *command, limit=None, **variables):
        if "pytest" not in command:
            return Done(0, 1.0, ["softshrink lltm_cell"])
        asked.append((command, limit, variables))
        code, results = ends.pop(0)
        if results is not None:
            Path(command[command.index("--results") + 1]).write_text(results)
        return Done(code, 1.0, ["5 passed in 1.0s"])

    monkeypatch.setattr(Context, "run", run)
    return asked


PROOF = "proof-h100-80gb-hbm3.json"


def test_each_file_of_tests_has_its_process_and_its_results(context, monkeypatch, tmp_path):
    asked = pytests(monkeypatch, [(0, RESULTS), *[(0, "")] * 4])
    monkeypatch.setenv("OUT", str(tmp_path))
    outcomes = list(check_gpu.tests(context))
    named = ("gpu", "values", "gradients", "gpu_programs", "compiler_operators")
    assert [(o.step, o.state) for o in outcomes] == [(f"tests: {name}", PASSED) for name in named]
    assert all(variables["FOURFOLD_REQUIRE"] == "cuda" and limit == 360 for _, limit, variables in asked)
    assert asked[0][0][-1] == "tests/test_gpu.py"
    assert asked[1][0][-3:] == ("tests/test_values.py", "-k", "cuda")
    proof = json.loads((tmp_path / "measured" / PROOF).read_text())
    assert proof == json.loads((tmp_path / PROOF).read_text())
    assert proof["operators"] == {"lltm_cell": 1, "softshrink": 1}
    assert proof["every_test_passed"] is False  # the CPU's tests have not run
    assert (tmp_path / "values.jsonl").exists()


def test_an_error_or_a_limit_costs_one_file(context, monkeypatch):
    """The first file's process is stopped halfway, and the third one aborts before it has a result."""
    pytests(monkeypatch, [(None, RESULTS), (0, ""), (134, None), (0, ""), (0, "")])
    outcomes = list(check_gpu.tests(context))
    assert [o.state for o in outcomes] == [FAILED, PASSED, FAILED, PASSED, PASSED]
    assert outcomes[0].why.startswith("stopped after 1 s, at the end of its time")
    proof = json.loads((check_gpu.MEASURED / PROOF).read_text())
    assert proof["operators"] == {"lltm_cell": 1, "softshrink": 1}


def test_a_mac_is_proved_by_its_tests_on_mps(on_a_mac, monkeypatch):
    asked = pytests(monkeypatch, [(0, RESULTS.replace("cuda", "mps")), *[(0, "")] * 3])
    named = ("values", "gradients", "gpu_programs", "compiler_operators")
    assert [o.step for o in check_gpu.tests(on_a_mac)] == [f"tests: {name}" for name in named]
    assert all(variables["FOURFOLD_REQUIRE"] == "mps" for _, _, variables in asked)
    assert asked[0][0][-3:] == ("tests/test_values.py", "-k", "mps")
    proof = json.loads((check_gpu.MEASURED / "proof-apple-m3-max.json").read_text())
    assert (proof["check"], proof["backend"], proof["macos"]) == ("gpu", "metal", "15.1")
    assert proof["operators"] == {"lltm_cell": 1, "softshrink": 1}


@pytest.mark.parametrize("kind", ["context", "on_a_mac"])
def test_a_proof_is_whole_only_after_every_run(kind, monkeypatch, request):
    context = request.getfixturevalue(kind)
    on_device, on_cpu = check_gpu.on_device(context), check_gpu.on_cpu(context)
    count = len(on_device) + len(on_cpu)
    pytests(monkeypatch, [(0, RESULTS.replace("cuda", context.device.where))] + [(0, "")] * (count - 1))
    assert all(o.state == PASSED for o in [*check_gpu.tests(context), *check_gpu.rest(context)])
    proof = check_gpu.MEASURED / f"proof-{context.device.slug}.json"
    assert json.loads(proof.read_text())["every_test_passed"] is True
    tested = {file.name for file in (ROOT / "tests").glob("test_*.py")}
    assert {Path(given[0]).name for _, given in (*on_device, *on_cpu)} == tested


def test_tests_of_no_operator_prove_nothing(context, monkeypatch):
    pytests(monkeypatch, [(0, "")] * 5)
    outcomes = list(check_gpu.tests(context))
    assert (outcomes[-1].state, outcomes[-1].why) == (FAILED, "no test of an operator ran on cuda")
    assert not check_gpu.MEASURED.exists()


def test_outcomes_are_written_as_they_come(context, tmp_path):
    """A process that ends during a test keeps the earlier outcomes."""
    test = tmp_path / "test_three.py"
    test.write_text(
        "import os\nimport pytest\n\ndef test_one(): pass\n\ndef test_two(): assert False\n\n"
        "@pytest.mark.skip\ndef test_three(): pass\n\ndef test_four(): os._exit(7)\n\ndef test_five(): pass\n"
    )
    _, command, variables = check_gpu.pytest_command(context)
    command = [*command, "-p", "no:randomly", "-c", os.devnull, "--results", str(tmp_path / "results"), str(test)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 7, done.stdout
    said = gpu_proof.outcomes([tmp_path / "results"])
    names = {name.partition("::")[2]: outcome for name, outcome in said.items()}
    assert names == {"test_one": {"passed"}, "test_two": {"failed"}, "test_three": {"skipped"}}


def test_the_paths_go_to_a_file_of_their_own(context, monkeypatch, capsys):
    asked = answers(monkeypatch, (0, "lltm time 64 batch 1: persistent 9.0 µs"), (None,))
    (outcome,) = check_gpu.paths(context)
    assert outcome.state == PASSED and "persistent 9.0 µs" in capsys.readouterr().out
    assert str(check_gpu.MEASURED / "paths-h100-80gb-hbm3.json") in asked[0][0]
    assert [o.state for o in check_gpu.paths(context)] == [NOT_RUN]


def test_missing_plugins_are_said_and_stood_in_for(context, monkeypatch):
    monkeypatch.setattr(check_gpu, "importable", lambda name: False)
    notes, command, variables = check_gpu.pytest_command(context)
    assert [note.split()[0] for note in notes] == ["without", "expecttest"]
    assert command[-2:] == ["-p", "gpu_results"]
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
    monkeypatch.setattr(gpu_sanitizers, "find_tool", lambda name: None)
    assert [outcome.state for outcome in check_gpu.sanitizer(context)] == [NOT_RUN]
    monkeypatch.setattr(gpu_sanitizers, "find_tool", lambda name: f"/cuda/bin/{name}")
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


def test_metals_validation_is_asked_for_and_read(on_a_mac, monkeypatch):
    api, gpu = (f"python[1:2] Metal {what} Validation Enabled" for what in ("API", "GPU"))
    passed = "4 passed in 2s"
    fault = "Invalid threadgroup load executing kernel function forward_step"
    answered = [(0, api, gpu, passed), (0, api, gpu, fault, passed), (134, api, gpu), (0, api, passed), (None,)]
    asked = answers(monkeypatch, *answered)
    (outcome,) = check_gpu.sanitizer(on_a_mac)
    assert (outcome.step, outcome.state, outcome.why) == ("validation", PASSED, passed)
    command, variables = asked[0]
    assert variables["MTL_DEBUG_LAYER"] == variables["MTL_SHADER_VALIDATION"] == "1"
    assert "--capture=no" in command and "-k mps and not far_apart" in command
    outcomes = [next(check_gpu.sanitizer(on_a_mac)) for _ in answered[1:]]
    assert [o.state for o in outcomes] == [FAILED, FAILED, NOT_RUN, NOT_RUN]
    assert outcomes[0].why == f"{fault}; {passed}"


def test_without_a_sanitizer_for_the_gpu_it_is_said(context):
    (outcome,) = check_gpu.sanitizer(Context(context.arguments, MI, context.log))
    assert outcome.state == NOT_RUN


def test_a_macs_benchmarks_run_on_mps(on_a_mac, monkeypatch):
    asked = answers(monkeypatch, *[(0,)] * 6)
    assert len([*check_gpu.bench(on_a_mac), *check_gpu.paths(on_a_mac)]) == 6
    assert all("--device mps" in command for command, _ in asked)
    assert "tf32" not in asked[0][0] and "apple-m3-max-sequence.json" in asked[0][0]


def test_benchmarks_go_to_files_named_after_the_device(context, monkeypatch, capsys):
    table = "fourfold  1.0  target ≤ 2.5 µs/step: met"
    asked = answers(monkeypatch, (0, table), (0,), (0,), (1, "WRONG: relative error 1"), (None,))
    states = [(outcome.step, outcome.state) for outcome in check_gpu.bench(context)]
    assert states == [
        ("bench sequence", PASSED),
        ("bench elementwise", PASSED),
        ("bench pointwise", PASSED),
        ("bench mlp", FAILED),
        ("bench cell", NOT_RUN),
    ]
    assert table in capsys.readouterr().out
    assert str(check_gpu.MEASURED / "h100-80gb-hbm3-sequence.json") in asked[0][0]
    assert "--dtype bfloat16 tf32 float16 float32" in asked[0][0]
    assert "--skip inductor" in asked[0][0] and "--skip" not in asked[3][0]


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
    assert lines[-2:] == ["sanitizer  not run  left out by --steps", "rest       not run  left out by --steps"]
    steps(monkeypatch, sanitizer=[Outcome("memcheck", PASSED), Outcome("racecheck", FAILED, "1 hazard")])
    assert check_gpu.main([]) == 1
    assert "racecheck  failed   1 hazard" in capsys.readouterr().out.splitlines()


def test_after_a_failed_build_and_without_time_nothing_is_begun(context, monkeypatch, capsys):
    steps(monkeypatch, build=[Outcome("build", FAILED, "no nvcc")], **{name: None for name in check_gpu.STEPS[1:]})
    assert check_gpu.main([]) == 1
    assert capsys.readouterr().out.count("not run  the build failed") == 5
    assert check_gpu.main(["--minutes", "0.1"]) == 0
    assert capsys.readouterr().out.count("not run  no time left") == 6
