"""The benchmarks of the cell and of small perceptrons: their rows, what is checked of each, and what is printed."""

import json
import subprocess
import sys

import pytest
import torch

import fourfold
from benchmarks import aten, cell, comparison, environment, mlp, problem, tables, timing
from benchmarks import run as running
from benchmarks.__main__ import main
from fourfold.cli.timing import is_noisy
from machine import ROOT, missing

CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}
MLP_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 6, "output_size": 2}


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().out


def test_the_package_is_a_command():
    command = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(name in done.stdout for name in (*running.SUITES, "all", "examples:"))


@pytest.mark.parametrize("command", ["", *running.SUITES, "all"])
def test_every_help_text_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:\n  python -m benchmarks" in text
    assert "%(" not in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("cell --repeats two", "argument --repeats: expected a positive integer, but got 'two'"),
        ("mlp --skip fourfold", "argument --skip: invalid choice: 'fourfold'"),
        ("mlp --json nowhere/to/be.json", "argument --json: expected a file in a directory that exists"),
        ("cell --threads 100000", "--threads: expected a positive integer, at most 1024, but got 100000"),
        (f"sequence --plots {'x' * 300}", "sequence: expected --plots to be a directory to write to"),
        (f"sequence --quick --time {2**48}", "expected sizes that fit into memory"),
        (f"mlp --quick --hidden-size {2**48}", "expected sizes that fit into memory"),
        (f"elementwise --quick --elements {2**48}", "expected sizes that fit into memory"),
    ],
)
def test_what_cannot_be_met_is_one_sentence_and_exit_code_2(arguments, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1
    assert complaint in error and error.startswith("python -m benchmarks")
    assert not any(tmp_path.iterdir())


def test_statistics_of_samples():
    figures = timing.summarise([5.0, 1.0, 2.0, 4.0, 3.0])
    assert figures == timing.Statistics(3.0, 1.0, 2.0, 4.0, 5)
    assert figures.spread == 2.0
    assert timing.summarise([7.0]) == timing.Statistics(7.0, 7.0, 7.0, 7.0, 1)
    assert timing.paired_ratios([6.0, 8.0], [3.0, 16.0]) == [2.0, 0.5]


def test_contenders_run_in_turns_and_the_first_changes(monkeypatch):
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 0)
    order = []

    def sample(name, seconds):
        return lambda iterations: order.append(name) or {"forward": seconds * iterations}

    measured = timing.interleave({"a": sample("a", 1.0), "b": sample("b", 2.0)}, repeats=3, warmup=1)
    assert measured == {"a": {"forward": [1.0] * 3}, "b": {"forward": [2.0] * 3}}
    assert order == list("aabb" + "abbaab")


@pytest.mark.parametrize(("load", "noisy"), [(None, False), (0.3, False), (0.31, True)])
def test_a_busy_machine_is_noisy(load, noisy):
    assert is_noisy(load) is noisy
    facts = {**environment.collect(30, torch.device("cpu")), "load_average": load, "noisy": noisy}
    assert ("NOISY" in environment.opening(facts)) is noisy
    assert "TRIAL" not in environment.opening(facts)


@pytest.mark.parametrize(
    ("benchmark", "rows"),
    [
        ("cell", ["plain PyTorch", "C++ composition of ATen calls", "torch.compile (Inductor)", "fourfold"]),
        (
            "mlp",
            [
                "nn.Sequential",
                "plain PyTorch, functional",
                "C++ composition of ATen calls",
                "torch.compile (Inductor)",
                "fourfold, functional",
                "fourfold",
            ],
        ),
    ],
)
def test_bench_from_end_to_end(benchmark, rows, capsys, tmp_path):
    file = tmp_path / "result.json"
    command = [benchmark, "--quick", "--repeats", 2, "--skip", "aten", "inductor", "--batch-size", 3]
    code, output = run(capsys, *command, "--json", file)
    assert code == 0
    assert "TRIAL: fewer than 30 repeats" in output
    assert "torch.compile (Inductor)       left out by --skip or --quick" in output
    contents = json.loads(file.read_text())
    assert contents["sizes"]["batch_size"] == 3
    (result,) = contents["results"]
    assert result["threads"] == 1
    assert [row["name"] for row in result["rows"]] == rows
    for row in result["rows"]:
        if row["reason"] is None:
            assert set(row["phases"]) == set(problem.PHASES)
            assert all(phase["repeats"] == 2 and phase["minimum"] > 0 for phase in row["phases"].values())
            assert row["relative_error"] < result["tolerance"]
    assert result["rows"][0]["phases"]["backward"]["ratio"]["median"] == 1


def wrong_cell():
    contenders = cell.contenders(cell.problem(CELL_SIZES), {"aten", "inductor"})
    right = contenders[0].build()

    def call(x, h, c):
        h, c = right.call(x, h, c)
        return h * 1.001, c

    return [*contenders[:1], problem.Contender("fourfold", lambda: problem.Candidate(call, right.parameters))]


def test_a_row_that_computes_something_else_is_not_timed():
    task = cell.problem(CELL_SIZES)
    plain, ours = comparison.compare(task, wrong_cell(), repeats=1)
    assert not plain.wrong and plain.samples
    assert ours.wrong and not ours.samples
    assert ours.reason.startswith("WRONG: relative error 1.0e-03")
    assert tables.losses(tables.Comparison(task, 1, [plain, ours])) == [f"fourfold was not measured: {ours.reason}"]


def test_wrong_numbers_are_exit_code_1(capsys, monkeypatch):
    task, wrong = cell.problem(CELL_SIZES), wrong_cell()
    monkeypatch.setattr(cell, "problems", lambda request: [task])
    monkeypatch.setattr(cell, "contenders", lambda task, skip: wrong)
    code, output = run(capsys, "cell", "--quick", "--repeats", 1)
    assert code == 1
    assert "fourfold was not measured: WRONG" in output


def comparison_of(**milliseconds):
    rows = [
        comparison.Row(name, error=1e-7, first_call=0.1, samples={phase: [1e-3 * time] for phase in problem.PHASES})
        for name, time in milliseconds.items()
    ]
    missing = comparison.Row("absent", reason="no compiler")
    return tables.Comparison(cell.problem(CELL_SIZES), 1, [rows[0], missing, *rows[1:]])


def test_losses_are_in_plain_sight():
    text = tables.plain(comparison_of(plain=4.0, rival=1.0, fourfold=2.0))
    assert "fourfold loses, backward: 0.50× of rival." in text
    assert "absent" in text and "no compiler" in text
    assert "loses" not in tables.plain(comparison_of(plain=4.0, fourfold=2.0))
    assert "2.00×" in tables.plain(comparison_of(plain=4.0, fourfold=2.0))


def test_the_extension_without_a_compiler_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(aten.Unavailable, match="can't be built: .*(not found|[Nn]inja|No such file)"):
        aten.extension.__wrapped__()


def test_inductor_that_fails_says_why(monkeypatch):
    def no_compiler(module):
        raise RuntimeError("\nInvalidCxxCompiler: No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(torch, "compile", no_compiler)
    task = cell.problem(CELL_SIZES)
    contenders = cell.contenders(task, {"aten"})
    row, candidate = comparison.prepare(task, contenders[2], task.exact())
    assert candidate is None
    assert row.reason == "can't be compiled: RuntimeError: InvalidCxxCompiler: No working C++ compiler found"


@pytest.mark.parametrize(("benchmark", "sizes"), [(cell, CELL_SIZES), (mlp, MLP_SIZES)])
def test_the_extension_computes_the_definition(benchmark, sizes):
    try:
        aten.extension()
    except aten.Unavailable as unavailable:
        missing(str(unavailable))
    task = benchmark.problem(sizes)
    (contender,) = (c for c in benchmark.contenders(task, {"inductor"}) if c.name.startswith("C++"))
    row, candidate = comparison.prepare(task, contender, task.exact())
    assert candidate is not None, row.reason


def test_plain_mlp_has_the_tutorials_parameters():
    module = aten.PlainMLP(5, 15, 1)
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    assert shapes == {
        "hidden_weights": (15, 5),
        "hidden_bias": (1, 15),
        "output_weights": (1, 15),
        "output_bias": (1, 1),
    }
    assert {name: tuple(value.shape) for name, value in fourfold.nn.MLP(5, 15, 1).state_dict().items()} == shapes
