"""The command line: info, demo and bench, at sizes that take seconds."""

import json
import math
import subprocess
import sys

import pytest
import torch

import fourfold
from fourfold import bench, demo, reference
from fourfold.__main__ import main
from fourfold.bench import aten, cell, comparison, environment, mlp, problem, tables, timing
from fourfold.demo import corpus, training
from machine import missing, needs

CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}
MLP_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 6, "output_size": 2}
TINY = {"--steps": 24, "--batch-size": 2, "--sequence-length": 8, "--hidden-size": 8, "--embedding-size": 4}
TINY_DEMO = ["demo", "--threads", "1", *(str(word) for option in TINY.items() for word in option)]


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().out


def test_the_module_is_a_command():
    done = subprocess.run([sys.executable, "-m", "fourfold", "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("info", "demo", "bench", "examples:"))


@pytest.mark.parametrize(
    "command",
    ["", "info", "demo", "bench", *(f"bench {name}" for name in (*bench.SUITES, "all"))],
)
def test_every_help_text_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:\n  python -m fourfold" in text
    assert "%(" not in text


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fourfold {fourfold.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("prove", "invalid choice: 'prove'"),
        ("bench", "the following arguments are required: BENCHMARK"),
        ("demo --steps 0", "argument --steps: expected a positive integer, but got '0'"),
        ("demo --steps 1", "expected --steps to be at least 2"),
        ("demo --lr nan", "argument --lr: expected a positive number, but got 'nan'"),
        ("demo --seed -1", "argument --seed: expected an integer from 0 on, but got '-1'"),
        ("demo --device abacus", "expected --device to be cpu, cuda, cuda:1 or mps, but got 'abacus'"),
        ("demo --device meta", "expected --device to be one that torch can use here, but got 'meta'"),
        ("demo --sequence-length 1000000", "expected --sequence-length below the text's 1000000, but got 1000000"),
        ("bench cell --repeats two", "argument --repeats: expected a positive integer, but got 'two'"),
        ("bench mlp --skip fourfold", "argument --skip: invalid choice: 'fourfold'"),
        ("bench mlp --json nowhere/to/be.json", "argument --json: expected a file in a directory that exists"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_exit_code_2(arguments, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    output, error = capsys.readouterr()
    assert (code, output) == (2, "")
    assert complaint in error
    assert error.startswith("python -m fourfold") and error.count("\n") == 1


def test_out_that_is_a_file_is_refused_before_training(capsys, tmp_path):
    (tmp_path / "taken").touch()
    assert main([*TINY_DEMO, "--out", str(tmp_path / "taken")]) == 2
    assert "expected --out to be a directory" in capsys.readouterr().err


def test_info_as_json(capsys):
    code, output = run(capsys, "info", "--json")
    facts = json.loads(output)
    assert code == 0
    assert facts["fourfold"] == fourfold.__version__
    assert facts["torch"] == torch.__version__
    assert facts["cpu_level"] == fourfold.cpu_capability()
    assert list(facts["operators"]) == list(fourfold.operator_names())
    assert all("CPU" in devices for devices in facts["operators"].values())
    assert facts["backends"]["cpu"]["usable"]


def test_info_as_text_says_what_json_says(capsys):
    facts = json.loads(run(capsys, "info", "--json")[1])
    code, output = run(capsys, "info")
    assert code == 0
    lines = [line.split() for line in output.splitlines()]
    assert ["torch", torch.__version__] in lines
    for name, devices in facts["operators"].items():
        assert [name, *("yes" if key in devices else "-" for key in ("CPU", "CUDA", "MPS"))] in lines
    for state in facts["backends"].values():
        assert state["reason"] in output


def test_the_corpus_is_the_same_on_every_read():
    first, second = corpus.read(50_000), corpus.read(50_000)
    assert torch.equal(first.tokens, second.tokens)
    assert first.alphabet == second.alphabet
    assert corpus.read(20_000).decode([0, 1]) != ""
    assert first.decode(first.tokens[:1000].tolist()).count("\n") > 5


def test_the_corpus_is_the_modules_in_order_of_their_names(tmp_path):
    for name, text in (("b.py", b"yz"), ("B.py", b"abc"), ("c.txt", b"no"), ("a.py", b"x")):
        (tmp_path / name).write_bytes(text)
    text = corpus.read(5, tmp_path)
    assert text.decode(text.tokens.tolist()) == "abcxy"
    assert text.encode(b"cab").tolist() == [2, 0, 1]
    tokens, targets = text.batch(7, 4, torch.Generator().manual_seed(0))
    assert tokens.T.tolist() == [text.encode(b"abcx").tolist()] * 7
    assert targets.T.tolist() == [text.encode(b"bcxy").tolist()] * 7


def test_a_text_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(corpus.UsageError, match="expected 10 characters of Python source in .*, but found 0"):
        corpus.read(10, tmp_path)


def test_demo_from_end_to_end(capsys, tmp_path):
    needs("matplotlib")
    code, output = run(capsys, *TINY_DEMO, "--out", tmp_path / "new" / "directory")
    assert code == 0
    for words in (
        "24 for each model, of 2 × 8 characters",
        "step 24 of 24",
        "Both learn the same",
        "Speed-up:",
        "│ def ",
    ):
        assert words in output
    picture = tmp_path / "new" / "directory" / "fourfold-demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"Picture: {picture}" in output


def test_demo_without_matplotlib_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "importable", lambda name: False)
    code, output = run(capsys, *TINY_DEMO, "--out", tmp_path)
    assert code == 0
    assert "pip install 'fourfold[bench]'" in output
    assert list(tmp_path.iterdir()) == []


def test_demo_writes_the_same_text_for_the_same_seed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "importable", lambda name: False)
    texts = [run(capsys, *TINY_DEMO, "--seed", seed, "--out", tmp_path)[1] for seed in (3, 3, 4)]
    written = [text[text.index("What the model") :] for text in texts]
    assert written[0] == written[1] != written[2]


def test_demo_fails_when_a_gradient_is_wrong(capsys, tmp_path, monkeypatch):
    class Wrong(reference.LLTM):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.bias_l0.register_hook(torch.zeros_like)

    monkeypatch.setattr(demo, "importable", lambda name: False)
    monkeypatch.setattr(fourfold.nn, "LLTM", Wrong)
    code, output = run(capsys, *TINY_DEMO, "--out", tmp_path)
    assert code == 1
    assert "THE LOSSES DISAGREE" in output


def test_losses_agree_within_the_tolerances_only():
    curve = [4.0 - step / 100 for step in range(100)]
    late = [loss + 0.1 * (-1) ** step * (step > 50) for step, loss in enumerate(curve)]
    assert training.agreement(curve, late).holds
    assert not training.agreement(curve, [curve[0] + 0.001, *curve[1:]]).holds
    assert not training.agreement(curve, curve[:60] + [loss + 0.12 for loss in curve[60:]]).holds
    assert not training.agreement(curve, [*curve[:-1], math.nan]).holds
    assert not training.agreement(curve[:3], [*curve[:2], math.nan]).holds


def test_both_models_take_turns_at_going_first():
    order = []
    done = list(training.in_turns(("a", "b"), 7, 3, lambda run, steps: order.append((run, steps))))
    assert done == [3, 6, 7]
    assert order == [("a", 3), ("b", 3), ("b", 3), ("a", 3), ("a", 1), ("b", 1)]


def test_the_speedup_leaves_out_the_first_block():
    ratios = training.speedup([100.0, 4.0, 9.0, 8.0], [1.0, 2.0, 3.0, 2.0])
    assert ratios.ratios == (2.0, 3.0, 4.0)
    assert ratios.median == 3.0


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


def test_threads_are_pinned_and_given_back():
    before = torch.get_num_threads()
    with timing.pinned_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("load", "noisy"), [(None, False), (0.3, False), (0.31, True)])
def test_a_busy_machine_is_noisy(load, noisy):
    assert timing.is_noisy(load) is noisy
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
    command = ["bench", benchmark, "--quick", "--repeats", 2, "--skip", "aten", "inductor", "--batch-size", 3]
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
    code, output = run(capsys, "bench", "cell", "--quick", "--repeats", 1)
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


def test_the_rich_table_says_the_same(capsys):
    needs("rich")
    from rich.console import Console

    tables.print_rich(comparison_of(plain=4.0, rival=1.0, fourfold=2.0), Console())
    output = capsys.readouterr().out
    for words in ("4000.0", "2.00×", "absent: no compiler", "fourfold loses, backward: 0.50× of rival."):
        assert words in output


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
    module = reference.MLP(5, 15, 1)
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    assert shapes == {
        "hidden_weights": (15, 5),
        "hidden_bias": (1, 15),
        "output_weights": (1, 15),
        "output_bias": (1, 1),
    }
    assert {name: tuple(value.shape) for name, value in fourfold.nn.MLP(5, 15, 1).state_dict().items()} == shapes
