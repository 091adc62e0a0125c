"""FOURFOLD_SHARD=2/4 runs the second of four shards: of the tests with the marker `sweep`, many cases of one check,
every fourth case; of the tests with the marker `slow`, those in every fourth file; and of check_backends.py's
builds, every fourth. Without it everything runs.

.ci/run, which runs all its parts on one machine, takes another shard for each commit.
"""

from __future__ import annotations

import os
import re

# Builds that are not in every shard. Of the simulator: CUDA's kernels without a sanitizer ("plain") and for warps of
# 64, Metal's without a sanitizer ("metal"), and both with one ("checked", "thread"). And those for other platforms and
# for the oldest CUDA. A line each for the shards of four, which take about the same time.
BUILDS = (
    ("plain", "Windows"),
    ("checked", "CUDA 12.8"),
    ("thread", "warp64", "HIP"),
    ("metal", "macOS"),
)


def place() -> tuple[int, int]:
    """The shard's number, from 0, and the number of shards."""
    text = os.environ.get("FOURFOLD_SHARD", "1/1")
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"expected FOURFOLD_SHARD to be a shard and the number of shards, such as 2/4, but got {text}")
    return int(found[1]) - 1, int(found[2])


def has(build: str) -> bool:
    """Whether this shard runs what needs the build; every shard runs what needs none of BUILDS."""
    number, count = place()
    return all(line % count == number for line, names in enumerate(BUILDS) if build in names)


def share(names: list[str]) -> list[str]:
    """This shard's cases of a sweep, or files with slow tests. Neighbours by name, such as the dtypes of an operator,
    are in different shards."""
    number, count = place()
    return sorted(names)[number::count]
