"""docs/compatibility.md has what the records of runs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import compatibility

XML = '<testsuites><testsuite errors="1" failures="2" skipped="4" tests="1207"></testsuite></testsuites>'


def test_the_page_is_up_to_date() -> None:
    written = compatibility.PAGE.read_text(encoding="utf-8")
    assert written == compatibility.page(), "run python scripts/compatibility.py"


def test_a_run_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests.xml").write_text(XML)
    found = compatibility.record("all tests", tmp_path / "tests.xml")
    path = compatibility.write(found, tmp_path / "records")
    assert json.loads(path.read_text()) == found
    monkeypatch.setattr(compatibility, "RECORDS", tmp_path / "records")
    (row,) = (row for row in compatibility.rows() if found["date"] in row)
    assert "1,200 passed, 4 skipped, **3 failed**" in row
    assert row.startswith(f"| {compatibility.minor(found['torch'])} | {compatibility.minor(found['python'])} | ")
