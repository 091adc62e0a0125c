"""The CPU's benchmarks: that every row computes what it says, and how targets, tables and files come about."""

import dataclasses
import json
import math
import sys

import pytest
import torch

import readme_tables
from benchmarks import (
    cell,
    comparison,
    compiling,
    layers,
    mlp,
    onnx_runtime,
    records,
    rl,
    run,
    sequence,
    stream,
    tables,
    targets,
)
from benchmarks.__main__ import main
from benchmarks.aten import Unavailable
from benchmarks.precision import FLOAT32, PRECISIONS
from benchmarks.problem import BOTH, NO_GRAD, OURS, SAVED, Target, bytes_kept
from benchmarks.request import Request
from benchmarks.targets import Outcome

SIZES = {"batch_size": 3, "input_size": 4, "hidden_size": 16, "time": 12}
SKIP = {"aten", "inductor"}
KINDS = list(layers.KINDS.values())


# torch's nn.LSTM is oneDNN's, which has none in bfloat16 for CPUs without AVX-512: the row says so.
WITHOUT_BFLOAT16 = "failed: RuntimeError: could not create a primitive descriptor for the LSTM"


def check(module, problem):
    """Every row is right, or was left out; gives the names of those that were checked."""
    checked = []
    for contender in module.contenders(problem, SKIP):
        own = contender.problem or problem
        row, candidate = comparison.prepare(own, contender, own.exact())
        allowed = ("left out", "not installed") + (WITHOUT_BFLOAT16,) * (
            not row.own and problem.precision.autocast is not None
        )
        assert candidate is not None or row.reason.startswith(allowed), (row.name, row.reason)
        checked += [row.name] * (candidate is not None)
    return checked


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("precision", ["float32", "autocast"])
def test_every_row_of_a_sequence_is_right(kind, precision):
    problem = sequence.problem(SIZES, PRECISIONS[precision], kind=kind)
    names = check(sequence, problem)
    assert names[0] == sequence.PLAIN and names[-1] == OURS
    if kind.torch_name == "GRU" or precision == "float32" or torch.cpu._is_avx512_supported():
        assert (sequence.LSTM if kind is layers.LLTM else f"nn.{kind.name}") in names


def test_autocast_is_entered_by_each_call():
    problem = sequence.problem(SIZES, PRECISIONS["autocast"], kind=layers.LSTM)
    assert {tensor.dtype for tensor in (*problem.inputs, *problem.parameters)} == {torch.float32}
    seen = []

    def call(*inputs):
        seen.append(torch.is_autocast_enabled("cpu"))
        return inputs

    problem.prepared(dataclasses.replace(layers.ours(layers.LSTM, 4, 16), call=call)).call(*problem.inputs)
    assert seen == [True] and not torch.is_autocast_enabled("cpu")
    assert problem.rounding == pytest.approx(4 * 2**-8 * math.sqrt(12))


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_packed_lengths_are_half_the_longest_in_the_mean(kind):
    sizes = {**SIZES, "batch_size": 12}
    problem = sequence.packed_problem(sizes, FLOAT32, kind)
    assert problem.batch_sizes.tolist() == list(range(12, 0, -1))
    assert problem.inputs[0].shape == (78, 4) and 78 == 12 * 12 * (1 / 2 + 1 / 24)
    assert check(sequence, problem) == [sequence.PLAIN, f"nn.{kind.name}", OURS]


@pytest.mark.parametrize("time", [1, 3])
@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_every_row_of_some_steps_is_right(kind, time):
    problem = stream.problem(kind, {"batch_size": 2, "input_size": 4, "hidden_size": 16, "time": time})
    names = check(stream, problem)
    assert names[-2:] == [OURS, stream.FROZEN] and (f"nn.{kind.torch_name}Cell" in names) == (time == 1)


def test_a_frozen_row_is_frozen_with_the_problems_weights():
    problem = stream.problem(layers.LSTM, {"batch_size": 1, "input_size": 4, "hidden_size": 16, "time": 1})
    assert {target.rival for target in problem.targets if target.row == stream.FROZEN} == {"nn.LSTM", OURS}
    row, candidate = comparison.prepare(problem, stream.contenders(problem, ())[-1], problem.exact())
    assert not row.wrong
    with torch.no_grad():
        candidate.parameters[0].zero_()
    with pytest.raises(RuntimeError, match="freeze"), torch.no_grad():
        candidate.call(*problem.inputs)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_every_row_of_a_rollout_is_right(kind):
    problem = rl.problem(kind, {**SIZES, "time": 40})
    assert 0 < problem.reset.sum() < problem.reset.numel()
    assert len(check(rl, problem)) == 2
    forgetful = comparison.Contender(OURS, lambda: layers.ours(kind, 4, 16))
    row, candidate = comparison.prepare(problem, forgetful, problem.exact())
    assert candidate is None and row.wrong  # without restarts it is another result, and is not timed


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_row_of_a_perceptron_is_right(activation):
    problem = mlp.problem(dict(zip(mlp.NAMES, (4, 3, 6, 2), strict=True)), activation=activation)
    names = check(mlp, problem)
    assert names[:2] == [mlp.SEQUENTIAL, mlp.PLAIN] and names[-1] == OURS
    assert (mlp.FUNCTIONAL in names) is (activation == "relu")


def test_what_is_kept_for_the_backward_is_counted_once():
    problem = mlp.problem(dict(zip(mlp.NAMES, (8, 3, 6, 2), strict=True)))
    assert bytes_kept(problem, mlp.sequential(problem)) == 8 * 6 * 4  # relu's result, which the last layer keeps too
    row, _ = comparison.prepare(problem, comparison.Contender("x", lambda: mlp.sequential(problem)), problem.exact())
    assert row.kept == 192


def test_onnx_runtime_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Unavailable, match="not installed: onnxruntime; pip install onnx onnxruntime"):
        onnx_runtime.layer(sequence.problem(SIZES, FLOAT32, kind=layers.LSTM))


def test_sizes_kinds_and_precisions_of_a_sequence_on_the_cpu():
    found = [
        (p.kind, p.precision.name, p.threads, p.batch_sizes is None) for p in sequence.problems(Request("sequence"))
    ]
    grid = [line for line in found if line[2:] == (None, True)]
    assert len(grid) == 3 * 4 * 2 and {line[1] for line in grid} == {"float32", "autocast"}
    assert [line[0] for line in found if not line[3]] == ["LSTM", "GRU"]
    assert len([line for line in found if line[2] == (1,)]) == 3 * len(sequence.SWEEP)
    quick = sequence.problems(Request("sequence", quick=True, kinds=["GRU"]))
    assert [(p.kind, p.batch_sizes is None) for p in quick] == [("GRU", True), ("GRU", False)]


def test_the_targets_of_sequences_are_performances():
    def limits(kind, size, precision="float32"):
        found = sequence.cpu_targets(layers.KINDS[kind], sequence.named(size), PRECISIONS[precision])
        return [(t.phase, t.limit, t.rival, t.threads) for t in found if t.work != sequence.NO_LOSS]

    plain, lstm = sequence.PLAIN, sequence.LSTM
    assert limits("LLTM", (16, 32, 128, 100)) == [
        (NO_GRAD, 3.2, plain, 1),
        (BOTH, 3.3, plain, 1),
        (NO_GRAD, 1.7, lstm, 1),
        (BOTH, 1.4, lstm, 1),
    ]
    assert limits("LLTM", (1, 512, 512, 100)) == [(NO_GRAD, 5.0, plain, 2), (NO_GRAD, 2.2, lstm, 2)]
    assert limits("LLTM", (16, 512, 512, 100), "autocast") == [(NO_GRAD, 2.5, lstm, 2)]
    assert limits("GRU", (1, 512, 512, 100)) == [(NO_GRAD, 1.6, "nn.GRU", 2), (BOTH, 1.6, "nn.GRU", 2)]
    assert limits("LSTM", (16, 512, 512, 100)) == limits("LSTM", (1, 32, 128, 100), "autocast") == []
    every = sequence.cpu_targets(layers.LSTM, sequence.named((2, 3, 4, 5)), FLOAT32)
    assert [(t.phase, t.limit, t.threads) for t in every] == [(NO_GRAD, 1.0, None), (BOTH, 1.0, None)]


def table_of(problem, threads=1, kept=None, **microseconds):
    names = {"plain": cell.PLAIN, "lstm": "nn.LSTM", "functional": mlp.FUNCTIONAL, "sequential": mlp.SEQUENTIAL}
    rows = [
        comparison.Row(
            names.get(name, OURS),
            error=0.0,
            tolerance=1.0,
            kept=(kept or {}).get(name),
            samples={phase: [1e-6 * value] * 3 for phase in problem.phases},
        )
        for name, value in microseconds.items()
    ]
    return tables.Comparison(problem, threads, rows)


def test_targets_come_of_rows_at_their_number_of_threads():
    aims = (
        Target(NO_GRAD, 2.0, "nn.LSTM", 1, "work"),
        Target(BOTH, 4.0, "nn.LSTM", None, "work"),
        Target(BOTH, 1.0, "absent", None, "work"),
    )
    problem = dataclasses.replace(sequence.problem(SIZES, FLOAT32), targets=aims, baseline="")
    one = targets.outcomes(table_of(problem, 1, lstm=90, ours=30))
    two = targets.outcomes(table_of(problem, 2, lstm=60, ours=30))
    assert [(o.work, o.measured, o.met) for o in one] == [
        (f"work, {NO_GRAD}", pytest.approx(3), True),
        (f"work, {BOTH}", pytest.approx(3), False),
        (f"work, {BOTH}", None, None),
    ]
    assert one[1].missed_by == pytest.approx(0.25) and one[0].missed_by is None
    assert [o.work for o in two] == [f"work, {BOTH}"] * 2
    first, second, third = targets.lines([*one, *two])
    assert (first.aim, first.measured, first.verdict) == ("≥ 2.00×", "3.00×", "reached")
    assert second.worst is two[0] and second.measured == "2.00×"
    assert second.verdict == f"MISSED by 50 %; 0 of 2 tables reach it; furthest: {two[0].where}"
    assert third.verdict == "not measured"
    text = targets.summary([*one, *two])
    assert text.startswith("Targets: 1 of 3 reached\n")
    assert "≥ 4.00×     2.00×  MISSED by 50 %" in text


def test_a_largest_value_is_missed_from_above():
    slow = Outcome("slow-down", "itself", "here", 3.0, 4.5, at_most=True)
    assert slow.met is False and slow.missed_by == pytest.approx(0.5)
    (line,) = targets.lines([slow, dataclasses.replace(slow, measured=1.0)])
    assert (line.aim, line.measured) == ("≤ 3.00×", "4.50×")
    assert line.verdict == "MISSED by 50 %; 1 of 2 tables reach it; furthest: here"


def test_targets_of_another_row_and_of_memory():
    problem = mlp.problem(dict(zip(mlp.NAMES, mlp.SIZES[0], strict=True)))
    aims = (
        Target(NO_GRAD, 1.3, mlp.SEQUENTIAL, 1, "w", mlp.FUNCTIONAL),
        Target(SAVED, 2.0, mlp.SEQUENTIAL, 1, "w"),
    )
    problem = dataclasses.replace(problem, targets=aims)
    table = table_of(
        problem, sequential=30, functional=20, ours=60, kept={"sequential": 1000, "functional": 800, "ours": 800}
    )
    assert [o.measured for o in targets.outcomes(table)] == [pytest.approx(1.5), pytest.approx(1.25)]
    lines = tables.plain(table).splitlines()
    assert [line.split("  ")[1] for line in lines if "target ≥ 1.30×" in line] == [mlp.FUNCTIONAL]
    assert any(line.startswith("Kept for the backward") and "missed at 1.25×" in line for line in lines)


def test_who_loses_is_in_plain_sight():
    problem = dataclasses.replace(sequence.problem(SIZES, FLOAT32), targets=(), baseline="")
    text = tables.plain(table_of(problem, plain=90, lstm=20, ours=30))
    assert f"fourfold loses, {NO_GRAD}: 0.67× of nn.LSTM." in text
    assert "loses" not in tables.plain(table_of(problem, plain=90, functional=20, ours=10))


def test_json_is_a_row_a_line_and_no_longer_than_a_measurement_is_exact():
    problem = dataclasses.replace(sequence.problem(SIZES, FLOAT32, kind=layers.GRU), targets=(), baseline="")
    contents = {"benchmark": "x", "results": [records.as_dictionary(table_of(problem, lstm=100 / 3, ours=10))]}
    text = records.text(contents)
    assert json.loads(text) == records.rounded(contents)
    (row,) = [line for line in text.splitlines() if '"name": "nn.LSTM"' in line]
    assert json.loads(row.strip().rstrip(","))["phases"][NO_GRAD]["median"] == 3.333e-05
    result = json.loads(text)["results"][0]
    assert result["kind"] == "GRU" and result["sizes"] == SIZES and result["threads"] == 1
    assert result["rows"][1]["phases"][BOTH]["ratio"]["median"] == 3.333


def test_all_ends_in_a_summary_of_targets(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "SUITES", ("cell", "compiling"))
    monkeypatch.setattr(compiling, "measure", lambda way, length: 1.0 + (length == 4096))
    file = tmp_path / "cpu.json"
    assert main(["all", "--quick", "--repeats", "1", "--json", str(file)]) == 0
    output, contents = capsys.readouterr().out, json.loads(file.read_text())
    assert contents["complete"] and contents["benchmark"] == "all"
    assert {"torch", "processor", "load_average", "commit", "noisy"} <= set(contents["environment"])
    assert [result["suite"] for result in contents["results"]] == ["cell", "compiling"]
    assert "torch.compile (Inductor)       left out by --skip or --quick" in output
    compile_time = contents["targets"][-1]
    assert compile_time["verdict"] == "MISSED by 60 %" and compile_time["measured"] == 2.0
    assert "compile time, T=4096 over T=16" in output.split("Targets: ")[1]


def test_readmes_table_of_targets(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run, "SUITES", ("compiling",))
    monkeypatch.setattr(compiling, "measure", lambda way, length: 1.0 + (length == 4096))
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    text = "before\n<!-- targets of docs/benchmarks/cpu.json -->\nold figures\n<!-- end -->\nafter\n"
    empty = "before\n<!-- targets of docs/benchmarks/cpu.json -->\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(text) == readme_tables.with_tables(empty) == empty
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    file = tmp_path / "docs" / "benchmarks" / "cpu.json"
    assert main(["all", "--quick", "--json", str(file)]) == 0
    capsys.readouterr()
    filled = readme_tables.with_tables(text)
    assert "| compile time, T=4096 over T=16 |  | 2.00× | ≤ 1.25× | **MISSED by 60 %** |" in filled
    assert "0 of 1 targets reached" in filled and "Too few samples to quote." in filled and "old figures" not in filled
    assert readme_tables.with_tables(filled) == filled
