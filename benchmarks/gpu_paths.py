"""Times the GPU kernels that an operator can choose from, each forced by FOURFOLD_GPU_PATH, at sizes around the
thresholds between them (cuda/launch.cuh, cuda/mlp.cu).

    python -m benchmarks.gpu_paths [--json FILE] [--quick] [--device cuda]

Each row is one size; a path that doesn't support it gives the reason. Times are medians of samples taken in turns, in
microseconds, with and without gradients, with the GPU's clocks right after the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import fourfold
from benchmarks import environment
from benchmarks.measure import Clock, seconds_per_call, summarise

VARIABLE = "FOURFOLD_GPU_PATH"
DTYPES = (torch.bfloat16, torch.float32)
RECURRENT = [(batch, size) for size in (64, 96, 128, 256, 512, 1024) for batch in (1, 16, 64, 128, 256)]
CELLS = [(16, 128), (64, 512), (256, 512), (256, 1024), (1024, 1024)]
NETWORKS = [(rows, width) for width in (16, 64, 128) for rows in (16, 256, 512, 2048, 1 << 14, 1 << 16)]


@dataclass(frozen=True)
class Work:
    operator: str
    sizes: dict[str, int]
    dtype: torch.dtype
    paths: tuple[str, ...]
    arguments: tuple[Tensor, ...]

    @property
    def facts(self) -> dict[str, Any]:
        return {"operator": self.operator, "sizes": self.sizes, "dtype": str(self.dtype).removeprefix("torch.")}

    def calls(self) -> dict[str, Callable[[], Any]]:
        function = getattr(fourfold, self.operator)
        leaves = tuple(argument.detach().requires_grad_() for argument in self.arguments)

        def with_gradients() -> None:
            result = function(*leaves)
            torch.autograd.grad((result if isinstance(result, Tensor) else result[0]).sum(), leaves)

        return {"forward": lambda: function(*self.arguments), "with gradients": with_gradients}


def works(device: torch.device, quick: bool) -> Iterator[Work]:
    def work(dtype: torch.dtype, operator: str, paths: str, sizes: dict[str, int], *shapes: tuple[int, ...]) -> Work:
        drawn = (torch.randn(shape, device=device, dtype=dtype) * shape[-1] ** -0.5 for shape in shapes)
        return Work(operator, sizes, dtype, tuple(paths.split()), tuple(drawn))

    def cell(batch: int, size: int) -> tuple[tuple[int, ...], ...]:
        return (batch, size), (batch, size), (3 * size, 2 * size), (3 * size,)

    few = 2 if quick else None
    for dtype in DTYPES:
        for batch, size in RECURRENT[:few]:
            sizes = {"time": 64, "batch": batch, "hidden_size": size}
            yield work(dtype, "lltm", "block persistent step vendor", sizes, (64, batch, size), *cell(batch, size))
        for batch, size in CELLS[:few]:
            sizes = {"batch": batch, "hidden_size": size}
            yield work(dtype, "lltm_cell", "step vendor", sizes, (batch, size), *cell(batch, size))
        for rows, width in NETWORKS[:few]:
            layer = ((width, width), (1, width))
            yield work(dtype, "mlp", "fused vendor", {"rows": rows, "width": width}, (rows, width), *layer, *layer)


def measure(work: Work, clock: Clock, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each phase: the paths' medians in microseconds, or why one doesn't support this size."""
    for phase, call in work.calls().items():
        samples, refused = {}, {}
        for path in work.paths:
            os.environ[VARIABLE] = path
            try:
                call()
                samples[path] = []
            except RuntimeError as why:
                if "demands" not in str(why):
                    raise
                refused[path] = str(why)
        for _ in range(repeats):
            for path, taken in samples.items():
                os.environ[VARIABLE] = path
                taken.append(1e6 * seconds_per_call(clock, call, 5))
        medians = {path: summarise(taken).median for path, taken in samples.items()}
        yield {**work.facts, "phase": phase, "microseconds": medians, "refused": refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to FILE, as it is taken")
    parser.add_argument("--quick", action="store_true", help="two sizes of each, five samples")
    arguments = parser.parse_args()
    device, repeats = arguments.device, 5 if arguments.quick else 20
    clock = Clock(device)
    contents = {"paths": VARIABLE, "facts": environment.collect(repeats, device), "rows": []}
    with mock.patch.dict(os.environ):  # restored afterwards
        for work in works(device, arguments.quick):
            for row in measure(work, clock, repeats):
                row["clocks"] = environment.clocks(device)
                contents["rows"].append(row)
                print(line_of(row), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def line_of(row: dict[str, Any]) -> str:
    sizes = " ".join(f"{name} {value}" for name, value in row["sizes"].items())
    figures = [f"{path} {value:.1f} µs" for path, value in row["microseconds"].items()]
    figures += [f"{path} can't" for path in row["refused"]]
    at = f"  at {row['clocks']['clock_sm']}" if row["clocks"] and row["clocks"]["clock_sm"] else ""
    return f"{row['operator']} {sizes} {row['dtype']}, {row['phase']}: {', '.join(figures)}{at}"


if __name__ == "__main__":
    main()
