"""The table of suites: its command line, its targets, and suites from end to end."""

import json
import random
import subprocess
import sys
from functools import partial

import pytest
import torch

import fourfold
from benchmarks import classes, cold, elementwise, models, pointwise, recurrent, scan, scan_memory, suites, sweep
from benchmarks.__main__ import main
from benchmarks.class_functions import CLASSES, Drawn
from benchmarks.problem import PRECISIONS
from benchmarks.processes import Ended
from benchmarks.recurrent import named
from benchmarks.request import Request
from benchmarks.suites import SUITES, TARGETS
from benchmarks.targets import AOT_EAGER, BACKENDS, INDUCTOR, OURS, PLAIN
from machine import ROOT, needs

pytestmark = pytest.mark.slow

NAMES = [suite.name for suite in SUITES]
ROWED = ("recurrent", "mlp", "elementwise", "pointwise")  # modules with suites that yield problems
STATE = {"built": False, "usable": False, "reason": "not built: switched off"}


def error_of(capsys, arguments):
    """The complaint, which is a sentence on a line."""
    try:
        code = main(arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    return error


def test_the_package_is_a_command():
    command = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(f"\n    {suite.name}" in done.stdout and suite.title in done.stdout for suite in SUITES)


@pytest.mark.parametrize("suite", SUITES, ids=NAMES)
def test_every_help_text_has_examples_that_parse(suite, capsys, monkeypatch, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main([suite.name, "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0 and "%(" not in text and "{}" not in text
    examples = text.partition("examples:\n")[2].splitlines()
    assert examples and all(f"python -m benchmarks {suite.name} --" in example for example in examples)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    monkeypatch.setattr("benchmarks.__main__.run_suite", lambda arguments: 0)
    assert [main(example.split()[3:]) for example in examples] == [0] * len(examples)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("cell --device abacus", "cell: expected --device to be cpu, cuda, cuda:1 or mps, but got 'abacus'"),
        ("cell --memory-fraction 3", "argument --memory-fraction: expected a number from 0 to 2, but got '3'"),
        ("mlp --skip fourfold", "argument --skip: invalid choice: 'fourfold'"),
        ("mlp --json nowhere/to/be.json", "argument --json: expected a file in a directory that exists"),
        (f"sequence --plots {'x' * 300}", "sequence: expected --plots to be a directory to write to"),
        ("sequence --dtype tf32", "sequence: expected --dtype tf32 only with --device cuda, but got cpu"),
        ("stream --device cuda", "unrecognized arguments: --device cuda"),
        (f"mlp --hidden-size {2**48} --quick", "expected sizes that fit into memory"),
    ],
)
def test_what_cannot_be_met_is_one_sentence(arguments, complaint, capsys, tmp_path, monkeypatch):
    if "--plots" in arguments:
        needs("matplotlib")
    monkeypatch.chdir(tmp_path)
    error = error_of(capsys, arguments)
    assert complaint in error and error.startswith("python -m benchmarks") and not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("present", "hip", "arguments", "complaint"),
    [
        (None, None, "cell --device cuda", f"but got 'cuda': torch {torch.__version__} sees no GPU"),
        ("cuda", None, "cell --device cuda:2", "expected one of the GPUs 0 to 1, but got 'cuda:2'"),
        ("cuda", None, "cell --device cuda", "expected a fourfold with CUDA kernels, but of them: not built: switched"),
        ("cuda", "7.0", "cell --device cuda", "expected a fourfold with HIP kernels, but of them: not built: switched"),
        ("mps", None, "cell --device mps", "expected a fourfold with Metal kernels, but of them: not built: switched"),
        ("usable mps", None, "cell --device mps --threads 1", "expected --threads only with --device cpu, but got mps"),
    ],
)
def test_what_a_gpu_or_its_absence_forbids_is_one_sentence(present, hip, arguments, complaint, capsys, monkeypatch):
    usable, _, name = (present or "").rpartition(" ")
    device = torch.device(name) if name else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    states = dict.fromkeys(("cuda", "hip", "metal"), STATE | {"usable": bool(usable)})
    monkeypatch.setattr(fourfold, "backends", lambda: states)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert complaint in error_of(capsys, arguments)


def test_every_target_belongs_to_a_problem_or_a_report(monkeypatch):
    """A target whose work no problem names, or whose rows no problem has, would never be evaluated."""
    monkeypatch.setattr(elementwise, "ELEMENTS", {"cpu": (10, 10**6)})
    monkeypatch.setattr(pointwise, "ELEMENTS", (10**3, 10**5))
    monkeypatch.setattr(pointwise.allocation, "can_be_kept", lambda: False)
    problems = [*scan.problems(Request("scan", quick=True)), *recurrent.rl(Request("rl", quick=True))]
    for suite in SUITES:
        if suite.name != "all" and suite.tables.__module__.removeprefix("benchmarks.") in ROWED:
            problems += suite.tables(Request(suite.name))
    known = {(work, row.name) for problem in problems for work in problem.works for row in problem.rows}
    judged = {(t.work, name) for t in TARGETS if t.phase for name in (t.row, t.against)}
    on_gpu = {f"{op}, 10 million elements or more" for op in elementwise.TENSORS} | {pointwise.LARGE_ON_GPU}
    for precision in PRECISIONS.values():
        for size in recurrent.SIZES["cuda"]:
            on_gpu |= set(recurrent.works("LLTM", named(size), precision, "cuda"))
    assert {work for work, _ in judged - known} <= on_gpu
    assert set(suites.FUNCTIONS) == set(pointwise.FUNCTIONS)
    assert set(suites.OTHER_FUNCTIONS) == set(pointwise.OTHERS)


def contents_of(capsys, tmp_path, command):
    """What the suite wrote as JSON, and what it printed."""
    file = tmp_path / "result.json"
    code = main([*command.split(), "--json", str(file)])
    output, contents = capsys.readouterr().out, json.loads(file.read_text())
    assert code == 0, output
    assert contents["complete"] and contents["results"] and "TRIAL: fewer than 30 repeats" in output
    return contents, output


@pytest.mark.parametrize(
    ("command", "threads"),
    [
        ("cell --quick --batch-size 3 --skip aten inductor", [1]),
        ("mlp --quick --batch-size 3 --skip aten inductor", [1]),
        ("sequence --hidden-size 8 --time 3 --layer LSTM --dtype float32 --threads 1 2", [1, 2]),
        ("elementwise --elements 1000 --threads 1 2", [1, 2] * 2),
        ("pointwise --function gelu_tanh mandelbrot --elements 1000 --skip inductor --threads 1 2", [1, 2] * 2),
        ("scan --quick", [1, 1]),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_suite_of_rows_from_end_to_end(command, threads, capsys, tmp_path, monkeypatch):
    few = [scan.problem_of(scan.EVERY["spiking neuron"], (5, 3, 4, 6)), scan.biquad(5)]
    monkeypatch.setattr(scan, "tables", lambda request: few)
    contents, output = contents_of(capsys, tmp_path, f"{command} --repeats 2")
    results = contents["results"]
    assert [result["threads"] for result in results] == threads
    for result in results:
        assert result["rate"] is None or result["rate"] in output
        for row in result["rows"]:
            if row["reason"] is None:
                assert all(0 < phase["minimum"] <= phase["median"] for phase in row["phases"].values())
                assert row["relative_error"] < row["tolerance"] and not row["wrong"]
            else:
                assert row["name"] != OURS
        baseline = next(row for row in result["rows"] if row["name"] == result["baseline"])
        assert all(phase["ratio"]["median"] == 1 for phase in baseline["phases"].values())


def test_memory_that_a_forward_of_a_recurrence_keeps():
    ways = {**scan.WAYS, scan.CHECKPOINTED: partial(fourfold.scan, checkpoint_every=10)}
    found = scan_memory.report([scan.problem_of(scan.EVERY["spiking neuron"], (100, 16, 32, 128), ways=ways)])
    kept = {figure["way"]: figure["kept"] for figure in found.figures}
    assert kept[OURS] is None or 0 < kept[scan.CHECKPOINTED] < kept[OURS] < kept[PLAIN]


def test_suites_of_processes_from_end_to_end(capsys, tmp_path):
    """First calls in fresh processes, compile times, a busy neighbour, random points."""
    results = contents_of(capsys, tmp_path, "cold --quick --skip inductor")[0]["results"]
    for result in results:
        assert [figures["way"] for figures in result["figures"]] == [PLAIN, AOT_EAGER, OURS], result["notes"]
        assert all(0 < figures[part] < 60 for figures in result["figures"] for part in cold.PARTS)
    assert len(results) == 2 and results[0]["targets"][-1]["measured"] == 0  # modules of Dynamo
    contents, output = contents_of(capsys, tmp_path, "compiling --quick")
    assert [figures["time"] for figures in contents["results"][0]["figures"]] == [16, 4096]
    assert "compile time, T=4096 over T=16" in output.split("Targets: ")[1]
    contents, _ = contents_of(capsys, tmp_path, "sweep --quick --repeats 1 --first 2 --points 2")
    points = [point for _, point in zip(range(3), sweep.draw(1, [1]), strict=False)][1:]
    figures = contents["results"][0]["figures"]  # a part is the same as in the whole
    assert [figure["hidden_size"] for figure in figures] == [point.hidden_size for point in points]


def test_classes_from_end_to_end(capsys, tmp_path):
    """Two functions of each class, whose values are checked."""
    contents, _ = contents_of(capsys, tmp_path, "classes --quick --repeats 1 --elements 3000")
    assert [result["title"] for result in contents["results"]] == list(CLASSES)
    for result in contents["results"]:
        words = dict.fromkeys(figure["words"] for figure in result["figures"])
        drawn = random.Random(f"{classes.SEED} {result['title']}")
        assert next(iter(words)) == CLASSES[result["title"]](drawn).words  # the same for a seed
        assert all(figure["of_eager"] > 0 for figure in result["figures"]), result["notes"]


def test_a_wrong_value_of_a_class_is_not_timed(monkeypatch):
    drawn = Drawn("sin", torch.sin, lambda elements, generator: (torch.ones(elements),), 1)
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, backend: compile(lambda x: call(x) * 1.01, backend=backend))
    request = Request("classes", repeats=1, skip={"inductor"})
    (found,) = classes.measure("elementwise chains", drawn, 100, "float32", request)
    assert found.wrong and "WRONG" in found.reason and classes.report("elementwise chains", [found]).wrong


@pytest.mark.skipif(sys.platform != "linux", reason="the neighbour and the quota need Linux")
def test_a_busy_neighbour_from_end_to_end(capsys, tmp_path):
    results = contents_of(capsys, tmp_path, "disturbed --quick --repeats 1")[0]["results"]
    assert len(results) == 2 and all(row["slower"] > 0 for result in results for row in result["figures"])


def test_first_calls_are_judged_round_by_round_and_a_failure_of_ours_is_wrong():
    def start(where, backend, folder):
        if backend == BACKENDS[OURS] and failing:
            raise cold.Failed("OSError: read-only")
        rounds.setdefault(backend, []).append(folder)
        first = {"": 0.2, "aot_eager": 1.0, "fourfold": 1.1, "inductor": 22.0}[backend] * len(rounds[backend])
        return {cold.IMPORT: 1.0, cold.FIRST: first, cold.SECOND: 0.1}

    failing, rounds = False, {}
    found = cold.report(cold.USUAL, *cold.take(cold.USUAL, Request("cold"), start), modules=2)
    # Rounds 2 to 6 of ours and aot_eager's; of Inductor's the first and the third, whose caches are empty.
    measured = [pytest.approx(0.4), pytest.approx(0.1), pytest.approx((22 / 2.2 + 66 / 3.3) / 2), 2]
    assert [o.measured for o in found.outcomes] == measured and not found.wrong
    assert [o.met for o in found.outcomes] == [False, True, True, False]
    failing = True
    found = cold.report(cold.USUAL, *cold.take(cold.USUAL, Request("cold", quick=True, skip={"inductor"}), start))
    assert found.notes == ["fourfold fails: OSError: read-only"] and found.wrong


def test_models_with_other_losses_are_not_timed():
    losses = {PLAIN: [3.0, 2.0, 1.0], INDUCTOR: [], AOT_EAGER: [3.0, 2.0, 1.00009], OURS: [3.0, 2.0, 1.000004]}

    def answer(way, question):
        if not losses[way]:
            raise Ended("its process ended")
        if question == "first":
            return {"seconds": 2.0, "losses": losses[way]}
        return 0.01 if question == "inference" else 0.04 if way == OURS else 0.02

    ways = models.measure([models.Way(name) for name in losses], 3, answer)
    assert [len(way.seconds["step"]) for way in ways] == [3, 0, 0, 3]
    found = models.report("GPT-2", 2, ways)
    assert [cells[0] for cells in found.cells] == [PLAIN, OURS] and found.cells[1][2:5] == ("40.0", "0.0", "0.50×")
    assert found.notes[1:] == [
        f"{INDUCTOR}: its process ended",
        f"{AOT_EAGER}: WRONG: a loss is off by 9.0e-05 of it, tolerance 1e-05; not timed",
        "fourfold loses, training: 0.50× of plain PyTorch.",
    ]
    ways[-1].reason = "its process ended"
    assert not found.wrong and models.report("GPT-2", 2, ways).wrong
