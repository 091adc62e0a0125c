"""Schemas are a contract: exported and compiled programs on disk hold them. A shipped one only gains arguments with
defaults; docs/operators.md is its table."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import fourfold

DOCUMENT = Path(__file__).parent.parent / "docs" / "operators.md"


def registered() -> dict[str, str]:
    """Every operator of this library, gradients' too, as torch knows it."""
    names = {
        n.removeprefix("fourfold::").split(".")[0]
        for n in torch._C._dispatch_get_all_op_names()
        if n.startswith("fourfold::")
    }
    return {name: str(getattr(torch.ops.fourfold, name).default._schema) for name in sorted(names)}


def documented() -> dict[str, str]:
    schemas = re.findall(r"^fourfold::(\w+)(\(.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: f"fourfold::{name}{rest}" for name, rest in schemas}


def test_every_operator_has_its_schema_in_the_documentation() -> None:
    assert registered() == documented()


def test_every_operator_of_the_build_is_registered() -> None:
    assert set(fourfold.operator_names()) <= set(registered())
    gradients = {n for n in registered() if n.endswith("_backward")}
    assert set(registered()) == set(fourfold.operator_names()) | gradients
    # axpby's gradient is a scaling that torch does already.
    assert {n.removesuffix("_backward") for n in gradients} == set(fourfold.operator_names()) - {"axpby"}
