"""FOURFOLD_SHARD (scripts/shard.py): the shards together run every case of a sweep and every build, each once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import chain

import pytest

import shard
from machine import ROOT

SHARDS = ("1/3", "2/3", "3/3")


def test_shards_have_every_case_and_build_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names, every = [f"case-{k}" for k in range(10)], list(chain(*shard.BUILDS))
    cases, builds = [], []
    for text in SHARDS:
        monkeypatch.setenv("FOURFOLD_SHARD", text)
        cases += (own := shard.share(names))
        assert len(own) in (3, 4)
        builds += (held := [build for build in every if shard.has(build)])
        assert held and shard.has("none")
    assert sorted(cases) == names and sorted(builds) == sorted(every)
    monkeypatch.delenv("FOURFOLD_SHARD")
    assert shard.share(names) == names and all(map(shard.has, every))


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "1/0", "second"])
def test_what_is_no_shard_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_SHARD", text)
    with pytest.raises(ValueError, match=rf"^expected FOURFOLD_SHARD to be a shard .* but got {text}$"):
        shard.place()


def collected(text: str, *names: str) -> str:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names]
    done = subprocess.run(command, env=os.environ | {"FOURFOLD_SHARD": text}, capture_output=True, text=True, cwd=ROOT)
    return done.stdout + done.stderr


def test_only_sweeps_are_divided() -> None:
    said = collected("2/3", "tests/test_defaults.py::test_paths", "tests/test_schemas.py")
    chosen = re.findall(r"^tests/test_defaults.py::.*$", said, re.MULTILINE)
    found = re.search(r"(\d+)/(\d+) tests collected \((\d+) deselected\)", said)
    assert found is not None, said
    assert len(chosen) > 0 and abs(len(chosen) * 2 - int(found[3])) <= 2
    assert int(found[1]) - len(chosen) == said.count("tests/test_schemas.py::") > 0
    assert "ERROR: expected FOURFOLD_SHARD to be a shard" in collected("4/3", "tests/test_schemas.py")
