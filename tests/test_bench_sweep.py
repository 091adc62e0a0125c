"""The random points of ``sweep``: what is drawn, how it is checked, and what is listed."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch

import fourfold
from benchmarks import sweep
from benchmarks.__main__ import main
from benchmarks.sweep import Measured, Point

POINT = Point("LSTM", 3, 2, 4, 16, "float32", 1, False, True)


def first(count: int, seed: int) -> list[Point]:
    return list(itertools.islice(sweep.draw(seed, [1, 2]), count))


def test_a_seed_draws_the_same_points_of_all_kinds() -> None:
    points = first(200, 1)
    assert points == first(200, 1) != first(200, 2)
    assert all(point.work <= sweep.MOST_WORK for point in points)
    for field, values in (
        ("layer", {"LSTM", "GRU"}),
        ("dtype", set(sweep.SWEPT)),
        ("threads", {1, 2}),
        ("bidirectional", {True, False}),
        ("training", {True, False}),
    ):
        assert {getattr(point, field) for point in points} == values
    for field in ("time", "batch_size", "input_size", "hidden_size"):
        assert any(getattr(point, field) % 2 for point in points)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_a_point_is_checked_and_timed(layer: str, training: bool, bidirectional: bool) -> None:
    found = sweep.measure(Point(layer, 3, 2, 4, 16, "float32", 1, bidirectional, training), 1)
    assert not found.wrong and found.ratio > 0 and found.error <= found.allowed


def test_wrong_numbers_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = fourfold.nn.LSTM.forward
    monkeypatch.setattr(fourfold.nn.LSTM, "forward", lambda self, x: (forward(self, x)[0] * 1.01, None))
    found = sweep.measure(POINT, 1)
    assert found.wrong and math.isnan(found.ratio)
    report = sweep.report("some points", [found])
    assert report.wrong and "WRONG" in report.plain() and POINT.words in report.plain()


def test_what_torch_cannot_run_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: torch.nn.LSTM, x: torch.Tensor) -> None:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(torch.nn.LSTM, "forward", refuse)
    report = sweep.report("some points", [sweep.measure(POINT, 1)])
    assert not report.wrong and "could not create a primitive" in report.plain()
    assert [outcome.measured for outcome in report.outcomes] == [None, None]


def test_slower_points_are_listed_worst_first() -> None:
    ratios = [2.0, 0.97, 4.0, 0.5, 3.0]
    report = sweep.report("some points", [Measured(POINT, ratio, 1.0, ratio, 0.0, 1.0) for ratio in ratios])
    assert [row[-1] for row in report.cells] == ["0.50×", "0.97×"]
    assert "median 2.00×; 2 below 1, 1 below 0.95; worst 0.50×" in report.plain()
    assert [(outcome.measured, outcome.met) for outcome in report.outcomes] == [(2.0, False), (0.5, False)]


def test_a_part_of_the_points_is_the_same_as_in_the_whole(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.json"
    assert main(["sweep", "--quick", "--repeats", "1", "--first", "2", "--points", "2", "--json", str(file)]) == 0
    assert "Points 2 to 3 of seed 1" in capsys.readouterr().out
    figures = json.loads(file.read_text())["results"][0]["figures"]
    points = list(itertools.islice(sweep.draw(1, [1]), 3))[1:]
    assert [figure["hidden_size"] for figure in figures] == [point.hidden_size for point in points]
