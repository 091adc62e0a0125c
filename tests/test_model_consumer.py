"""fourfold::load in a C++ program without Python: it computes what Python does, and refuses what Python refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from machine import linux_only
from saved_models import CASES, made, saved
from test_consumer import SURROUNDINGS, build, libtorch, run  # noqa: F401

pytestmark = linux_only


@pytest.fixture
def program(build: Path) -> Path:  # noqa: F811
    return build / "runs_model"


def flat(call: Any) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(call)]


@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_what_was_exported(program: Path, name: str, tmp_path: Path) -> None:
    calls = [CASES[name].inputs(size) for size in CASES[name].sizes]
    torch.save([flat(call) for call in calls], tmp_path / "calls.pt")
    said = run(program, saved(name, tmp_path), tmp_path / "calls.pt", tmp_path / "results.pt", 1)
    assert [line.split()[0] for line in said.splitlines()] == ["load", "first", "warm"]
    found = torch.load(tmp_path / "results.pt", weights_only=False)
    model = made(name)
    for (args, kwargs), mine in zip(calls, found, strict=True):
        with torch.no_grad():
            wanted = pytree.tree_leaves(model(*args, **kwargs))
        assert len(mine) == len(wanted)
        for a, b in zip(mine, wanted, strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)
            else:
                assert a == b


def test_a_program_refuses_in_a_sentence(program: Path, tmp_path: Path) -> None:
    path = saved("cache", tmp_path)
    cut = tmp_path / "cut.ff"
    cut.write_bytes(path.read_bytes()[:-100])
    torch.save([[torch.ones(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, 4)]], tmp_path / "calls.pt")
    for model, message in (
        (path, "model: expected x to be float32, but got float64\n"),
        (cut, f"load: expected {cut} to be a model that fourfold.save wrote, but "),
    ):
        ran = subprocess.run(
            [program, model, tmp_path / "calls.pt", tmp_path / "results.pt", "1"],
            capture_output=True,
            text=True,
            env=SURROUNDINGS,
        )
        assert ran.returncode == 1 and ran.stderr.startswith(message), ran.stderr
