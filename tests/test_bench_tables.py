"""The output of measurements: tables with targets, the JSON file, README's tables and the plots."""

import dataclasses
import json

import pytest

import readme_tables
from benchmarks import compiling, mlp, plots, recurrent, results, run, targets
from benchmarks.__main__ import main
from benchmarks.measure import Row
from benchmarks.mlp import OUR_FUNCTION, SEQUENTIAL
from benchmarks.problem import Rate
from benchmarks.recurrent import CENTRE, LSTM
from benchmarks.results import Comparison
from benchmarks.targets import BOTH, FORWARD, NO_GRAD, OURS, PHASES, PLAIN, SAVED, Outcome, Target
from machine import ROOT, needs

SIZES = recurrent.named((3, 4, 16, 12))
SEQUENCE = dataclasses.replace(recurrent.whole("LSTM", SIZES), works=())


def row(name, microseconds, **facts):
    return Row(name, error=0.0, tolerance=1.0, samples={phase: [1e-6 * microseconds] * 3 for phase in PHASES}, **facts)


def judged(monkeypatch, found, rows, threads=1, problem=SEQUENCE):
    """A table with these targets; its problem belongs to all their works."""
    monkeypatch.setattr(results, "TARGETS", found)
    return Comparison(dataclasses.replace(problem, works=tuple(target.work for target in found)), threads, rows)


def test_targets_come_of_rows_at_their_number_of_threads(monkeypatch):
    found = (
        Target("work", NO_GRAD, 2.0, "nn.LSTM", 1),
        Target("work", BOTH, 4.0, "nn.LSTM"),
        Target("work", BOTH, 1.0, "absent"),
        Target("work", FORWARD, 1.0, "nn.LSTM"),  # not measured in this phase
        Target("steps", NO_GRAD, 2.4, at_most=True, unit=" µs/step"),
    )
    one = judged(monkeypatch, found, [row("nn.LSTM", 90), row(OURS, 30)])
    two = judged(monkeypatch, found, [row("nn.LSTM", 60), row(OURS, 30)], 2)
    ratio = pytest.approx(3)
    measured = [(NO_GRAD, ratio, True), (BOTH, ratio, False), (BOTH, None, None), (NO_GRAD, pytest.approx(2.5), False)]
    assert [(o.target.phase, o.measured, o.met) for o in one.outcomes] == measured
    assert [o.missed_by for o in one.outcomes[:2]] == [None, pytest.approx(0.25)]
    assert [o.target.phase for o in two.outcomes] == [BOTH, BOTH, NO_GRAD]
    first, second, third, fourth = targets.lines([*one.outcomes, *two.outcomes])
    shown = {"work": f"work, {NO_GRAD}", "aim": "≥ 2.00×", "shown": "3.00×", "verdict": "reached"}
    assert first.items() >= shown.items()
    assert second.items() >= {"where": two.heading, "shown": "2.00×", "tables": 2}.items()
    assert second["verdict"] == f"MISSED by 50 %; 0 of 2 tables reach it; furthest: {two.heading}"
    assert third["verdict"] == "not measured" and fourth["aim"] == "≤ 2.40 µs/step"
    text = targets.summary([*one.outcomes, *two.outcomes])
    assert text.startswith("Targets: 1 of 4 reached\n") and "≥ 4.00×" in text and "2.00×  MISSED by 50 %" in text
    lines = [line for line in one.plain().splitlines() if line.strip().startswith(OURS) and "target" in line]
    assert lines[0].endswith("target ≥ 2.00× nn.LSTM: met at 3.00×  target ≤ 2.4 µs/step: missed")
    assert lines[1].endswith("target ≥ 4.00× nn.LSTM: missed at 3.00×  target ≥ 1.00× absent: not measured")
    written = one.as_dictionary()["targets"]
    assert [verdict["met"] for verdict in written] == [True, False, None, False]
    assert written[0] == {"phase": NO_GRAD, "limit": 2.0, "rival": "nn.LSTM", "measured": ratio, "met": True}


@pytest.mark.parametrize(
    ("limit", "measured", "verdict"),
    [
        (3.0, [4.5, 1.0], "MISSED by 50 %; 1 of 2 tables reach it; furthest: 0"),
        (0, [2], "MISSED"),
        (3.0, [None, 1.0], "reached; 1 of 2 tables reach it; 1 not measured"),
    ],
)
def test_a_largest_value_is_missed_from_above(limit, measured, verdict):
    target = Target("slow-down", "", limit, at_most=True)
    (line,) = targets.lines([Outcome(target, str(k), value) for k, value in enumerate(measured)])
    assert (line["work"], line["aim"], line["verdict"]) == ("slow-down", f"≤ {limit:.2f}×", verdict)


def test_targets_of_another_row_and_of_memory(monkeypatch):
    found = (Target("w", NO_GRAD, 1.3, SEQUENTIAL, 1, OUR_FUNCTION), Target("w", SAVED, 2.0, SEQUENTIAL, 1))
    rows = [row(SEQUENTIAL, 30, kept=1000), row(OUR_FUNCTION, 20, kept=800), row(OURS, 60, kept=800)]
    table = judged(monkeypatch, found, rows, problem=mlp.problem(mlp.SIZES[0]))
    assert [o.measured for o in table.outcomes] == [pytest.approx(1.5), pytest.approx(1.25)]
    lines = table.plain().splitlines()
    assert [line.split("  ")[1] for line in lines if "target ≥ 1.30×" in line] == [OUR_FUNCTION]
    assert any(line.startswith("Kept for the backward") and "missed at 1.25×" in line for line in lines)


def test_losses_are_in_plain_sight():
    task = recurrent.one_cell(SIZES)
    absent = Row("absent", reason="no compiler")
    text = Comparison(task, 1, [row("plain", 4.0), absent, row("rival", 1.0), row(OURS, 2.0)]).plain()
    assert "fourfold loses, backward: 0.50× of rival." in text and "absent    no compiler" in text
    assert text.splitlines()[0].endswith("float32: 1 thread")
    text = Comparison(task, 2, [row("plain", 4.0), row(OURS, 2.0)]).plain()
    assert "loses" not in text and "No row beats fourfold" in text and "2.00×" in text


def test_ratios_are_to_the_named_row_where_it_was_measured():
    problem = dataclasses.replace(SEQUENCE, baseline=LSTM)
    table = Comparison(problem, None, [row(PLAIN, 60), row(LSTM, 20), row(OURS, 10)])
    assert f"Ratios are to {LSTM}." in table.plain()
    assert table.as_dictionary()["rows"][2]["phases"][BOTH]["ratio"]["median"] == pytest.approx(2)
    table.rows[1].samples = {}
    assert table.baseline.name == PLAIN


def test_json_is_a_row_a_line_and_no_longer_than_a_measurement_is_exact():
    problem = dataclasses.replace(SEQUENCE, baseline="", rate=Rate("GB/s", lambda seconds: 1 / seconds))
    table = Comparison(problem, 1, [row("nn.LSTM", 100 / 3), row(OURS, 10)])
    contents = {"benchmark": "x", "results": [table.as_dictionary()]}
    text = results.text(contents)
    assert json.loads(text) == results.rounded(contents)
    (line,) = [line for line in text.splitlines() if '"name": "nn.LSTM"' in line]
    phase = json.loads(line.strip().rstrip(","))["phases"][NO_GRAD]
    assert (phase["median"], phase["rate"]) == (3.333e-05, 30000)
    result = json.loads(text)["results"][0]
    assert result.items() >= {"kind": "LSTM", "sizes": SIZES, "threads": 1, "rate": "GB/s"}.items()
    assert result["rows"][1]["phases"][BOTH]["ratio"]["median"] == 3.333


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """docs/benchmarks of a fake source tree."""
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    folder = tmp_path / "docs" / "benchmarks"
    folder.mkdir(parents=True)
    return folder


def test_all_ends_in_a_summary_of_targets_which_readme_shows(monkeypatch, capsys, folder):
    empty = "before\n<!-- targets of docs/benchmarks/cpu.json -->\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(empty.replace("\n<!-- end", "\nold figures\n<!-- end")) == empty
    monkeypatch.setattr(run, "chosen", lambda name: ["compiling"])
    monkeypatch.setattr(compiling, "measure", lambda way, length: 1.0 + (length == 4096))
    assert main(["all", "--quick", "--json", str(folder / "cpu.json")]) == 0
    output, contents = capsys.readouterr().out, json.loads((folder / "cpu.json").read_text())
    assert contents["complete"] and contents["benchmark"] == "all"
    assert {"torch", "processor", "load_average", "commit", "noisy"} <= set(contents["environment"])
    assert contents["targets"][-1]["verdict"] == "MISSED by 60 %" and contents["targets"][-1]["measured"] == 2.0
    assert "compile time, T=4096 over T=16" in output.split("Targets: ")[1]
    filled = readme_tables.with_tables(empty)
    assert "| compile time, T=4096 over T=16 |  | 2.00× | ≤ 1.25× | **MISSED by 60 %** |" in filled
    assert "0 of 1 targets reached" in filled and "Too few samples to quote." in filled
    assert readme_tables.with_tables(filled) == filled


def test_random_points_are_listed_where_fourfold_is_slower():
    point = {"layer": "GRU", "time": 2, "batch_size": 3, "input_size": 4, "hidden_size": 5, "dtype": "tf32"}
    point |= {"bidirectional": True, "training": True, "graphed": True, "torch_seconds": 2e-3, "seconds": 4e-3}
    faster = {**point, "ratio": 2.0, "hidden_size": 99}
    lines = readme_tables.slower_points(
        {"title": "Points", "notes": ["a note"], "figures": [faster, {**point, "ratio": 0.5}]}
    )
    assert lines[0] == "Points: a note\n" and "H99" not in "".join(lines)
    assert lines[3] == "| GRU T2 B3 I4 H5 tf32, bidirectional | yes | forward+backward | 2,000 | 4,000 | 0.50× |"


def test_readmes_tables_of_a_gpu_are_of_what_was_measured(folder):
    text = "before\n<!-- docs/benchmarks/gpu -->\nold figures\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(text) == text.replace("old figures\n", "")
    (folder / "gpu").mkdir()
    (folder / "gpu" / "proof-x.json").write_text("{}")
    rows = [Row(PLAIN, samples={NO_GRAD: [24e-6], BOTH: [3e-5]}), Row(OURS, samples={NO_GRAD: [12e-6]})]
    rows.append(Row(OURS, graphed=True, reason="can't be captured"))
    result = Comparison(SEQUENCE, None, rows).as_dictionary()
    target = {"phase": NO_GRAD, "limit": 2.5, "rival": "", "measured": 2.4, "met": True}
    result["targets"] = [target, {**target, "measured": None, "met": None}]
    card = {"name": "NVIDIA X", "driver": None, "cuda": "13.0", "cudnn": 91000}
    facts = {"gpu": card, "trial": False, "noisy": False, "repeats": 40, "processor": "x", "load_average": 0.1}
    facts |= {"torch": "2", "fourfold": "0"}
    (folder / "gpu" / "x-sequence.json").write_text(json.dumps({"environment": facts, "results": [result]}))
    filled = readme_tables.with_tables(text)
    for line in (
        "| **fourfold** | 12.0 (2.00×; 1.00) | - |",
        "| **fourfold, CUDA graph** | can't be captured | |",
        "Target, forward, no grad: at most 2.5: met (2.40).",
        "Target, forward, no grad: at most 2.5: not measured.",
        "interleaved samples; NVIDIA X, driver unknown, CUDA 13.0, cuDNN 91000; torch 2",
    ):
        assert line in filled
    assert filled.count("LSTM, batch 3") == 1 and "old figures" not in filled


def test_the_table_of_recurrences_has_what_was_measured_on_one_thread(folder):
    text = "before\n<!-- recurrences of docs/benchmarks/x.json -->\nold figures\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(text) == text.replace("old figures\n", "")
    problem = dataclasses.replace(SEQUENCE, title="a cell, 100 steps, float32", source="Somebody 2020")
    rows = [Row(PLAIN, samples={NO_GRAD: [24e-6], BOTH: [3e-5]}), Row(OURS, samples={NO_GRAD: [12e-6]})]
    results = [Comparison(problem, threads, rows).as_dictionary() for threads in (1, 2)]
    results += [Comparison(SEQUENCE, 1, rows).as_dictionary(), {"title": "a report"}]
    facts = {"trial": False, "noisy": False, "repeats": 40, "processor": "x", "load_average": None}
    facts |= {"torch": "2", "fourfold": "0"}
    (folder / "x.json").write_text(json.dumps({"environment": facts, "results": results}))
    filled = readme_tables.with_tables(text)
    assert filled.count("| a cell, 100 steps | Somebody 2020 | 0.01 ms, 2.0× | - |") == 1
    assert filled.count("a cell") == 1 and "old figures" not in filled
    assert "load average unknown." in filled


def test_the_table_of_recurrent_ppo_has_a_row_for_each_way(folder):
    text = "before\n<!-- ppo of docs/benchmarks/x.json -->\nold figures\n<!-- end -->\nafter\n"
    assert readme_tables.with_tables(text) == text.replace("old figures\n", "")
    ways = [("sb3-contrib's RecurrentPPO", 4140.4, 1.0), ("fourfold, 2 workers", 17500.0, 4.305)]
    rows = [
        {"way": way, "frames_per_second": frames, "ratio": ratio, "collecting": 0.0785, "learning": 0.1}
        for way, frames, ratio in ways
    ]
    facts = {"trial": False, "noisy": False, "repeats": 40, "processor": "x", "load_average": 0.1}
    facts |= {"torch": "2", "fourfold": "0"}
    results = [{"title": "LSTM, a rollout"}, {"title": "Recurrent PPO, hidden 128: 1 thread", "figures": rows}]
    (folder / "x.json").write_text(json.dumps({"environment": facts, "results": results}))
    filled = readme_tables.with_tables(text)
    assert "| sb3-contrib's RecurrentPPO | 4,140 | 1.00× | 78.5 | 100.0 |" in filled
    assert "| **fourfold, 2 workers** | 17,500 | 4.30× | 78.5 | 100.0 |" in filled
    assert "Medians of 15 iterations in turns; x; torch 2" in filled and "a rollout" not in filled


RECORDED = sorted((ROOT / "docs" / "benchmarks" / "recurrences").glob("*.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.name)
def test_recorded_recurrences_stay_readable(file):
    contents = readme_tables.read(file)
    table = readme_tables.recurrence_table(contents)
    sources = [result for result in contents["results"] if result.get("source") and result["threads"] == 1]
    assert len(table.split("\n")) == len(sources) + 5
    assert f"of {len(contents['targets'])} targets reached" in readme_tables.target_table(contents)


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "benchmarks").glob("*.json")), ids=lambda file: file.name)
def test_recorded_runs_stay_readable(file):
    """Including those with rows that are no longer measured."""
    contents = readme_tables.read(file)
    assert f"of {len(contents['targets'])} targets reached" in readme_tables.target_table(contents)
    contents["results"] = [result for result in contents["results"] if "rows" in result]
    assert readme_tables.table(contents).count(f"| **{OURS}** |") == len(contents["results"])
    points = plots.speedups(contents["results"], "batch_size")
    assert {16, 4, 64, 1} == set(points["GRU", NO_GRAD])


def result_of(kind, size, threads=1, precision="float32", ours=10.0, title="x"):
    """A table in the JSON format, with a time of ``ours`` for fourfold's row and 20 for torch's."""
    phases = {
        name: {p: {"median": s, "lower_quartile": s, "upper_quartile": s} for p in (NO_GRAD, BOTH)}
        for name, s in ((plots.RIVALS[kind], 20.0), (OURS, ours))
    }
    facts = {"suite": "sequence", "title": title, "kind": kind, "threads": threads, "precision": precision}
    rows = [{"name": name, "phases": figures} for name, figures in phases.items()]
    return {**facts, "sizes": recurrent.named(size), "rows": rows}


def test_plots_are_drawn_of_one_size_at_a_time(tmp_path):
    needs("matplotlib")
    drawn = [result_of(kind, size, ours=5.0) for kind in plots.COLORS for size in recurrent.AROUND]
    drawn += [result_of(kind, CENTRE) for kind in plots.COLORS]
    others = [result_of("GRU", CENTRE, threads=2, ours=1.0), {"suite": "compiling", "title": "x"}]
    others += [result_of("GRU", CENTRE, precision="autocast", ours=1.0), result_of("GRU", CENTRE, title="packed")]
    by_batch = plots.speedups(drawn + others, "batch_size")
    assert {size: ratio["median"] for size, ratio in by_batch["GRU", NO_GRAD].items()} == {4: 4.0, 16: 2.0, 64: 4.0}
    facts = {"processor": "x", "torch": "2", "fourfold": "0", "load_average": None}
    files = plots.draw({"results": drawn, "environment": facts}, tmp_path / "new")
    assert [file.name for file in files] == ["speedup-batch-size.png", "speedup-hidden-size.png", "speedup-time.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert plots.draw({"results": others, "environment": facts}, tmp_path / "none") == []
