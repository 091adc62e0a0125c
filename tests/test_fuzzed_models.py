"""Randomly changed model files are rejected or run; they never crash the process. `make sanitize-address` runs this
under AddressSanitizer, for longer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fourfold
import seeds

SCRIPT = Path(__file__).parent / "fuzz_models.py"


FROZEN = Path(__file__).parent / "data" / "models" / fourfold.__version__
ORIGINALS = Path(os.environ.get("FOURFOLD_FUZZED_MODELS") or FROZEN)  # model files, each with calls


@pytest.mark.parametrize("process", [0, 1])
def test_changed_files_crash_nothing(tmp_path: Path, process: int) -> None:
    for file in ORIGINALS.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ran = subprocess.run(
        [
            sys.executable,
            *["-S"] * sys.flags.no_site,
            str(SCRIPT),
            tmp_path,
            str(seeds.SECONDS),
            str(seeds.FIRST + process),
        ],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"{tmp_path / 'current.ff'}: {ran.stdout[-1000:]}{ran.stderr[-4000:]}"
    counts = ast.literal_eval(ran.stdout.partition(" ")[2])
    assert {"refused", "ran"} <= counts.keys(), counts
