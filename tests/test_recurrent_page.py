"""The examples of docs/recurrent.md and docs/scan.md run, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from Dynamo
@pytest.mark.parametrize(("page", "count"), [("recurrent.md", 6), ("scan.md", 6)])
def test_the_examples_run(page: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    namespace: dict = {}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, page, "exec"), namespace)
        else:
            assert capsys.readouterr().out == text
