"""FOURFOLD_SHARD=2/3 runs the second of three shards: of the tests with the marker `sweep`, many cases of one check,
every third case; and of the simulator's builds beside the plain ones, every third. Without it everything runs.

.ci/run, which runs all its parts on one machine, takes another shard for each commit.
"""

from __future__ import annotations

import os
import re

# The simulator's builds beside the plain one with 32 threads per warp.
BUILDS = ("checked", "thread", "warp64")


def place() -> tuple[int, int]:
    """The shard's number, from 0, and the number of shards."""
    text = os.environ.get("FOURFOLD_SHARD", "1/1")
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"expected FOURFOLD_SHARD to be a shard and the number of shards, such as 2/3, but got {text}")
    return int(found[1]) - 1, int(found[2])


def has(build: str) -> bool:
    """Whether this shard runs what needs the simulator's build; every shard runs what needs the plain one."""
    number, count = place()
    return build not in BUILDS or BUILDS.index(build) % count == number


def share(names: list[str]) -> list[str]:
    """This shard's cases of a sweep. Neighbours by name, such as the dtypes of an operator, are in different shards."""
    number, count = place()
    return sorted(names)[number::count]
