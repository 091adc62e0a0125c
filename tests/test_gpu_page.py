"""Checks statements of docs/gpu.md."""

from __future__ import annotations

import re

import torch

from fourfold.compiler.nest.print import metal
from machine import ROOT

PAGE = (ROOT / "docs" / "gpu.md").read_text()


def test_the_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    names: dict[str, object] = {}
    torch._dynamo.reset()
    exec(code, names)
    x, gate, weight = names["x"], names["gate"], names["weight"]
    expected = torch.nn.functional.layer_norm(x * torch.sigmoid(gate), (1024,), weight)
    torch.testing.assert_close(names["gated_norm"](x, gate, weight), expected)


def test_the_limits_are_those_of_the_printers() -> None:
    assert f"at most {metal.MOST_BUFFERS - 2} tensors" in PAGE
    assert f"at most {metal.MOST_CONSTANTS:,} bytes" in PAGE
