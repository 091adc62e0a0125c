"""fourfold::load in a C++ program without Python: it gives Python's results, and rejects what Python rejects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fourfold
from fourfold.demo import corpus
from fourfold.demo.training import prepare
from machine import linux_only
from saved_models import CASES, made, saved
from test_consumer import ROOT, SURROUNDINGS, blocks, built, configured, libtorch, run  # noqa: F401

pytestmark = [linux_only, pytest.mark.slow]


@pytest.fixture(scope="module")
def program(configured: Path) -> Path:  # noqa: F811
    built(configured, "runs_model")
    return configured / "runs_model"


def flat(call: Any) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(call)]


@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_what_was_exported(program: Path, name: str, tmp_path: Path) -> None:
    calls = [CASES[name].inputs(size) for size in CASES[name].sizes]
    torch.save([flat(call) for call in calls], tmp_path / "calls.pt")
    said = run(program, saved(name, tmp_path), tmp_path / "calls.pt", tmp_path / "results.pt", 1)
    assert float(dict(line.split() for line in said.splitlines())["warm"]) > 0
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


def test_a_program_keeps_memory(program: Path, tmp_path: Path) -> None:
    """Of a convolution's result, which a sum reads."""

    class Convolved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum()

    x = torch.randn(1, 3, 66, 66)
    fourfold.save(torch.export.export(Convolved(), (x,)), tmp_path / "model.ff")
    torch.save([[x]], tmp_path / "calls.pt")
    said = run(program, tmp_path / "model.ff", tmp_path / "calls.pt", tmp_path / "results.pt", 1)
    assert int(said.split("kept ")[1]) >= 4 * 16 * 64 * 64


def test_a_program_refuses_in_a_sentence(program: Path, tmp_path: Path) -> None:
    path = saved("cache", tmp_path)
    cut = tmp_path / "cut.ff"
    cut.write_bytes(path.read_bytes()[:-100])
    torch.save([[torch.ones(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, 4)]], tmp_path / "calls.pt")
    for model, message in (
        (path, "model: expected input to be float32, but got float64\n"),
        (cut, f"load: expected {cut} to be a model that fourfold.save wrote, but "),
    ):
        ran = subprocess.run(
            [program, model, tmp_path / "calls.pt", tmp_path / "results.pt", "1"],
            capture_output=True,
            text=True,
            env=SURROUNDINGS,
        )
        assert ran.returncode == 1 and ran.stderr.startswith(message), ran.stderr


def test_what_the_page_shows_runs(program: Path, tmp_path: Path) -> None:
    text = "\n".join(blocks("python", ROOT / "docs" / "files.md"))
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run([program], cwd=tmp_path, check=True, env=SURROUNDINGS)


def test_a_program_runs_the_demos_model_as_python_trained_it(program: Path, tmp_path: Path) -> None:
    """Trained in Python, called character by character in C++, each call with the state of the previous one."""
    text = corpus.read(5000)
    run_of_demo = prepare(len(text.alphabet), 8, 24, 20, 1e-2, 0, torch.device("cpu")).fused
    run_of_demo.train(text, 20, 4, 16, torch.device("cpu"))
    assert run_of_demo.losses[-1] < run_of_demo.losses[0]
    model = run_of_demo.model.eval()
    state = (torch.zeros(1, 1, 24), torch.zeros(1, 1, 24))
    steps = torch.export.Dim("steps", min=1, max=512)
    tokens = text.tokens[:40].unsqueeze(1)
    with torch.no_grad():
        exported = torch.export.export(model, (tokens[:5], state), dynamic_shapes=({0: steps}, (None, None)))
    fourfold.save(exported, tmp_path / "demo.ff")
    calls = []
    wanted = []
    for token in (tokens[:7], tokens[7:8], tokens[8:]):
        calls.append([token.clone(), *(each.clone() for each in state)])
        with torch.no_grad():
            logits, state = model(token, state)
        wanted.append([logits, *state])
    torch.save(calls, tmp_path / "calls.pt")
    run(program, tmp_path / "demo.ff", tmp_path / "calls.pt", tmp_path / "results.pt", 1)
    for mine, theirs in zip(torch.load(tmp_path / "results.pt", weights_only=False), wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)
