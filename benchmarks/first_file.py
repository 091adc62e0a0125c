"""Run of a saved model in a fresh process: ``python -m benchmarks.first_file WAY FILE INPUTS RESULTS``.

Prints milliseconds as JSON, on one thread: importing torch, importing what else the way needs and loading, the first
call, and the fastest warm call. Of the way "model", plain PyTorch's of the published model FILE, also the memory of its
weights and calls in MB.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_SECONDS = 1.5


def load(way: str, file: str) -> Callable[..., Any]:
    import torch

    if way == "model":
        from benchmarks.published import plain

        return plain(file)
    if way == "fourfold":
        import fourfold

        return fourfold.load(file)
    if way == "torch.export":
        import fourfold.nn  # noqa: F401

        return torch.export.load(file).module()
    import fourfold  # noqa: F811

    return torch._inductor.aoti_load_package(file)


def resident() -> int:
    """Resident memory in bytes; later :func:`most_resident` is the most since now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def most_resident() -> int:
    return status("VmHWM")


def status(name: str) -> int:
    """Of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    start = time.perf_counter()
    import torch

    milliseconds = {"import torch": 1e3 * (time.perf_counter() - start)}
    way, file, inputs, results = sys.argv[1:]
    torch.set_num_threads(1)
    args = torch.load(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the models' own
        start = time.perf_counter()
        model = load(way, file)
        milliseconds["load"] = 1e3 * (time.perf_counter() - start)
        before = resident() if way == "model" else 0
        start = time.perf_counter()
        found = model(*args)
        milliseconds["first call"] = 1e3 * (time.perf_counter() - start)
        torch.save(torch.utils._pytree.tree_leaves(found), results)
        for _ in range(3):
            model(*args)
        if way == "fourfold":
            import fourfold

            fourfold.wait_for_nests()
        best, end = float("inf"), time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter()
            model(*args)
            best = min(best, 1e3 * (time.perf_counter() - start))
        if way == "model":
            weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
            milliseconds["memory"] = (most_resident() - before + weights) / 1e6
    print(json.dumps(milliseconds | {"warm call": best}))


if __name__ == "__main__":
    main()
