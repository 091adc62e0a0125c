"""The values once more, on each CPU level below the one in use: a level is chosen when a process starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fourfold

LEVELS = ["default", "avx2", "avx512", "avx512_bf16", "amx"]


def lower_levels() -> list[str]:
    return LEVELS[: LEVELS.index(fourfold.cpu_capability())]


@pytest.mark.parametrize("level", lower_levels())
def test_values_on_a_lower_level(level: str) -> None:
    here = Path(__file__).parent
    # What the levels above avx512 add is in bfloat16 alone.
    cases = "bfloat16 and not 64_bit" if LEVELS.index(level) >= LEVELS.index("avx512") else "not 64_bit"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", cases]
        + [str(here / "test_values.py"), str(here / "test_gradients.py") + "::test_raw_operator"],
        env=os.environ | {"FOURFOLD_CPU_CAPABILITY": level},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


@pytest.mark.parametrize("level", lower_levels())
def test_the_environment_chooses_the_level(level: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import fourfold; print(fourfold.cpu_capability())"],
        env=os.environ | {"FOURFOLD_CPU_CAPABILITY": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == level
