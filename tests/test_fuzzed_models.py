"""Files of models that were changed at random are refused or run; they never crash the process. `make sanitize-address`
runs this under AddressSanitizer, and FOURFOLD_FUZZ_SECONDS for longer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fourfold
from fourfold import _native
from saved_models import CASES, exported

pytestmark = pytest.mark.skipif(_native.module is None, reason="needs the module for this torch")

SECONDS = float(os.environ.get("FOURFOLD_FUZZ_SECONDS") or 6)
SCRIPT = Path(__file__).parent / "fuzz_models.py"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models in files, each with calls. FOURFOLD_FUZZ_SEEDS names a folder of such, made by another Python."""
    if given := os.environ.get("FOURFOLD_FUZZ_SEEDS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("seeds")
    for name, case in CASES.items():
        fourfold.save(exported(name), folder / f"{name}.ff")
        torch.save([case.inputs(size) for size in case.sizes[:2]], folder / f"{name}.pt")
    return folder


@pytest.mark.parametrize("seed", [1, 2])
def test_changed_files_crash_nothing(seeds: Path, tmp_path: Path, seed: int) -> None:
    for file in seeds.iterdir():
        if file.stem != "current":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    ran = subprocess.run(
        [sys.executable, *sys.orig_argv[1:2][: sys.flags.no_site], str(SCRIPT), tmp_path, str(SECONDS), str(seed)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"{tmp_path / 'current.ff'}: {ran.stdout[-1000:]}{ran.stderr[-4000:]}"
    counts = ast.literal_eval(ran.stdout.partition(" ")[2])
    assert {"refused", "ran"} <= counts.keys(), counts
