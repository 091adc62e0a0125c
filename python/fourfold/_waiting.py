"""How the demo's threads wait for each other, which has to be said before torch loads OpenMP."""

import os
import sys
import time
from pathlib import Path

BUSY = 0.15  # of all CPUs, by other processes
SECONDS = 0.3


def prepare_demo() -> None:
    """Where `python -m fourfold demo` shares the CPUs, threads that wait give theirs away. Spinning, which is faster on
    an idle machine, they would keep each other from running: plain PyTorch's take twice as long, and fourfold's too."""
    chosen = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"))
    if asked_for_demo(sys.orig_argv) and "torch" not in sys.modules and not chosen and busy() > BUSY:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def asked_for_demo(words: list[str]) -> bool:
    return any(words[k : k + 3] == ["-m", "fourfold", "demo"] for k in range(len(words)))


def busy(seconds: float = SECONDS) -> float:
    """The part of all CPUs' time that others take while this process sleeps; 0 on a system that doesn't tell."""
    before = _times()
    if before is None:
        return 0.0
    time.sleep(seconds)
    working, passed = (after - earlier for after, earlier in zip(_times() or before, before, strict=True))
    return working / passed if passed > 0 else 0.0


def _times() -> tuple[int, int] | None:
    """What all CPUs have worked and what has passed since the start, in ticks."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    user, nice, system, idle, waiting, *others = map(int, line.split()[1:9])
    working = user + nice + system + sum(others)
    return working, working + idle + waiting
