"""The values on each CPU level below the one in use; the level is chosen when a process starts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fourfold
from machine import ROOT, output_of, tool
from once import made_once

pytestmark = pytest.mark.slow

LEVELS = ["default", "avx2", "avx512", "avx512_bf16", "amx"]


def lower_levels() -> list[str]:
    return LEVELS[: LEVELS.index(fourfold.cpu_capability())]


@pytest.mark.parametrize("level", lower_levels())
def test_values_on_a_lower_level(level: str) -> None:
    here = Path(__file__).parent
    # A level's code doesn't handle layouts, only addresses, which one test shifts; and the levels above avx512 only add
    # bfloat16.
    cases = "not strided and (not shifted or may_be_shifted) and not 64_bit"
    cases += " and (bfloat16 or test_the_level)" if LEVELS.index(level) >= LEVELS.index("avx512") else ""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", cases]
        + [str(here / "test_values.py"), str(here / "test_gradients.py") + "::test_raw_operator"]
        + [str(here / "test_import.py") + "::test_the_level_is_the_one_that_is_asked_for"],
        env=os.environ | {"FOURFOLD_CPU_CAPABILITY": level},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


@pytest.fixture(scope="module")
def choose(shared: Path) -> Callable[..., str]:
    """The level that a library with so many levels chooses on a CPU that supports all."""

    def run(built: int, asked: str, answer: str) -> str:
        flags = ("-std=c++20", f"-DFOURFOLD_CPU_LEVEL_COUNT={built}", "-I", ROOT / "cpp")
        source = ROOT / "tests" / "cpp" / "level.cpp"
        compile = (tool("g++", "g++"), *flags, source, "-o")
        folder = made_once(shared / f"level{built}", lambda folder: output_of(*compile, folder / "choose"))
        return output_of(folder / "choose", asked, answer)

    return run


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has these levels")
@pytest.mark.parametrize(
    ("asked", "answer", "chosen"),
    [
        ("", "granted", "amx 1"),
        ("amx", "granted", "amx 1"),
        ("avx512_bf16", "granted", "avx512_bf16 0"),
        ("default", "granted", "default 0"),
        ("", "refused", "avx512_bf16 1"),
        ("avx2", "refused", "avx2 0"),
        (
            "amx",
            "refused",
            "FOURFOLD_CPU_CAPABILITY is amx, but this CPU and this build of fourfold have: default, avx2, avx512, "
            "avx512_bf16. Set it to one of these, or unset it. 1",
        ),
    ],
)
def test_tiles_are_asked_for_only_where_they_are_used(choose, asked: str, answer: str, chosen: str) -> None:
    assert choose(5, asked, answer) == chosen


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has these levels")
@pytest.mark.parametrize("built", [1, 2, 3, 4])
def test_a_level_that_was_not_built_is_not_chosen(choose, built: int) -> None:
    assert choose(built, "", "granted") == f"{LEVELS[built - 1]} 0"
    assert choose(built, LEVELS[built], "granted") == (
        f"FOURFOLD_CPU_CAPABILITY is {LEVELS[built]}, but this CPU and this build of fourfold have: "
        f"{', '.join(LEVELS[:built])}. Set it to one of these, or unset it. 0"
    )
