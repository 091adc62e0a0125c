"""Random cases, other ones in each run: from FOURFOLD_SEED on, as many as FOURFOLD_SWEEP_SECONDS allow each sweep.

A failed test ends its output with the seed of its case; with that as FOURFOLD_SEED it is the first case.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator

# Processes that the tests start, and pytest-xdist's workers, draw the same.
FIRST = int(os.environ.setdefault("FOURFOLD_SEED", str(random.SystemRandom().randrange(10**6))))
USUAL = 5
SECONDS = float(os.environ.setdefault("FOURFOLD_SWEEP_SECONDS", str(USUAL)))


def said() -> str:
    return f"random cases: FOURFOLD_SEED={FIRST}, {SECONDS:g} seconds each (FOURFOLD_SWEEP_SECONDS)"


def of_this_run(least: int = 1) -> Iterator[int]:
    """Seeds until the time is over, but at least so many."""
    end = time.monotonic() + SECONDS
    for count in itertools.count():
        if count >= least and time.monotonic() > end:
            return
        print(f"FOURFOLD_SEED={FIRST + count}", flush=True)
        yield FIRST + count


def so_many(usual: int, behind: int = 0) -> tuple[int, int]:
    """The first seed and the end of a sweep that needs to know its number of cases: `usual` of them in the usual time.
    behind: seeds that other sweeps of the same cases use."""
    first = FIRST + behind
    return first, first + max(1, round(usual * SECONDS / USUAL))
