"""docs/recurrent.md: its examples run, and print what it says that they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "recurrent.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    namespace: dict = {}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), namespace)
        else:
            assert capsys.readouterr().out == text
