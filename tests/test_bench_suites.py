"""The table of suites: its command line, its targets, the files and tables made from it."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

import fourfold
import readme_tables
from benchmarks import compiling, mlp, plots, pointwise, run, sequence, stream, suites, sweep
from benchmarks.__main__ import main
from benchmarks.measure import Row
from benchmarks.problem import FLOAT32, ON_GPU, PRECISIONS
from benchmarks.request import Request, device_with_kernels
from benchmarks.results import TARGETS, Comparison
from benchmarks.suites import LSTM, SUITES
from benchmarks.targets import BOTH, INDUCTOR, NO_GRAD, OURS, PHASES, PLAIN
from machine import ROOT, needs

ATEN = "C++ composition of ATen calls"
NAMES = [suite.name for suite in SUITES]
STATE = {"built": False, "usable": False, "reason": "not built: switched off"}


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
    """A machine on which torch sees two such GPUs, and none without a name."""
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
    ],
)
def test_a_missing_gpu_is_one_sentence(present, hip, arguments, complaint, capsys, monkeypatch):
    gpu(monkeypatch, present, cuda=STATE, hip=STATE, metal=STATE)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert complaint in error_of(capsys, arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("cell --threads 1", "expected --threads only with --device cpu, but got mps:0"),
        ("sequence --dtype tf32", "expected --dtype tf32 only with --device cuda, but got mps:0"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(arguments, complaint, capsys, monkeypatch):
    gpu(monkeypatch, "mps", metal={**STATE, "usable": True})
    assert complaint in error_of(capsys, f"{arguments} --device mps")


def test_a_request_takes_what_its_device_has(monkeypatch):
    asked = []
    gpu(monkeypatch, "mps", metal={**STATE, "usable": True})
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", lambda fraction: asked.append(fraction))
    monkeypatch.setattr(run, "run", lambda request: asked.append(request) or 0)
    assert main(["sequence", "--device", "mps", "--memory-fraction", "1.5"]) == 0
    fraction, request = asked
    assert fraction == 1.5 and request.device == torch.device("mps", 0) and request.threads == [1]
    assert [p.name for p in request.precisions_or(ON_GPU, on_cpu=())] == ["float32", "bfloat16", "float16"]
    assert sequence.chosen_sizes(request) == [sequence.named(values) for values in sequence.SIZES["mps"]]
    gpu(monkeypatch, "cuda", cuda={**STATE, "usable": True})
    assert device_with_kernels("cell", "cuda:1") == torch.device("cuda", 1)
    assert [p.name for p in dataclasses.replace(request, device=torch.device("cuda")).precisions_or(ON_GPU)] == [
        *ON_GPU
    ]
    assert Request("sequence").precisions_or(ON_GPU) == [FLOAT32]


def test_every_target_belongs_to_a_problem_or_a_report():
    """A work that no problem names would never be judged."""
    known = {work for kind in suites.ONE_PASS for work in (kind, f"{kind} of 64 elements", suites.VIEWS.format(kind))}
    known |= {f"{kind}, 10 million elements or more" for kind in suites.ONE_PASS} | {"axpby at 1M"}
    for request in (Request("stream"), Request("mlp")):
        module = {"stream": stream, "mlp": mlp}[request.suite]
        known |= {work for problem in module.problems(request) for work in problem.works}
    for kind in sequence.KINDS.values():
        for sizes in (sequence.named(size) for device in ("cpu", "cuda") for size in sequence.SIZES[device]):
            for precision in PRECISIONS.values():
                known |= {w for device in ("cpu", "cuda") for w in sequence.works(kind, sizes, precision, device)}
    known |= {suites.PACKED, suites.EVERY_FUNCTION, suites.STRIDED, suites.LARGE_NUMBERS, "LLTM cell B16 I32 H128"}
    known |= {suites.FROM_MANY.format(name) for name in pointwise.FUNCTIONS} | {"RL rollout B8 T128, resets by done"}
    named = {target.work for target in TARGETS if target.phase}
    assert named <= known, named - known
    assert set(suites.FUNCTIONS) == set(pointwise.FUNCTIONS)
    assert {target.threads for target in TARGETS} == {None, 1, 2}


def limits(*works, phases=PHASES):
    found = [t for t in TARGETS if t.work in works and t.phase in phases]
    return [(t.phase, t.limit, t.against, t.threads) for t in found if t.work != suites.EVERY_ROW]


def test_the_targets_of_sequences_are_performances():
    def of(kind, size, precision="float32", device="cpu"):
        return limits(*sequence.works(sequence.KINDS[kind], sequence.named(size), PRECISIONS[precision], device))

    assert of("LLTM", (16, 32, 128, 100)) == [
        (NO_GRAD, 3.2, PLAIN, 1),
        (BOTH, 3.3, PLAIN, 1),
        (NO_GRAD, 1.7, LSTM, 1),
        (BOTH, 1.4, LSTM, 1),
    ]
    assert of("LLTM", (1, 512, 512, 100)) == [(NO_GRAD, 5.0, PLAIN, 2), (NO_GRAD, 2.2, LSTM, 2)]
    assert of("LLTM", (16, 512, 512, 100), "autocast") == [(NO_GRAD, 2.5, LSTM, 2)]
    assert of("GRU", (1, 512, 512, 100)) == [(NO_GRAD, 1.6, "nn.GRU", 2), (BOTH, 1.6, "nn.GRU", 2)]
    assert of("LSTM", (16, 512, 512, 100)) == of("LSTM", (1, 32, 128, 100), "autocast") == []
    on_gpu = (16, 768, 768, 1024)
    times = [(NO_GRAD, 2.5, "", None), (BOTH, 8.0, "", None)]
    assert of("LLTM", on_gpu, "tf32", "cuda") == times
    assert of("LLTM", on_gpu, "bfloat16", "cuda") == [*times, (NO_GRAD, 1.0, LSTM, None), (BOTH, 1.0, LSTM, None)]
    assert (
        of("LLTM", on_gpu, "bfloat16")
        == of("LLTM", on_gpu, "float32", "cuda")
        == of("LLTM", on_gpu, "tf32", "mps")
        == []
    )


def test_the_targets_of_functions():
    def of(name, count):
        problem = pointwise.problem(pointwise.FUNCTIONS[name], count)
        return limits(*problem.works, phases=problem.phases)

    every = [(BOTH, 1.3, PLAIN, None), (NO_GRAD, 1.3, INDUCTOR, None), (BOTH, 2.5, INDUCTOR, None)]
    assert of("rms_norm", 1000) == every and of("adam", 1000) == every[1:2]
    assert of("rms_norm", 100_000) == [(NO_GRAD, 1.0, INDUCTOR, None), (BOTH, 1.0, INDUCTOR, None)]
    assert of("sin2_cos2", 100_000) == [(NO_GRAD, 1.5, INDUCTOR, None), (BOTH, 1.5, INDUCTOR, None)]
    assert of("sin2_cos2", 10_000) == []


SMALL = "--hidden-size 8 --time 3 --layer LSTM --dtype float32"


@pytest.mark.parametrize(
    ("command", "threads", "rows"),
    [
        (
            "cell --quick --batch-size 3 --skip aten inductor",
            [1],
            [PLAIN, ATEN, INDUCTOR, OURS],
        ),
        (
            "mlp --quick --batch-size 3 --skip aten inductor",
            [1],
            [
                "nn.Sequential",
                f"{PLAIN}, functional",
                "C++ composition of ATen calls",
                INDUCTOR,
                f"{OURS}, functional",
                OURS,
            ],
        ),
        (f"sequence {SMALL} --threads 1 2", [1, 2], [PLAIN, "nn.LSTM", "ONNX Runtime", OURS]),
        (
            "elementwise --elements 1000 --threads 1 2",
            [1, 2, 1, 2],
            ["copy_ of as many bytes", "F.softshrink", OURS],
        ),
        (
            "pointwise --function gelu_tanh mandelbrot --elements 1000 --skip inductor --threads 1 2",
            [1, 2, 1, 2],
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


def table_of(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run, "chosen", lambda name: ["compiling"])
    monkeypatch.setattr(compiling, "measure", lambda way, length: 1.0 + (length == 4096))
    folder = tmp_path / "docs" / "benchmarks"
    folder.mkdir(parents=True)
    assert main(["all", "--quick", "--json", str(folder / "cpu.json")]) == 0
    return capsys.readouterr().out, json.loads((folder / "cpu.json").read_text())


def test_all_ends_in_a_summary_of_targets_which_readme_shows(monkeypatch, capsys, tmp_path):
    assert run.chosen("all") == [name for name in NAMES if name not in ("sweep", "all")] and run.chosen("rl") == ["rl"]
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    empty = "before\n<!-- targets of docs/benchmarks/cpu.json -->\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(empty.replace("\n<!-- end", "\nold figures\n<!-- end")) == empty
    output, contents = table_of(monkeypatch, tmp_path, capsys)
    assert contents["complete"] and contents["benchmark"] == "all"
    assert {"torch", "processor", "load_average", "commit", "noisy"} <= set(contents["environment"])
    assert contents["targets"][-1]["verdict"] == "MISSED by 60 %" and contents["targets"][-1]["measured"] == 2.0
    assert "compile time, T=4096 over T=16" in output.split("Targets: ")[1]
    filled = readme_tables.with_tables(empty)
    assert "| compile time, T=4096 over T=16 |  | 2.00× | ≤ 1.25× | **MISSED by 60 %** |" in filled
    assert "0 of 1 targets reached" in filled and "Too few samples to quote." in filled
    assert readme_tables.with_tables(filled) == filled


def test_readmes_tables_of_a_gpu_are_of_what_was_measured(monkeypatch, tmp_path):
    text = "before\n<!-- docs/benchmarks/gpu -->\nold figures\n<!-- end -->\nafter\n"
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    assert readme_tables.with_tables(text) == text.replace("old figures\n", "")
    folder = tmp_path / "docs" / "benchmarks" / "gpu"
    folder.mkdir(parents=True)
    (folder / "proof-x.json").write_text("{}")
    problem = sequence.problem({"batch_size": 3, "input_size": 4, "hidden_size": 16, "time": 12})
    rows = [Row(PLAIN, samples={NO_GRAD: [24e-6], BOTH: [3e-5]}), Row(OURS, samples={NO_GRAD: [12e-6]})]
    rows.append(Row(OURS, graphed=True, reason="can't be captured"))
    result = Comparison(problem, None, rows).as_dictionary()
    target = {"phase": NO_GRAD, "limit": 2.5, "rival": "", "measured": 2.4, "met": True}
    result["targets"] = [target, {**target, "measured": None, "met": None}]
    card = {"name": "NVIDIA X", "driver": None, "cuda": "13.0", "cudnn": 91000}
    facts = {"gpu": card, "trial": False, "noisy": False, "repeats": 40, "processor": "x", "load_average": 0.1}
    facts |= {"torch": "2", "fourfold": "0"}
    (folder / "x-sequence.json").write_text(json.dumps({"environment": facts, "results": [result]}))
    filled = readme_tables.with_tables(text)
    assert "| **fourfold** | 12.0 (2.00×; 1.00) | - |" in filled
    assert "| **fourfold, CUDA graph** | can't be captured | |" in filled
    assert "Target, forward, no grad: at most 2.5: met (2.40)." in filled
    assert "Target, forward, no grad: at most 2.5: not measured." in filled
    assert "samples in turns; NVIDIA X, driver unknown, CUDA 13.0, cuDNN 91000; torch 2" in filled
    assert filled.count("LLTM, batch 3") == 1 and "old figures" not in filled


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "benchmarks").glob("*.json")), ids=lambda file: file.name)
def test_recorded_runs_stay_readable(file):
    """Also those with rows that are no longer measured."""
    contents = readme_tables.read(file)
    assert f"of {len(contents['targets'])} targets reached" in readme_tables.target_table(contents)
    contents["results"] = [result for result in contents["results"] if "rows" in result]
    assert readme_tables.table(contents).count(f"| **{OURS}** |") == len(contents["results"])
    points = plots.speedups(contents["results"], "batch_size")
    assert {16, 4, 64, 1} == set(points["GRU", NO_GRAD])


def result_of(kind, size, threads=1, precision="float32", ours=10.0, title="x"):
    """A table as it stands in JSON, in which fourfold's row takes so long and torch's 20."""
    phases = {
        name: {p: {"median": s, "lower_quartile": s, "upper_quartile": s} for p in (NO_GRAD, BOTH)}
        for name, s in ((plots.RIVALS[kind], 20.0), (OURS, ours))
    }
    facts = {"suite": "sequence", "title": title, "kind": kind, "threads": threads, "precision": precision}
    rows = [{"name": name, "phases": figures} for name, figures in phases.items()]
    return {**facts, "sizes": sequence.named(size), "rows": rows}


def test_plots_are_drawn_of_one_size_at_a_time(tmp_path):
    needs("matplotlib")
    centre = sequence.CENTRE
    results = [result_of(kind, size, ours=5.0) for kind in plots.COLORS for size in sequence.AROUND]
    results += [result_of(kind, centre) for kind in plots.COLORS]
    others = [result_of("GRU", centre, threads=2, ours=1.0), {"suite": "compiling", "title": "x"}]
    others += [result_of("GRU", centre, precision="autocast", ours=1.0), result_of("GRU", centre, title="packed")]
    by_batch = plots.speedups(results + others, "batch_size")
    assert {size: ratio["median"] for size, ratio in by_batch["GRU", NO_GRAD].items()} == {4: 4.0, 16: 2.0, 64: 4.0}
    facts = {"processor": "x", "torch": "2", "fourfold": "0", "load_average": None}
    files = plots.draw({"results": results, "environment": facts}, tmp_path / "new")
    assert [file.name for file in files] == ["speedup-batch-size.png", "speedup-hidden-size.png", "speedup-time.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert plots.draw({"results": others, "environment": facts}, tmp_path / "none") == []


def test_what_is_measured_of_sequences_and_functions(monkeypatch):
    found = [
        (p.kind, p.precision.name, p.threads, p.batch_sizes is None) for p in sequence.problems(Request("sequence"))
    ]
    grid = [line for line in found if line[2:] == (None, True)]
    assert len(grid) == 3 * 4 * 2 and {line[1] for line in grid} == {"float32", "autocast"}
    assert [line[0] for line in found if not line[3]] == ["LSTM", "GRU"]
    assert len([line for line in found if line[2] == (1,)]) == 3 * len(sequence.AROUND)
    quick = sequence.problems(Request("sequence", quick=True, kinds=["GRU"]))
    assert [(p.kind, p.batch_sizes is None) for p in quick] == [("GRU", True), ("GRU", False)]
    on_gpu = Request("sequence", {"time": 7}, torch.device("cuda"))
    assert sequence.chosen_sizes(on_gpu) == [sequence.named((16, 768, 768, 7))]

    monkeypatch.setattr(pointwise, "ELEMENTS", (10, 20))
    monkeypatch.setattr(pointwise, "LARGE", 20)
    monkeypatch.setattr(pointwise, "LAYOUT_ELEMENTS", 1000)
    monkeypatch.setattr(pointwise.allocation, "can_be_kept", lambda: True)
    found = list(pointwise.problems(Request("pointwise", kinds=["gelu_erf", "adam"])))
    assert [(p.kind, p.sizes["elements"], p.threads, p.around is pointwise.allocation.kept) for p in found] == [
        ("gelu_erf", 10, None, False),
        ("adam", 10, None, False),
        ("adam", 20, (1,), False),
        ("adam", 1000, (1,), False),
        ("gelu_erf", 20, None, True),
        ("adam", 20, None, True),
    ]
    asked = Request("pointwise", {"elements": [30]}, kinds=["adam"])
    assert [(p.sizes["elements"], p.threads) for p in pointwise.problems(asked)] == [(30, None)]
    quick = [p.sizes["elements"] for p in pointwise.problems(Request("pointwise", quick=True))]
    assert quick == [10**3] * 11 + [10**5] * 11 + [1000]


def test_a_part_of_the_sweep_is_the_same_as_in_the_whole(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    assert main(["sweep", "--quick", "--repeats", "1", "--first", "2", "--points", "2", "--json", str(file)]) == 0
    assert "Points 2 to 3 of seed 1" in capsys.readouterr().out
    figures = json.loads(file.read_text())["results"][0]["figures"]
    points = [point for _, point in zip(range(3), sweep.draw(1, [1]), strict=False)][1:]
    assert [figure["hidden_size"] for figure in figures] == [point.hidden_size for point in points]
