"""scripts/check_gpu.py without a GPU: its steps run on the CPU as if it were one, and say what they find."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import check_gpu
import gpu_environment
import gpu_sanitizers
from gpu_context import FAILED, NOT_RUN, PASSED, Context, Done, Outcome, stopped
from gpu_device import Amd, Apple, Nvidia
from machine import ROOT, linux_only

DEVICE = Nvidia("NVIDIA H100 80GB HBM3", "2.11.0", "9.0", "580.1", "13.0", "13.0")
MI = Amd("AMD Instinct MI250X", "2.11.0", "gfx90a", "7.0")
MAC = Apple("Apple M3 Max", "2.13.0", "15.1", "40")


class Cpu(Nvidia):
    """This machine's processor in a GPU's place."""

    where = "cpu"


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A context with all files in tmp_path, on a machine with its GPU."""
    monkeypatch.setattr(check_gpu, "BUILD", tmp_path / "build")
    monkeypatch.setattr(check_gpu, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(check_gpu, "find_device", lambda where: DEVICE)
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


@pytest.mark.parametrize("where", ["cuda", "mps"])
def test_without_a_gpu_it_is_one_sentence(where):
    command = [sys.executable, str(ROOT / "scripts" / "check_gpu.py"), "--device", where]
    if where == "mps" and torch.backends.mps.is_available():
        pytest.skip("this Mac has a GPU, on which check_gpu would run")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("check_gpu: expected a") and done.stderr.count("\n") == 1


TESTS = """\
import os, pytest

@pytest.mark.parametrize("k", [pytest.param(k, id=f"{k}-float32") for k in NAMES])
def test_values(k):
    import expecttest
    assert os.environ["FOURFOLD_REQUIRE"] == "cpu" and "lstm" not in k
    if "gru" in k:
        pytest.skip("it is not there")
    if "last" in k:
        os._exit(7)
"""
NAMES = ["cpu-softshrink", "cuda-axpby", "cpu-lstm", "cpu-gru", "cpu-lltm_cell", "last", "cpu-mlp"]


@pytest.mark.slow
def test_the_steps_say_what_they_find(context, monkeypatch, capsys, tmp_path):
    """A process of tests that ends halfway keeps its results; figures go to files named after the device."""
    test = tmp_path / "test_some.py"
    test.write_text(TESTS.replace("NAMES", str(NAMES)))
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setattr(check_gpu, "BENCHMARKS", ("elementwise",))
    monkeypatch.setattr(check_gpu, "find_device", lambda where: Cpu(**vars(DEVICE)))
    monkeypatch.setattr(check_gpu, "importable", lambda name: False)  # as on a machine with pytest alone
    steps = ("--steps", "tests,bench,paths", "--quick", "--minutes", "9")
    assert check_gpu.main([*steps, "--tests", str(test)]) == 1
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines()]
    assert ["bench", "elementwise", "passed"] in lines and ["paths", "passed"] in lines
    assert "sanitizer          not run  left out by --steps" in said and "NVIDIA H100 80GB HBM3, compute" in said
    assert "tests: chosen      failed" in said and "without pytest-randomly" in said and "a stand-in" in said
    assert "lltm time 64 batch 1 hidden_size 64 bfloat16, forward: block" in said
    proof = json.loads((tmp_path / "measured" / "proof-h100-80gb-hbm3.json").read_text())
    assert proof["operators"] == {"lltm_cell": 1, "softshrink": 1} and proof["failed"] == {"lstm": 1}
    assert (proof["device"], proof["backend"], proof["every_test_passed"]) == (DEVICE.name, "cuda", False)
    measured = json.loads((tmp_path / "build" / "h100-80gb-hbm3-elementwise.json").read_text())
    assert measured["complete"] and measured["results"]
    names = {"check-gpu.log", "chosen.jsonl", "proof-h100-80gb-hbm3.json", "h100-80gb-hbm3-elementwise.json"}
    assert {file.name for file in out.iterdir()} == names | {"paths-h100-80gb-hbm3.json"}


@linux_only
def test_a_command_is_stopped_with_its_children_when_time_is_up(context):
    context.arguments.minutes = 1.5 / 60
    child = "import time; time.sleep(60)"
    script = f"import subprocess as s, sys; p = s.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True)"
    done = context.run(sys.executable, "-c", script + "; p.wait()")
    assert done.code is None and done.seconds < 30
    assert stopped(done).endswith("at the end of its time") and context.no_time()
    stat = Path(f"/proc/{int(done.lines[0])}/stat")
    for _ in range(100):  # until init has reaped it
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("its child still runs")


def test_a_build_that_is_there_is_not_repeated(context, monkeypatch):
    new = time.time() + 1000
    answers(monkeypatch, (0, f"{new} usable"))
    assert [outcome.state for outcome in check_gpu.build(context)] == [PASSED]
    answers(monkeypatch, (0, "0.0 usable"), (0, "built"), (0, f"{new} torch sees no cuda device"))
    (outcome,) = check_gpu.build(context)
    assert (outcome.state, outcome.why) == (FAILED, "cuda: torch sees no cuda device")
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
    assert outcome.state == PASSED and "--no-index" in asked[1][0] and asked[1][1] == variables
    assert all(f"cmake.define.FOURFOLD_{option}" in asked[1][0].split("=", 1)[1] for option in options.split())


@pytest.mark.parametrize("device", [DEVICE, MAC], ids=lambda device: device.backend)
def test_a_proof_is_whole_only_after_every_run(device, context, monkeypatch):
    context = Context(context.arguments, device, context.log)

    def run(self, *command, limit=None, **variables):
        if "pytest" in command:
            result = {"test": f"tests/test_values.py::test_values[{device.where}-softshrink]", "outcome": "passed"}
            Path(command[command.index("--results") + 1]).write_text(json.dumps(result) + "\n")
        return Done(0, 1.0, ["softshrink lltm_cell"])

    monkeypatch.setattr(Context, "run", run)
    proof = check_gpu.MEASURED / f"proof-{device.slug}.json"
    for step, whole in ((check_gpu.tests, False), (check_gpu.rest, True)):
        assert all(outcome.state == PASSED for outcome in step(context))
        assert json.loads(proof.read_text())["every_test_passed"] is whole
    tested = {file.name for name in ("tests", "tests/repository") for file in (ROOT / name).glob("test_*.py")}
    assert {Path(given[0]).name for _, given in check_gpu.on_device(context) + check_gpu.on_cpu(context)} == tested


def test_the_sanitizers_verdicts(context, monkeypatch):
    monkeypatch.setattr(gpu_sanitizers, "find_tool", lambda name: None)
    assert [outcome.state for outcome in check_gpu.sanitizer(context)] == [NOT_RUN]
    monkeypatch.setattr(gpu_sanitizers, "find_tool", lambda name: f"/cuda/bin/{name}")
    answers(monkeypatch, (1, "========= Error: Device not supported", "========= end"))
    (outcome,) = check_gpu.sanitizer(context)
    assert outcome.state == NOT_RUN and outcome.why.endswith("========= Error: Device not supported")
    summary = "========= ERROR SUMMARY: 1 error"
    answers(monkeypatch, (0, "3"), (0, "4 passed in 2s", "========= ERROR SUMMARY: 0 errors"), (99, summary))
    memcheck, racecheck = check_gpu.sanitizer(context)
    assert (memcheck.state, memcheck.why) == (PASSED, "ERROR SUMMARY: 0 errors; 4 passed in 2s")
    assert racecheck.state == FAILED and racecheck.why.startswith("ERROR SUMMARY: 1 error")


def test_metals_validation_is_read(context, monkeypatch):
    context = Context(context.arguments, MAC, context.log)
    api, gpu = (f"python[1:2] Metal {what} Validation Enabled" for what in ("API", "GPU"))
    passed, fault = "4 passed in 2s", "Invalid threadgroup load executing kernel function forward_step"
    answered = [(0, api, gpu, passed), (0, api, gpu, fault, passed), (134, api, gpu), (0, api, passed), (None,)]
    answers(monkeypatch, *answered)
    outcomes = [next(check_gpu.sanitizer(context)) for _ in answered]
    assert [outcome.state for outcome in outcomes] == [PASSED, FAILED, FAILED, NOT_RUN, NOT_RUN]
    assert [outcome.why for outcome in outcomes[:2]] == [passed, f"{fault}; {passed}"]


def test_after_a_failed_build_and_without_time_nothing_is_begun(context, monkeypatch, capsys):
    monkeypatch.setattr(check_gpu, "build", lambda context: iter([Outcome("build", FAILED, "no nvcc")]))
    assert check_gpu.main([]) == 1
    assert capsys.readouterr().out.count("not run  the build failed") == 5
    assert check_gpu.main(["--minutes", "0.1"]) == 0
    assert capsys.readouterr().out.count("not run  no time left") == 6


def test_the_environment_names_what_is_missing_and_installs_nothing(monkeypatch, tmp_path):
    absent, find = ["pybind11", "expecttest"], importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))
    monkeypatch.setattr(gpu_environment, "FOLDER", tmp_path / "venv")
    monkeypatch.setattr(gpu_environment, "PYTHON", tmp_path / "venv" / "bin" / "python")
    monkeypatch.setattr(gpu_environment, "expect_gpu", lambda where: None)
    with pytest.raises(SystemExit, match=r"needs but pybind11; install it there: .* -m pip install pybind11$"):
        gpu_environment.main()
    assert not gpu_environment.FOLDER.exists()
    del absent[0]
    gpu_environment.main()
    script = "import torch, pip, pytest; print(torch.__version__)"
    done = subprocess.run([str(gpu_environment.PYTHON), "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == torch.__version__, done.stderr
    assert (tmp_path / "venv" / "bin" / "cmake").exists() and (tmp_path / "venv" / "bin" / "ninja").exists()
