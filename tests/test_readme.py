"""README: its examples run, its links lead to files, its commands exist, and it stays short."""

from __future__ import annotations

import re

import pytest
import torch

import readme_tables
from machine import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_examples_run_one_after_another_and_print_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    names: dict[str, object] = {}
    printed = []
    for example in EXAMPLES:
        exec(compile(example, "README.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    layer, compiled, scan = printed
    assert layer.strip() in EXAMPLES[0]  # in a comment
    assert "compiled by fourfold" in compiled and "fewer" in compiled
    assert scan.startswith("torch.Size([100, 16, 128]), mean rate 0.")
    assert names["output"].shape == (100, 16, 128)
    assert names["spikes"].shape == (100, 16, 128)
    assert len(EXAMPLES) == 3


def test_what_is_linked_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 10
    for link in links:
        file, _, heading = link.partition("#")
        text = (ROOT / (file or "README.md")).read_text(encoding="utf-8") if heading else (ROOT / file).exists()
        assert text, link
        if heading:
            assert heading in {slug(line) for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)}, link


def slug(heading: str) -> str:
    """GitHub's anchor for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_its_commands_are_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test"} <= named
    assert named <= {target for line in targets for target in line.split()}


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_it_has_one_picture_and_ten_rows_of_figures() -> None:
    assert README.count("![") + README.count("<img") == 1
    # The table of speeds, which scripts/readme_tables.py writes between these marks.
    figures = README.partition("<!-- figures -->")[2].partition("<!-- end -->")[0]
    head, _, *rows = [line for line in figures.splitlines() if line.startswith("|")]
    assert head == "| work | against | times as fast |" and len(rows) == 10


def test_losses_are_bold_and_a_missing_table_is_an_error() -> None:
    tables = [{"targets": [{"phase": "p", "limit": 1.0, "rival": "r", "measured": m}]} for m in (0.5, 2.0, 3.0, None)]
    one = {"work": "one, p", "against": "s", "measured": 1.25, "shown": "1.25×", "tables": 1}
    many = {"work": "many, p", "against": "r", "limit": 1.0, "measured": 0.5, "shown": "0.50×", "tables": 4}
    contents = {"targets": [one, many], "results": tables}
    assert readme_tables.figure(contents, "one, p", "s") == "1.25×"
    assert readme_tables.figure(contents, "many, p", "r") == "median 2.00×, worst **0.50×** of 3"
    many["tables"] = 5
    with pytest.raises(ValueError, match="many, p: expected 5 tables against r, but found 4"):
        readme_tables.figure(contents, "many, p", "r")
