"""What is made of measurements: tables with targets, the JSON file, the tables of README and the pages, the plots."""

import dataclasses
import re
import shutil
import sys

import pytest

import readme_tables
from benchmarks import mlp, plots, recurrent, results, targets
from benchmarks.measure import Row
from benchmarks.mlp import OUR_FUNCTION, SEQUENTIAL
from benchmarks.recurrent import LSTM
from benchmarks.results import Comparison
from benchmarks.targets import BOTH, FORWARD, NO_GRAD, OURS, PHASES, PLAIN, SAVED, Outcome, Target
from machine import ROOT, needs, output_of

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
    assert [o.target.phase for o in two.outcomes] == [BOTH, BOTH, NO_GRAD]
    verdicts = [line["verdict"] for line in targets.lines([*one.outcomes, *two.outcomes])]
    worst = f"MISSED by 50 %; 0 of 2 tables reach it; furthest: {two.heading}"
    assert verdicts[:3] == ["reached", worst, "not measured"]
    assert targets.summary([*one.outcomes, *two.outcomes]).startswith("Targets: 1 of 4 reached\n")
    lines = [line for line in one.plain().splitlines() if line.strip().startswith(OURS) and "target" in line]
    assert lines[0].endswith("target ≥ 2.00× nn.LSTM: met at 3.00×  target ≤ 2.4 µs/step: missed")


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
    assert "missed at 1.25×" in table.plain().partition("Kept for the backward")[2]


def test_losses_are_in_plain_sight():
    task = recurrent.one_cell(SIZES)
    absent = Row("absent", reason="no compiler")
    text = Comparison(task, 1, [row("plain", 4.0), absent, row("rival", 1.0), row(OURS, 2.0)]).plain()
    assert "fourfold loses, backward: 0.50× of rival." in text and "absent    no compiler" in text
    text = Comparison(task, 2, [row("plain", 4.0), row(OURS, 2.0)]).plain()
    assert "loses" not in text and "No row beats fourfold" in text and "2.00×" in text


def test_ratios_are_to_the_named_row_where_it_was_measured():
    problem = dataclasses.replace(SEQUENCE, baseline=LSTM)
    table = Comparison(problem, None, [row(PLAIN, 60), row(LSTM, 20), row(OURS, 10)])
    assert f"Ratios are to {LSTM}." in table.plain()
    assert table.as_dictionary()["rows"][2]["phases"][BOTH]["ratio"]["median"] == pytest.approx(2)
    table.rows[1].samples = {}
    assert table.baseline.name == PLAIN


def test_a_stale_figure_of_a_page_is_found_and_written(tmp_path):
    """In a copy of the pages and the measurements, with the commands that CONTRIBUTING.md names."""
    for name in ("benchmarks", "docs", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    readme = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", readme)
    command = (sys.executable, tmp_path / "scripts" / "readme_tables.py")
    assert "differs" not in output_of(*command, "--check")
    right = readme.read_text(encoding="utf-8")
    stale = re.sub(r"\d(?=\.\d\d×)", lambda digit: str(9 - int(digit[0])), right, count=1)
    readme.write_text(stale, encoding="utf-8")
    with pytest.raises(AssertionError, match=r"README.md differs: run python scripts/readme_tables.py"):
        output_of(*command, "--check")
    output_of(*command)
    assert readme.read_text(encoding="utf-8") == right
    output_of(*command, "--check")


def test_plots_are_drawn_of_one_size_at_a_time(tmp_path):
    needs("matplotlib")
    contents = readme_tables.read(ROOT / "docs" / "benchmarks" / "zen3.json")
    found = plots.speedups(contents["results"], "batch_size")["GRU", NO_GRAD]
    assert sorted(found) == [1, 4, 16, 64]
    tables = [result for result in contents["results"] if result.get("sizes") == recurrent.named((64, 32, 128, 100))]
    rows = [r["rows"] for r in tables if (r["kind"], r["threads"], r["precision"]) == ("GRU", 1, "float32")]
    times = {each["name"]: each["phases"][NO_GRAD]["median"] for each in rows[0] if each["phases"]}
    assert found[64]["median"] == pytest.approx(times["nn.GRU"] / times[OURS])
    files = plots.draw(contents, tmp_path / "new")
    assert [file.name for file in files] == ["speedup-batch-size.png", "speedup-hidden-size.png", "speedup-time.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert plots.draw(contents | {"results": []}, tmp_path / "none") == []
