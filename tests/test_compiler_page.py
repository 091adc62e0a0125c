"""Checks statements of docs/compiler.md."""

from __future__ import annotations

import re
from dataclasses import fields

import torch

from compiled import compiled
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline.record import Record
from machine import ROOT

PAGE = (ROOT / "docs" / "compiler.md").read_text()


def test_the_first_example_and_its_program() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    names: dict[str, object] = {}
    torch._dynamo.reset()
    exec(code, names)
    x = names["x"]
    torch.testing.assert_close(names["compiled"](x).detach(), torch.ones(1000))
    assert torch.equal(x.grad, torch.zeros(1000))
    record = Record()
    compiled(names["f"], record)(x)
    (built,) = record.captured[0].forward.compiled.programs
    assert f"```\n{built.text}```" in PAGE


def test_the_options_are_those_that_there_are() -> None:
    table = dict(re.findall(r"^\| `(\w+)=(\w+)` \|", PAGE, re.MULTILINE))
    assert table == {field.name: str(field.default).strip("'") for field in fields(Options)}


def test_what_is_linked_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if "://" not in link]
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
