"""Files saved by a release load in all later ones, with the same results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

import fourfold

FOLDER = Path(__file__).parent / "data" / "models"
FILES = sorted(FOLDER.glob("*/*.ff"))


def test_this_release_has_files() -> None:
    assert (FOLDER / fourfold.__version__).is_dir(), "run python scripts/freeze_models.py, and add what it writes"
    assert {path.stem for path in FILES} >= {"block", "cache", "counter", "scan", "stream"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_of_a_release_computes_what_it_did(path: Path) -> None:
    model = fourfold.load(path)
    for call in torch.load(path.with_suffix(".pt")):
        leaves = model._native(*call["arguments"])
        assert len(leaves) == len(call["results"])
        for mine, theirs in zip(leaves, call["results"], strict=True):
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=1e-5)
            else:
                assert mine == theirs
        assert len(pytree.tree_leaves(model._structure.unflatten(leaves))) == len(leaves)
