"""Writes the models of tests/saved_models.py as this release saves them, with calls and results, to
tests/data/models/VERSION. All later releases must load them.

    python scripts/freeze_models.py

Run it once for each release, before its tag; tests/test_frozen_models.py fails if it wasn't.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

import fourfold

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from saved_models import CASES, exported, made  # noqa: E402


def calls_of(name: str) -> list[dict[str, object]]:
    """Leaves of arguments and results of successive calls of one model."""
    model, case, found = made(name), CASES[name], []
    for size in case.sizes:
        args, kwargs = case.inputs(size)
        given = [
            leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves((args, kwargs))
        ]
        with torch.no_grad():
            results = pytree.tree_leaves(model(*args, **kwargs))
        found.append({"arguments": given, "names": list(kwargs), "results": results})
    return found


def main() -> None:
    folder = ROOT / "tests" / "data" / "models" / fourfold.__version__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in CASES:
        fourfold.save(exported(name), folder / f"{name}.ff")
        torch.save(calls_of(name), folder / f"{name}.pt")
    print(folder)


if __name__ == "__main__":
    main()
