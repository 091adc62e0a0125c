"""Randomly changed model files are rejected or run; they never crash the process. `make sanitize-address` runs this
under AddressSanitizer, with FOURFOLD_FUZZ_SECONDS for longer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fourfold
from fourfold import _native

pytestmark = pytest.mark.skipif(_native.module is None, reason="needs the module for this torch")

SECONDS = float(os.environ.get("FOURFOLD_FUZZ_SECONDS") or 6)
SCRIPT = Path(__file__).parent / "fuzz_models.py"


FROZEN = Path(__file__).parent / "data" / "models" / fourfold.__version__
SEEDS = Path(os.environ.get("FOURFOLD_FUZZ_SEEDS") or FROZEN)  # model files, each with calls


@pytest.mark.parametrize("seed", [1, 2])
def test_changed_files_crash_nothing(tmp_path: Path, seed: int) -> None:
    for file in SEEDS.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ran = subprocess.run(
        [sys.executable, *["-S"] * sys.flags.no_site, str(SCRIPT), tmp_path, str(SECONDS), str(seed)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"{tmp_path / 'current.ff'}: {ran.stdout[-1000:]}{ran.stderr[-4000:]}"
    counts = ast.literal_eval(ran.stdout.partition(" ")[2])
    assert {"refused", "ran"} <= counts.keys(), counts
