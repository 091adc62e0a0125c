"""docs/profiling.md: its examples run and print its table, and it has every public name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import fourfold
from fourfold import profiler

PAGE = (Path(__file__).parent.parent / "docs" / "profiling.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    first, last = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```\n( +calls.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(first, "profiling.md", "exec"), namespace)
    said = capsys.readouterr().out
    assert (tmp_path / "trace.json").stat().st_size > 0
    if not any(row.device in ("cuda", "mps") for row in namespace["prof"].rows()):
        assert shown.splitlines()[0].split() == said.splitlines()[0].split()
    printed = namespace["prof"].table(None).splitlines()
    lines = re.findall(r"^  (\w+::\w+) +(\d+) ", shown, re.MULTILINE)
    assert len(lines) >= 4
    for name, calls in lines:
        assert any(re.match(rf"  {name} +{calls} ", real) for real in printed), (name, calls)
    exec(compile(last, "profiling.md", "exec"), namespace)
    assert capsys.readouterr().out == "True\n"


def test_every_public_name_is_in_it() -> None:
    public = {name for kind in (profiler.profile, fourfold.Event) for name in vars(kind) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(profiler.Row)} | {"is_fourfolds"}
    missing = [name for name in public | fields if not re.search(rf"`(prof\.)?{name}\b", PAGE)]
    assert missing == []
    assert profiler.__all__ == ["Row", "profile"] and profiler.Row.__module__ == "fourfold.profiler"
