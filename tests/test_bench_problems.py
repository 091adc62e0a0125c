"""What the benchmarks of sequences and elementwise operators compare, in which precision, and how they are judged."""

import dataclasses
import json
import math

import pytest
import torch

import readme_tables
from benchmarks import comparison, elementwise, records, sequence, tables
from benchmarks.__main__ import main
from benchmarks.precision import FLOAT32, ON_GPU, PRECISIONS
from benchmarks.problem import BOTH, COLD, NO_GRAD, OURS, Candidate, Contender, Target, largest_norm
from benchmarks.request import Request
from fourfold import reference

SEQUENCE_SIZES = {"batch_size": 3, "input_size": 4, "hidden_size": 16, "time": 12}
TARGET = {"phase": NO_GRAD, "limit": 2.5, "rival": "", "measured": 2.4}


def test_precisions():
    assert {name: p.unit for name, p in PRECISIONS.items()} == {
        "float32": 2**-24,
        "tf32": 2**-11,
        "bfloat16": 2**-8,
        "float16": 2**-11,
        "autocast": 2**-8,
    }
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    for precision in PRECISIONS.values():
        with precision.allowed():
            assert matmul.allow_tf32 == cudnn.allow_tf32 == (precision.name == "tf32")
            assert (matmul.fp32_precision == "tf32") == (precision.name == "tf32")  # what the operators look at
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_every_row_of_a_sequence_is_right(name):
    problem = sequence.problem(SEQUENCE_SIZES, PRECISIONS[name])
    exact = problem.exact()
    for contender in sequence.contenders(problem, ()):
        own = contender.problem or problem
        row, candidate = comparison.prepare(
            own, contender, exact if own.definition is problem.definition else own.exact()
        )
        assert candidate is not None, row.reason


def test_a_sequence_row_that_loses_one_unit_is_wrong():
    problem = sequence.problem({**SEQUENCE_SIZES, "hidden_size": 64}, PRECISIONS["bfloat16"])
    ours = sequence.contenders(problem, ())[-1]
    right = ours.build()

    def call(x, h, c):
        output, h, c = right.call(x, h, c)
        return output, h, torch.cat([c[:, :-1], torch.zeros_like(c[:, -1:])], dim=1)

    wrong = dataclasses.replace(ours, build=lambda: Candidate(call, right.parameters))
    row, candidate = comparison.prepare(ours.problem, wrong, problem.exact())
    assert candidate is None and row.wrong


def test_nan_is_never_close():
    exact = [torch.ones(3, dtype=torch.float64)]
    assert largest_norm([torch.tensor([1.0, math.nan, 1.0])], exact) == math.inf
    assert largest_norm([torch.tensor([1.0, 1.0, 1.0])], exact) == 0
    assert largest_norm([torch.tensor([1.0, 1.0, 2.0])], exact) == pytest.approx(3**-0.5)


def test_the_lstms_definition_is_nn_lstm():
    problem = sequence.lstm_problem(sequence.problem(SEQUENCE_SIZES, FLOAT32))
    lstm = torch.nn.LSTM(4, 16)
    with torch.no_grad():
        for own, given in zip(lstm.parameters(), problem.parameters, strict=True):
            own.copy_(given)
        x, h, c = problem.inputs
        output, state = lstm(x, (h.unsqueeze(0), c.unsqueeze(0)))
        for result, wanted in zip(
            problem.definition(*problem.inputs, *problem.parameters), (output, *state), strict=True
        ):
            torch.testing.assert_close(result, wanted.view_as(result))


def test_compiling_a_long_loop_is_left_out(monkeypatch):
    monkeypatch.setattr(sequence.Problem, "device", torch.device("cuda"))
    long = sequence.contenders(sequence.problem({**SEQUENCE_SIZES, "time": 129}, FLOAT32), ())[1]
    assert long.name == "torch.compile (Inductor)"
    with pytest.raises(comparison.Unavailable, match="left out above 128 steps"):
        long.build()


def test_sizes_and_precisions_of_a_sequence():
    gpu = Request("sequence", device=torch.device("cuda"))
    assert [s["time"] for s in sequence.chosen_sizes(gpu)] == [1024, 1024, 256, 1024, 100]
    assert [s["hidden_size"] for s in sequence.chosen_sizes(dataclasses.replace(gpu, quick=True))] == [768]
    (chosen,) = sequence.chosen_sizes(dataclasses.replace(gpu, sizes={"time": 7}))
    assert chosen == {"batch_size": 16, "input_size": 768, "hidden_size": 768, "time": 7}
    assert [p.name for p in gpu.precisions_or(ON_GPU)] == ["float32", "tf32", "bfloat16", "float16"]
    assert Request("sequence").precisions_or(ON_GPU) == [FLOAT32]
    assert {p.kind for p in sequence.problems(dataclasses.replace(gpu, device=torch.device("cpu"), quick=True))} == {
        "LLTM",
        "LSTM",
        "GRU",
    }


def test_the_targets_of_the_large_sequence_are_on_a_gpu_only(monkeypatch):
    sizes = dict(zip(sequence.NAMES, sequence.SIZES["cuda"][0], strict=True))
    monkeypatch.setattr(sequence.torch, "randn", lambda shape, generator: torch.empty(1))
    monkeypatch.setattr(sequence, "draw_parameters", lambda kind, sizes, generator: ())
    assert sequence.problem(sizes, PRECISIONS["bfloat16"], "cpu").targets == ()
    limits = [(t.phase, t.limit, t.rival) for t in sequence.problem(sizes, PRECISIONS["bfloat16"], "meta").targets]
    assert limits == []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args: self)
    on_gpu = sequence.problem(sizes, PRECISIONS["bfloat16"], "cuda")
    assert [(t.phase, t.limit, t.rival) for t in on_gpu.targets] == [
        (NO_GRAD, 2.5, ""),
        (BOTH, 8.0, ""),
        (NO_GRAD, 1.0, sequence.LSTM),
        (BOTH, 1.0, sequence.LSTM),
    ]
    assert on_gpu.baseline == "plain PyTorch, CUDA graph"
    assert sequence.problem(sizes, FLOAT32, "cuda").targets == ()


def rows_of(problem, **seconds):
    names = {"plain": sequence.PLAIN, "lstm": sequence.LSTM, "ours": OURS}
    return [
        comparison.Row(names[name], error=0.0, tolerance=1.0, samples={phase: [value] for phase in problem.phases})
        for name, value in seconds.items()
    ]


def test_a_target_stands_beside_the_row_with_met_or_missed():
    targets = (
        Target(NO_GRAD, 2.5),
        Target(BOTH, 2.0),
        Target(BOTH, 1.0, sequence.LSTM),
        Target(NO_GRAD, 1.0, "absent"),
    )
    problem = dataclasses.replace(sequence.problem(SEQUENCE_SIZES, FLOAT32), targets=targets)
    table = tables.Comparison(problem, None, rows_of(problem, plain=60e-6, lstm=20e-6, ours=28.8e-6))
    lines = [line for line in tables.plain(table).splitlines() if line.strip().startswith(OURS) and "target" in line]
    assert lines[0].endswith("2.40     2.08×  target ≤ 2.5 µs/step: met  target ≥ 1.00× absent: not measured")
    assert lines[1].endswith(
        f"2.40     2.08×  target ≤ 2 µs/step: missed  target ≥ 1.00× {sequence.LSTM}: missed at 0.69×"
    )
    judged = records.as_dictionary(table)["targets"]
    assert [verdict["met"] for verdict in judged] == [True, False, False, None]
    assert judged[0]["measured"] == pytest.approx(2.4)
    assert json.loads(json.dumps(judged)) == judged


def test_ratios_are_to_the_named_row_where_it_was_measured():
    problem = dataclasses.replace(sequence.problem(SEQUENCE_SIZES, FLOAT32), baseline=sequence.LSTM)
    table = tables.Comparison(problem, None, rows_of(problem, plain=60e-6, lstm=20e-6, ours=10e-6))
    assert f"Ratios are to {sequence.LSTM}." in tables.plain(table)
    assert records.as_dictionary(table)["rows"][2]["phases"][BOTH]["ratio"]["median"] == pytest.approx(2)
    table.rows[1].samples = {}
    assert table.baseline.name == sequence.PLAIN


@pytest.mark.parametrize("op", ["softshrink", "axpby"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_every_elementwise_row_is_right_and_moves_as_many_bytes(op, name):
    problem = elementwise.problem(op, 1000, PRECISIONS[name])
    moved = (len(problem.inputs) + 1) * 1000 * PRECISIONS[name].dtype.itemsize
    assert problem.rate.of(1.0) == moved / 1e9
    for contender in elementwise.contenders(problem, ()):
        own = contender.problem or problem
        row, candidate = comparison.prepare(own, contender, own.exact())
        assert candidate is not None, row.reason
        if contender.name == elementwise.COPY:
            assert 2 * own.inputs[0].nbytes == moved


@pytest.mark.parametrize(
    "problem",
    [*map(elementwise.call_problem, elementwise.TENSORS), *map(elementwise.view_problem, elementwise.LAYOUTS)],
    ids=lambda problem: problem.title,
)
def test_every_row_of_few_elements_and_of_views_is_right(problem):
    assert problem.trains == (problem.sizes["elements"] == elementwise.FEW)
    assert problem.trains or not all(x.is_contiguous() and x.shape == problem.inputs[0].shape for x in problem.inputs)
    rows = elementwise.contenders(problem, ())
    assert [row.name for row in rows] == [elementwise.ONE_PASS[problem.kind], OURS]
    assert {(target.phase, target.rival) for target in problem.targets} == {(p, rows[0].name) for p in problem.phases}
    exact = problem.exact()
    assert len(exact) == (1 + len(problem.parameters) if problem.trains else 1)
    for contender in rows:
        row, candidate = comparison.prepare(problem, contender, exact)
        assert candidate is not None, row.reason


def test_an_elementwise_row_that_is_off_is_wrong():
    problem = elementwise.problem("axpby", 100, FLOAT32)
    off = Contender(OURS, lambda: Candidate(lambda x, y: (reference.axpby(x, y) * (1 + 1e-5),), ()))
    assert comparison.prepare(problem, off, problem.exact())[0].wrong


def test_cold_rows_are_the_gpus(monkeypatch):
    monkeypatch.setattr(elementwise, "draw", lambda shape, precision, device, seed: torch.ones(4))
    large, small = (elementwise.problem("axpby", count, FLOAT32, "cuda") for count in (10**7, 10**6))
    assert large.phases == (COLD, NO_GRAD) and large.targets == (Target(COLD, 0.95, elementwise.COPY),)
    assert small.targets == ()
    assert elementwise.problem("axpby", 10**7, FLOAT32).phases == (NO_GRAD,)


@pytest.mark.parametrize("benchmark", ["sequence", "elementwise"])
def test_bench_from_end_to_end_on_the_cpu(benchmark, capsys, tmp_path):
    file = tmp_path / "result.json"
    small = ["--hidden-size", "8", "--time", "3", "--layer", "LSTM", "--dtype", "float32"]
    size = ["--elements", "1000"] if benchmark == "elementwise" else small
    assert main([benchmark, *size, "--repeats", "2", "--threads", "1", "2", "--json", str(file)]) == 0
    output, contents = capsys.readouterr().out, json.loads(file.read_text())
    assert contents["complete"] and contents["environment"]["device"] == "cpu"
    assert [result["threads"] for result in contents["results"]] == [1, 2] * (1 + (benchmark == "elementwise"))
    assert contents["results"][0]["rate"] in output
    for result in contents["results"]:
        assert result["rows"][-1]["name"] == OURS
        measured = [row for row in result["rows"] if "not installed" not in (row["reason"] or "")]
        assert all(row["phases"] and not row["wrong"] for row in measured)


def test_readmes_tables_of_a_gpu_are_of_what_was_measured(monkeypatch, tmp_path, capsys):
    text = "before\n<!-- docs/benchmarks/gpu -->\nold figures\n<!-- end -->\nafter\n"
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    empty = readme_tables.with_tables(text)
    assert empty == "before\n<!-- docs/benchmarks/gpu -->\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(empty) == empty

    folder = tmp_path / "docs" / "benchmarks" / "gpu"
    folder.mkdir(parents=True)
    (folder / "proof-x.json").write_text("{}")
    file = folder / "x-sequence.json"
    small = ["--hidden-size", "8", "--time", "3", "--layer", "LLTM", "--dtype", "float32", "--threads", "1"]
    assert main(["sequence", *small, "--repeats", "2", "--json", str(file)]) == 0
    capsys.readouterr()
    measured = json.loads(file.read_text())
    card = {"name": "NVIDIA X", "driver": None, "cuda": "13.0", "cudnn": 91000}
    measured["environment"] |= {"gpu": card, "trial": False}
    ours = measured["results"][0]["rows"][-1]
    measured["results"] = measured["results"][:1]
    measured["results"][0] |= {
        "threads": None,
        "targets": [dict(TARGET, met=True), dict(TARGET, measured=None, met=None)],
    }
    measured["results"][0]["rows"].append({"name": "fourfold, CUDA graph", "reason": "can't be captured", "phases": {}})
    del ours["phases"][BOTH]
    file.write_text(json.dumps(measured))
    filled = readme_tables.with_tables(text)
    figures = ours["phases"][NO_GRAD]
    shown = f"{1e6 * figures['median']:.1f} ({figures['ratio']['median']:.2f}×; {figures['rate']:.2f})"
    assert f"| **fourfold** | {shown} | - |" in filled
    assert "| **fourfold, CUDA graph** | can't be captured | |" in filled
    assert "Target, forward, no grad: at most 2.5: met (2.40)." in filled
    assert "Target, forward, no grad: at most 2.5: not measured." in filled
    assert "samples in turns; NVIDIA X, driver unknown, CUDA 13.0, cuDNN 91000; torch" in filled
    assert filled.count("LLTM, batch 16") == 1 and "old figures" not in filled
