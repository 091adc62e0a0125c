"""Sets how the demo's threads wait for each other, which must happen before torch loads OpenMP."""

import os
import sys
import time
from pathlib import Path

BUSY = 0.15  # of all CPUs, by other processes
SECONDS = 0.3


def prepare_demo() -> None:
    """Makes waiting threads sleep if `python -m fourfold demo` shares the CPUs with other processes. Spinning threads,
    which are faster on an idle machine, would keep each other from running: plain PyTorch and fourfold take twice as
    long."""
    chosen = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"))
    if asked_for_demo(sys.orig_argv) and "torch" not in sys.modules and not chosen and busy() > BUSY:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def asked_for_demo(words: list[str]) -> bool:
    return any(words[k : k + 3] == ["-m", "fourfold", "demo"] for k in range(len(words)))


def busy(seconds: float = SECONDS) -> float:
    """The part of all CPUs' time that others use while this process sleeps; 0 on a system that doesn't report it."""
    before = _times()
    if before is None:
        return 0.0
    time.sleep(seconds)
    working, passed = (after - earlier for after, earlier in zip(_times() or before, before, strict=True))
    return working / passed if passed > 0 else 0.0


def _times() -> tuple[int, int] | None:
    """The CPUs' working time and their total time since the system's start, in ticks."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    user, nice, system, idle, waiting, *others = map(int, line.split()[1:9])
    working = user + nice + system + sum(others)
    return working, working + idle + waiting
