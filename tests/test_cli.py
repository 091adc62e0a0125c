"""The command line: info and bench, at sizes that take seconds, and its errors."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fourfold
from fourfold import demo
from fourfold.cli import bench, main, timing
from fourfold.demo import corpus
from fourfold.devices import nvrtc, programs

TINY = {"--steps": 24, "--batch-size": 2, "--sequence-length": 8, "--hidden-size": 8, "--embedding-size": 4}
TINY_DEMO = ["demo", "--threads", "1", *(str(word) for option in TINY.items() for word in option)]


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().out


def test_the_module_is_a_command():
    done = subprocess.run([sys.executable, "-m", "fourfold", "--help"], capture_output=True, text=True, check=True)
    assert all(
        command in done.stdout
        for command in ("info", "demo", "bench", "profile", "explain", "objects", "cache", "examples:")
    )


@pytest.mark.parametrize(
    "command", ["", "info", "demo", "bench", "bench cell", "profile", "explain", "objects", "cache"]
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


def test_the_cmake_package_is_found_without_torch(tmp_path, capsys):
    """CMake's configure step needs it; on a build machine a CUDA build of torch may not even load."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    surroundings = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = (sys.executable, "-m", "fourfold", "--cmake-dir")
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings).stdout
    assert (Path(said.rstrip("\n")) / "fourfoldConfig.cmake").exists()
    with pytest.raises(SystemExit) as ended:
        main(["--cmake-dir"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("prove", "invalid choice: 'prove'"),
        ("bench", "the following arguments are required: SUITE"),
        ("bench sequence", "expected cell or mlp, but got 'sequence'; the other suites are in fourfold's source tree"),
        ("demo --steps 0", "argument --steps: expected a positive integer, but got '0'"),
        ("demo --steps 1", "expected --steps to be at least 2"),
        ("demo --lr nan", "argument --lr: expected a positive number, but got 'nan'"),
        ("demo --seed -1", "argument --seed: expected an integer from 0 on, but got '-1'"),
        ("demo --device abacus", "expected --device to be cpu, cuda, cuda:1 or mps, but got 'abacus'"),
        ("demo --device meta", "expected --device to be cpu, cuda, cuda:1 or mps, but got 'meta'"),
        ("demo --sequence-length 1000000", "expected --sequence-length below the text's 1000000, but got 1000000"),
        ("bench cell --repeats two", "argument --repeats: expected a positive integer, but got 'two'"),
        ("bench mlp --dtype int8", "argument --dtype: invalid choice: 'int8'"),
        ("bench mlp --device abacus", "bench mlp: expected --device to be cpu, cuda, cuda:1 or mps, but got 'abacus'"),
        ("bench cell --output-size 2", "bench cell: expected --output-size only with mlp, but got 2"),
        ("bench mlp --json nowhere/to/be.json", "argument --json: expected a file in a directory that exists"),
        ("demo --memory-fraction two", "argument --memory-fraction: expected a number from 0 to 2, but got 'two'"),
        ("demo --memory-fraction nan", "argument --memory-fraction: expected a number from 0 to 2, but got 'nan'"),
        ("demo --memory-fraction 1", "demo: expected --memory-fraction only with --device cuda or mps, but got cpu"),
        ("bench mlp --memory-fraction 1", "bench mlp: expected --memory-fraction only with --device cuda or mps, but"),
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


@pytest.mark.parametrize("command", ["demo", "bench"])
@pytest.mark.parametrize(
    ("device", "fraction", "asked", "refused"),
    [
        ("cuda:1", 0.5, [(0.5, 1)], ""),
        ("cuda", 1.0, [(1.0, None)], ""),
        ("mps", 2.0, [(2.0,)], ""),
        ("mps", 0.0, [(0.0,)], ""),
        ("cuda", 1.5, [], "expected --memory-fraction above 0 and at most 1 with cuda, but got 1.5"),
        ("cuda", 0.0, [], "expected --memory-fraction above 0 and at most 1 with cuda, but got 0"),
    ],
)
def test_the_memory_fraction_is_given_to_torch_before_anything_runs(
    command, device, fraction, asked, refused, capsys, tmp_path, monkeypatch
):
    class Enough(Exception): ...

    def enough(*arguments):
        raise Enough

    given = []
    for module in (torch.cuda, torch.mps):
        monkeypatch.setattr(module, "set_per_process_memory_fraction", lambda *words: given.append(words))
    monkeypatch.setattr(corpus, "read", enough)
    monkeypatch.setattr(bench, "measure", enough)
    for module in (demo, bench):
        monkeypatch.setattr(module, "usable_device", lambda command, name: torch.device(name))
    words = ["demo", "--out", tmp_path] if command == "demo" else ["bench", "cell"]
    words = [str(word) for word in (*words, "--device", device, "--memory-fraction", fraction)]
    if refused:
        assert main(words) == 2 and refused in capsys.readouterr().err
    else:
        with pytest.raises(Enough):
            main(words)
    assert given == asked


def test_bench_has_no_float64_on_mps(capsys, monkeypatch):
    monkeypatch.setattr(bench, "usable_device", lambda command, name: torch.device(name))
    assert main(["bench", "cell", "--device", "mps", "--dtype", "float64"]) == 2
    assert "expected --dtype float64 only on cpu or cuda, but got mps" in capsys.readouterr().err


def test_benchs_times_are_of_the_events_of_its_device(monkeypatch):
    class Event:
        now = 0

        def __init__(self, device):
            assert device == torch.device("cpu")

        def record(self):
            Event.now += 1
            self.at = Event.now

        def synchronize(self):
            self.done = True

        def elapsed_time(self, end):
            return 1000.0 * (end.at - self.at)

    monkeypatch.setattr(fourfold, "Event", Event)
    way = bench.Way(nn.Linear(3, 2))
    assert way.sample([torch.randn(4, 3)], torch.device("cpu"), 2) == [0.5, 1.0, 1.0, 2.0]


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


def test_info_names_the_compiler_of_programs_or_the_obstacle(capsys, monkeypatch):
    sentence = nvrtc.installed.missing
    monkeypatch.setattr(programs, "obstacle", lambda type: sentence if type == "cuda" else "")
    found = json.loads(run(capsys, "info", "--json")[1])["programs"]
    assert found == {
        "cpu": "loop nests, or the interpreter",
        "cuda": f"none: {sentence}",
        "mps": "kernels, compiled by the system",
    }
    lines = run(capsys, "info")[1].splitlines()
    first = lines.index("Programs of compiled functions") + 1
    assert lines[first : first + 4] == [*(f"  {device:4}  {what}" for device, what in found.items()), ""]


def test_threads_are_pinned_and_given_back():
    before = torch.get_num_threads()
    with timing.pinned_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("suite", "plain", "sizes"),
    [("cell", "plain PyTorch", [3, 4, 5]), ("mlp", "nn.Sequential", [3, 4, 5, 2])],
)
def test_bench_from_end_to_end(suite, plain, sizes, dtype, capsys, tmp_path):
    file = tmp_path / "result.json"
    flags = ("--batch-size", "--input-size", "--hidden-size", "--output-size")
    options = [word for pair in zip(flags, sizes, strict=False) for word in pair]
    more = ["--repeats", 2, "--threads", 1, "--dtype", dtype, "--json", file]
    code, output = run(capsys, "bench", suite, *options, *more)
    assert code == 0
    assert f"batch {sizes[0]}, input {sizes[1]}, hidden {sizes[2]}" in output
    lines = [line.split("  ") for line in output.splitlines()]
    assert all(line[-1].endswith("×") for line in lines if line[0] in bench.PHASES)
    assert [line[0] for line in lines if line[0] in bench.PHASES] == list(bench.PHASES)
    assert "paired ratio" in output and ", not the quotient of the medians." in output
    contents = json.loads(file.read_text())
    assert list(contents["sizes"].values()) == sizes and contents["threads"] == 1 and contents["dtype"] == dtype
    assert list(contents["relative_errors"]) == [plain, "fourfold"]
    assert contents["tolerance"] == bench.tolerance(getattr(torch, dtype), 9)
    assert all(error <= contents["tolerance"] for error in contents["relative_errors"].values())
    for figures in contents["phases"].values():
        assert all(figures[name] > 0 for name in (plain, "fourfold", "ratio"))


def test_benchs_ways_take_turns_and_ratios_are_of_neighbours():
    order = []

    def sampler(name, seconds):
        return lambda iterations: order.append((name, iterations)) or [seconds, 4 * seconds]

    assert bench.interleaved([sampler("a", 1e-3), sampler("b", 1e-4)], 2) == [[[1e-3, 4e-3]] * 2, [[1e-4, 4e-4]] * 2]
    assert order == [("a", 5), ("a", 5), ("b", 5), ("b", 5), ("a", 1), ("b", 10), ("b", 10), ("a", 1)]
    found = bench.figures(["a", "b"], [(4.0, 2.0), (9.0, 3.0), (8.0, 1.0)])
    assert found == {"a": 8.0, "b": 2.0, "ratio": 3.0}


def test_benchs_sizes_are_the_tutorials():
    assert bench.SIZES == {
        "cell": {"batch_size": 16, "input_size": 32, "hidden_size": 128},
        "mlp": {"batch_size": 32, "input_size": 5, "hidden_size": 15, "output_size": 1},
    }


@pytest.mark.parametrize(("suite", "operator"), [("cell", "lltm_cell"), ("mlp", "mlp_layers")])
@pytest.mark.parametrize("factor", [1.001, math.nan])
def test_a_way_that_is_wrong_is_not_timed(suite, operator, factor, capsys, monkeypatch):
    right = getattr(fourfold.functional, operator)

    def wrong(*arguments):
        result = right(*arguments)
        return (result[0] * factor, result[1]) if suite == "cell" else result * factor

    monkeypatch.setattr(fourfold.functional, operator, wrong)
    code, output = run(capsys, "bench", suite, "--repeats", 1)
    assert code == 1
    assert "WRONG, so nothing was timed." in output and "×" not in output
