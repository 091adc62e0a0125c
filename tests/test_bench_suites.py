"""The table of suites: its command line, its targets, what the suites measure, and suites from end to end."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

import fourfold
from benchmarks import elementwise, pointwise, recurrent, run, scan, suites, sweep
from benchmarks.__main__ import main
from benchmarks.problem import FLOAT32, ON_GPU, PRECISIONS
from benchmarks.recurrent import EVERY_ROW, named
from benchmarks.request import Request, device_with_kernels
from benchmarks.suites import SUITES, TARGETS
from benchmarks.targets import BOTH, INDUCTOR, NO_GRAD, OURS, PLAIN, Target
from machine import ROOT, needs

ATEN = "C++ composition of ATen calls"
NAMES = [suite.name for suite in SUITES]
ROWED = ("recurrent", "mlp", "elementwise", "pointwise")  # modules with suites that yield problems
STATE = {"built": False, "usable": False, "reason": "not built: switched off"}
USABLE = {**STATE, "usable": True}


def error_of(capsys, arguments):
    try:
        code = main(arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    output, error = capsys.readouterr()
    assert (code, output, error.count("\n")) == (2, "", 1)
    return error


def test_the_package_is_a_command():
    command = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(f"\n    {name}" in done.stdout for name in NAMES) and "examples:" in done.stdout
    assert all(suite.title in done.stdout for suite in SUITES)


@pytest.mark.parametrize("suite", SUITES, ids=NAMES)
def test_every_help_text_has_examples_that_parse(suite, capsys, monkeypatch, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main([suite.name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "%(" not in text and "{}" not in text and all(flag in text for flag in suite.flags)
    examples = text.partition("examples:\n")[2].splitlines()
    assert examples and all(f"python -m benchmarks {suite.name} --" in example for example in examples)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    monkeypatch.setattr("benchmarks.__main__.run_suite", lambda arguments: 0)
    for example in examples:
        assert main(example.split()[3:]) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("cell --repeats two", "argument --repeats: expected a positive integer, but got 'two'"),
        ("cell --threads 100000", "--threads: expected a positive integer, at most 1024, but got 100000"),
        ("cell --device abacus", "cell: expected --device to be cpu, cuda, cuda:1 or mps, but got 'abacus'"),
        ("cell --memory-fraction 3", "argument --memory-fraction: expected a number from 0 to 2, but got '3'"),
        ("mlp --skip fourfold", "argument --skip: invalid choice: 'fourfold'"),
        ("mlp --json nowhere/to/be.json", "argument --json: expected a file in a directory that exists"),
        ("mlp --memory-fraction 0.5", "mlp: expected --memory-fraction only with --device cuda or mps, but got cpu"),
        (f"sequence --plots {'x' * 300}", "sequence: expected --plots to be a directory to write to"),
        ("sequence --dtype tf32", "sequence: expected --dtype tf32 only with --device cuda, but got cpu"),
        ("elementwise --dtype tf32", "argument --dtype: invalid choice: 'tf32'"),
        ("elementwise --elements 0", "argument --elements: expected a positive integer, but got '0'"),
        ("stream --device cuda", "unrecognized arguments: --device cuda"),
    ],
)
def test_what_cannot_be_met_is_one_sentence(arguments, complaint, capsys, tmp_path, monkeypatch):
    if "--plots" in arguments:
        needs("matplotlib")
    monkeypatch.chdir(tmp_path)
    error = error_of(capsys, arguments)
    assert complaint in error and error.startswith("python -m benchmarks") and not any(tmp_path.iterdir())


@pytest.mark.parametrize("size", ["sequence --time", "mlp --hidden-size", "elementwise --elements"])
def test_sizes_that_no_memory_holds(size, capsys):
    try:
        assert main([*size.split(), str(2**48), "--quick"]) == 2
    finally:
        error = capsys.readouterr().err
    assert "expected sizes that fit into memory" in error and error.count("\n") == 1


def test_plots_without_matplotlib_are_refused_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("benchmarks.request.importlib.util.find_spec", lambda name: None)
    error = error_of(capsys, f"sequence --plots {tmp_path}")
    assert "expected matplotlib for --plots, but it is missing: pip install" in error


def gpu(monkeypatch, name, **states):
    """Simulates a machine on which torch sees two such GPUs, or none without a name."""
    present = torch.device(name) if name else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: present)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(fourfold, "backends", lambda: states)


@pytest.mark.parametrize(
    ("present", "hip", "arguments", "complaint"),
    [
        (None, None, "cell --device cuda", f"but got 'cuda': torch {torch.__version__} sees no GPU"),
        (None, None, "cell --device mps", "sees no GPU"),
        ("mps", None, "cell --device cuda", "sees one that is mps"),
        ("cuda", None, "cell --device cuda:2", "expected one of the GPUs 0 to 1, but got 'cuda:2'"),
        ("cuda", None, "cell --device cuda", "expected a fourfold with CUDA kernels, but of them: not built: switched"),
        ("cuda", "7.0", "cell --device cuda", "expected a fourfold with HIP kernels, but of them: not built: switched"),
        ("mps", None, "cell --device mps", "expected a fourfold with Metal kernels, but of them: not built: switched"),
        (
            "usable mps",
            None,
            "cell --device mps --threads 1",
            "expected --threads only with --device cpu, but got mps:0",
        ),
        ("usable mps", None, "sequence --device mps --dtype tf32", "expected --dtype tf32 only with --device cuda"),
    ],
)
def test_what_a_gpu_or_its_absence_forbids_is_one_sentence(present, hip, arguments, complaint, capsys, monkeypatch):
    usable, _, name = (present or "").rpartition(" ")
    gpu(monkeypatch, name, **dict.fromkeys(("cuda", "hip", "metal"), USABLE if usable else STATE))
    monkeypatch.setattr(torch.version, "hip", hip)
    assert complaint in error_of(capsys, arguments)


def test_a_request_takes_what_its_device_has(monkeypatch):
    asked = []
    gpu(monkeypatch, "mps", metal=USABLE)
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", lambda fraction: asked.append(fraction))
    monkeypatch.setattr(run, "run", lambda request: asked.append(request) or 0)
    assert main(["sequence", "--device", "mps", "--memory-fraction", "1.5"]) == 0
    fraction, request = asked
    assert fraction == 1.5 and request.device == torch.device("mps", 0) and request.threads == [1]
    assert [p.name for p in request.precisions_or(ON_GPU, on_cpu=())] == ["float32", "bfloat16", "float16"]
    assert len(request.chosen([{"time": 1}, {"time": 2}])) == 2
    gpu(monkeypatch, "cuda", cuda=USABLE)
    assert device_with_kernels("cell", "cuda:1") == torch.device("cuda", 1)
    on_cuda = dataclasses.replace(request, device=torch.device("cuda"))
    assert [p.name for p in on_cuda.precisions_or(ON_GPU)] == [*ON_GPU]
    assert Request("sequence").precisions_or(ON_GPU) == [FLOAT32]


def test_every_target_belongs_to_a_problem_or_a_report(monkeypatch):
    """A target whose work no problem names, or whose rows no problem has, would never be evaluated."""
    monkeypatch.setattr(elementwise, "ELEMENTS", {"cpu": (10, 10**6)})
    monkeypatch.setattr(pointwise, "ELEMENTS", (10**3, 10**5))
    monkeypatch.setattr(pointwise.allocation, "can_be_kept", lambda: False)
    known = set()
    for suite in SUITES:
        if suite.name != "all" and suite.tables.__module__.removeprefix("benchmarks.") in ROWED:
            for problem in suite.tables(Request(suite.name)):
                known |= {(work, row.name) for work in problem.works for row in problem.rows}
    known |= {
        (work, row.name)
        for problem in (*scan.problems(Request("scan", quick=True)), *recurrent.rl(Request("rl", quick=True)))
        for work in problem.works
        for row in problem.rows
    }
    judged = {(t.work, name) for t in TARGETS if t.phase for name in (t.row, t.against)}
    on_gpus = {work for work, _ in judged - known if work.endswith((" on a GPU", "10 million elements or more"))}
    assert {work for work, _ in judged - known} == on_gpus
    on_gpu = {f"{op}, 10 million elements or more" for op in elementwise.TENSORS} | {pointwise.LARGE_ON_GPU}
    for precision in PRECISIONS.values():
        on_gpu |= {
            w for size in recurrent.SIZES["cuda"] for w in recurrent.works("LLTM", named(size), precision, "cuda")
        }
    assert on_gpus <= on_gpu
    assert set(suites.FUNCTIONS) == set(pointwise.FUNCTIONS)
    assert set(suites.OTHER_FUNCTIONS) == set(pointwise.OTHERS)
    assert {target.threads for target in TARGETS} == {None, 1, 2}


def test_targets_are_lines_of_text():
    first, second, third, *others = suites.targets(
        "a, frozen | b | 2 | no grad ≥ 1/1.2, both ≥ 2\n{} x | | | ≤ 3.5 s more"
    )
    assert first == Target("a, frozen", NO_GRAD, 1 / 1.2, "b", 2, f"{OURS}, frozen")
    assert second == dataclasses.replace(first, phase=BOTH, limit=2.0)
    assert third == Target(f"{suites.FUNCTIONS[1]} x", "", 3.5, at_most=True, unit=" s more")
    assert [target.work for target in others] == [f"{name} x" for name in suites.FUNCTIONS[2:]]


CENTRE = "T100 B16 I32 H128"


@pytest.mark.parametrize(
    ("kind", "precision", "device", "works"),
    [
        ("LLTM", "float32", "cpu", (f"LLTM {CENTRE}", f"LLTM {CENTRE}, 2 threads")),
        ("LLTM", "autocast", "cpu", (f"LLTM {CENTRE} bfloat16", f"LLTM {CENTRE} bfloat16, 2 threads")),
        ("LLTM", "bfloat16", "cpu", ()),
        ("GRU", "float32", "cpu", (EVERY_ROW, f"GRU {CENTRE}", f"GRU {CENTRE}, 2 threads")),
        ("LSTM", "autocast", "cpu", (EVERY_ROW,)),
        ("LLTM", "tf32", "cuda", (f"LLTM {CENTRE} float32 with TF32 products on a GPU",)),
        ("LLTM", "tf32", "mps", ()),
    ],
)
def test_the_targets_of_sequences_depend_on_size_precision_and_device(kind, precision, device, works):
    assert recurrent.works(kind, named(recurrent.CENTRE), PRECISIONS[precision], device) == works


@pytest.mark.parametrize(
    ("command", "threads", "rows"),
    [
        ("cell --quick --batch-size 3 --skip aten inductor", [1], [PLAIN, ATEN, INDUCTOR, OURS]),
        (
            "mlp --quick --batch-size 3 --skip aten inductor",
            [1],
            ["nn.Sequential", f"{PLAIN}, functional", ATEN, INDUCTOR, f"{OURS}, functional", OURS],
        ),
        (
            "sequence --hidden-size 8 --time 3 --layer LSTM --dtype float32 --threads 1 2",
            [1, 2],
            [PLAIN, "nn.LSTM", "ONNX Runtime", OURS],
        ),
        ("elementwise --elements 1000 --threads 1 2", [1, 2] * 2, ["copy_ of as many bytes", "F.softshrink", OURS]),
        (
            "pointwise --function gelu_tanh mandelbrot --elements 1000 --skip inductor --threads 1 2",
            [1, 2] * 2,
            [PLAIN, INDUCTOR, "torch.compile (aot_eager)", OURS],
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_suite_from_end_to_end(command, threads, rows, capsys, tmp_path):
    file = tmp_path / "result.json"
    assert main([*command.split(), "--repeats", "2", "--json", str(file)]) == 0
    output, contents = capsys.readouterr().out, json.loads(file.read_text())
    assert contents["complete"] and contents["environment"]["device"] == "cpu"
    assert "TRIAL: fewer than 30 repeats" in output
    assert ("left out by --skip or --quick" in output) == ("--skip" in command)
    results = contents["results"]
    assert [result["threads"] for result in results] == threads
    assert [row["name"] for row in results[0]["rows"]] == rows
    for result in results:
        assert result["rate"] is None or result["rate"] in output
        for row in result["rows"]:
            if row["reason"] is None:
                assert all(phase["repeats"] == 2 and phase["minimum"] > 0 for phase in row["phases"].values())
                assert row["relative_error"] < row["tolerance"] and not row["wrong"]
            else:
                assert row["name"] != OURS
        baseline = next(row for row in result["rows"] if row["name"] == result["baseline"])
        assert all(phase["ratio"]["median"] == 1 for phase in baseline["phases"].values())


def test_what_is_measured_of_sequences():
    assert run.chosen("all") == [name for name in NAMES if name not in ("sweep", "all")] and run.chosen("rl") == ["rl"]
    problems = [*recurrent.sequence(Request("sequence"))]
    found = [(p.kind, p.precision.name, p.threads, p.batch_sizes is None) for p in problems]
    grid = [line for line in found if line[2:] == (None, True)]
    assert len(grid) == 3 * 4 * 2 and {line[1] for line in grid} == {"float32", "autocast"}
    assert [line[0] for line in found if not line[3]] == ["LSTM", "GRU"]
    assert len([line for line in found if line[2] == (1,)]) == 3 * len(recurrent.AROUND)
    quick = recurrent.sequence(Request("sequence", quick=True, kinds=["GRU"]))
    assert [(p.kind, p.batch_sizes is None) for p in quick] == [("GRU", True), ("GRU", False)]
    asked = [p.sizes for p in recurrent.sequence(Request("sequence", {"time": 7}, kinds=["LLTM"], quick=True))]
    assert asked == [named((16, 32, 128, 7))]


def test_what_is_measured_of_functions(monkeypatch):
    monkeypatch.setattr(pointwise, "ELEMENTS", (10, 20))
    monkeypatch.setattr(pointwise, "LARGE", 20)
    monkeypatch.setattr(pointwise, "LAYOUT_ELEMENTS", 1000)
    monkeypatch.setattr(pointwise.allocation, "can_be_kept", lambda: True)
    found = list(pointwise.tables(Request("pointwise", kinds=["gelu_erf", "adam"])))
    assert [(p.kind, p.sizes["elements"], p.threads, p.around is pointwise.allocation.kept) for p in found] == [
        ("gelu_erf", 10, None, False),
        ("adam", 10, None, False),
        ("adam", 20, (1,), False),
        ("adam", 1000, (1,), False),
        ("gelu_erf", 20, None, True),
        ("adam", 20, None, True),
    ]
    asked = Request("pointwise", {"elements": [30]}, kinds=["adam"])
    assert [(p.sizes["elements"], p.threads) for p in pointwise.tables(asked)] == [(30, None)]
    function = pointwise.FUNCTIONS["rms_norm"]
    works = [pointwise.problem(function, count).works for count in (1000, 10_000, 100_000)]
    assert works == [("every function of 1,000 elements",), (), ("rms_norm from 100,000 elements on",)]
    quick = [p.sizes["elements"] for p in pointwise.tables(Request("pointwise", quick=True))]
    assert quick == [10**3] * 11 + [10**5] * 11 + [1000]


def test_what_is_measured_of_recurrences(monkeypatch):
    monkeypatch.setattr(scan, "problem_of", lambda recurrence, sizes, **settings: recurrence.name)
    for name in ("neuron", "advantages", "biquad", "mamba", "layer"):
        monkeypatch.setattr(scan, name, lambda *given, name=name: (name, *given))
    every = list(scan.problems(Request("scan")))
    assert {found for found in every if isinstance(found, str)} == set(scan.EVERY) - {*scan.ON_THEIR_OWN, *scan.CHAOTIC}
    quick = list(scan.problems(Request("scan", quick=True)))
    assert all(each in every for each in quick) and len(quick) < len(every)
    assert [found for found in quick if isinstance(found, str)] == ["sLSTM", "liGRU"]


def test_a_recurrence_from_end_to_end(capsys, monkeypatch, tmp_path):
    few = [scan.problem_of(scan.EVERY["spiking neuron"], (5, 3, 4, 6)), scan.biquad(5)]
    monkeypatch.setattr(scan, "problems", lambda request: few)
    monkeypatch.setattr(scan, "first_report", lambda request: scan.memory_report())
    file = tmp_path / "scan.json"
    assert main(["scan", "--quick", "--repeats", "1", "--json", str(file)]) == 0
    output, results = capsys.readouterr().out, json.loads(file.read_text())["results"]
    assert "Memory that a forward keeps" in output and "spiking neuron, 5 steps, batch 3" in output
    for result in results[:2]:
        rows = {row["name"]: row for row in result["rows"]}
        assert rows[PLAIN]["phases"].keys() == rows[OURS]["phases"].keys() == {NO_GRAD, BOTH}
        assert all(row["relative_error"] < row["tolerance"] for row in rows.values() if not row["reason"])
    kept = {figure["way"]: figure["kept"] for figure in results[2]["figures"] if figure["title"].startswith("spiking")}
    assert kept[OURS] is None or 0 < kept[scan.CHECKPOINTED] < kept[OURS] < kept[PLAIN]


def test_a_part_of_the_sweep_is_the_same_as_in_the_whole(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    assert main(["sweep", "--quick", "--repeats", "1", "--first", "2", "--points", "2", "--json", str(file)]) == 0
    assert "Points 2 to 3 of seed 1" in capsys.readouterr().out
    figures = json.loads(file.read_text())["results"][0]["figures"]
    points = [point for _, point in zip(range(3), sweep.draw(1, [1]), strict=False)][1:]
    assert [figure["hidden_size"] for figure in figures] == [point.hidden_size for point in points]
