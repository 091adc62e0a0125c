"""FOURFOLD_SHARD (scripts/shard.py): the shards together run every case of a sweep and every build, each once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain

import pytest

import shard
from backend_report import Report
from machine import ROOT

SHARDS = ("1/4", "2/4", "3/4", "4/4")


def test_shards_have_every_case_and_build_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names, every = [f"case-{k}" for k in range(10)], list(chain(*shard.BUILDS))
    cases, builds = [], []
    for text in SHARDS:
        monkeypatch.setenv("FOURFOLD_SHARD", text)
        cases += (own := shard.share(names))
        assert len(own) in (2, 3)
        builds += (held := [build for build in every if shard.has(build)])
        assert held and shard.has("none")
    assert sorted(cases) == names and sorted(builds) == sorted(every)
    monkeypatch.delenv("FOURFOLD_SHARD")
    assert shard.share(names) == names and all(map(shard.has, every))


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "1/0", "second"])
def test_what_is_no_shard_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_SHARD", text)
    with pytest.raises(ValueError, match=rf"^expected FOURFOLD_SHARD to be a shard .* but got {text}$"):
        shard.place()


def collected(text: str, *names: str) -> str:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names]
    done = subprocess.run(command, env=os.environ | {"FOURFOLD_SHARD": text}, capture_output=True, text=True, cwd=ROOT)
    return done.stdout + done.stderr


def test_only_sweeps_are_divided() -> None:
    said = collected("2/4", "tests/test_defaults.py::test_paths", "tests/test_schemas.py")
    chosen = re.findall(r"^tests/test_defaults.py::.*$", said, re.MULTILINE)
    found = re.search(r"(\d+)/(\d+) tests collected \((\d+) deselected\)", said)
    assert found is not None, said
    assert len(chosen) > 0 and abs(len(chosen) * 3 - int(found[3])) <= 3
    assert int(found[1]) - len(chosen) == said.count("tests/test_schemas.py::") > 0
    assert "ERROR: expected FOURFOLD_SHARD to be a shard" in collected("5/4", "tests/test_schemas.py")


@pytest.mark.slow
def test_a_file_of_slow_tests_is_in_one_shard_whichever_others_are_run() -> None:
    def counts(shards: Iterable[str], *files: str) -> list[int]:
        return [collected(each, *files).count("tests/test_types.py::") for each in shards]

    among_others = counts(SHARDS, "tests/test_site.py", "tests/test_types.py")
    (own,) = (each for each, count in zip(SHARDS, among_others, strict=True) if count)
    assert counts([own], "tests/test_types.py") == [sum(among_others)] != [0]


def test_a_failure_is_reported_where_the_proof_is_another_shards() -> None:
    report = Report(("gru", "lstm"))
    report.leave("metal", "linked", "in another shard")
    assert report.cell("gru", "metal", "linked") == ("-", "in another shard")
    report.refuse("metal", "linked", "it does not link", ["gru"])
    assert report.cell("gru", "metal", "linked") == ("no", "it does not link")
    assert report.cell("lstm", "metal", "linked")[0] == "-"
