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
    """Those of this build, which is for this machine alone unless FOURFOLD_CPU_LEVELS is ON."""
    built = fourfold._C.build_info()["cpu_levels"]
    return [level for level in LEVELS[: LEVELS.index(fourfold.cpu_capability())] if level in built]


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
    """The level that a library with these levels chooses on a CPU whose best is given, by default the highest."""

    def run(built: list[str], asked: str, answer: str, best: str = LEVELS[-1]) -> str:
        bits = sum(1 << LEVELS.index(level) for level in built)
        flags = ("-std=c++20", f"-DFOURFOLD_BUILT_LEVELS={bits}", "-I", ROOT / "cpp")
        source = ROOT / "tests" / "cpp" / "level.cpp"
        compile = (tool("g++", "g++"), *flags, source, "-o")
        folder = made_once(shared / f"level{bits}", lambda folder: output_of(*compile, folder / "choose"))
        return output_of(folder / "choose", asked, answer, LEVELS.index(best))

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
    assert choose(LEVELS, asked, answer) == chosen


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has these levels")
@pytest.mark.parametrize("built", [LEVELS[:1], LEVELS[:2], LEVELS[1:2], LEVELS[2:4]])
def test_a_level_that_was_not_built_is_not_chosen(choose, built: list[str]) -> None:
    assert choose(built, "", "granted") == f"{built[-1]} 0"
    for asked in set(LEVELS) - set(built):
        assert choose(built, asked, "granted") == (
            f"FOURFOLD_CPU_CAPABILITY is {asked}, but this CPU and this build of fourfold have: "
            f"{', '.join(built)}. Set it to one of these, or unset it. 0"
        )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has these levels")
@pytest.mark.parametrize(
    ("built", "best", "kernels"),
    [(["avx2"], "default", "avx2"), (["avx512", "avx512_bf16"], "avx2", "avx512 and avx512_bf16")],
)
def test_a_build_for_newer_processors_says_so(choose, built: list[str], best: str, kernels: str) -> None:
    assert choose(built, "", "granted", best) == (
        f"fourfold was built for other processors than this one, whose CPU level is {best}: its kernels are for "
        f"{kernels}. Build it on this processor, or for all with FOURFOLD_CPU_LEVELS=ON. 0"
    )
