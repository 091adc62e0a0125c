"""What the command line asks of a benchmark."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fourfold
from benchmarks.precision import FLOAT32, PRECISIONS, Precision
from fourfold.cli.usage import UsageError, output_directory, usable_device

SLOW_TO_BUILD = frozenset({"aten", "inductor"})  # what a quick look does without


@dataclass(frozen=True)
class Request:
    """One benchmark's sizes, where and in what it runs, how it is measured; what is empty is the benchmark's choice."""

    benchmark: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")
    precisions: Sequence[Precision] = ()
    threads: Sequence[int] = (1,)
    repeats: int = 40
    quick: bool = False
    skip: Collection[str] = ()
    json_file: Path | None = None
    plots: Path | None = None
    kinds: Sequence[str] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Request:
        """From the command line's options, under its names. Raises UsageError for what can't be met on this machine."""
        benchmark, quick = options["benchmark"], options["quick"]
        device = device_with_kernels(benchmark, options.get("device") or "cpu")
        if device.type != "cpu" and options.get("threads"):
            raise UsageError(f"{benchmark}: expected --threads only with --device cpu, but got {device}")
        precisions = [PRECISIONS[name] for name in options.get("dtype") or ()]
        if device.type != "cuda" and any(precision.tf32 for precision in precisions):
            raise UsageError(f"{benchmark}: expected --dtype tf32 only with --device cuda, but got {device}")
        if options.get("plots") is not None and importlib.util.find_spec("matplotlib") is None:
            raise UsageError(f"{benchmark}: expected matplotlib for --plots, but it is missing: pip install matplotlib")
        if options.get("plots") is not None:
            output_directory(f"{benchmark}", "--plots", options["plots"], "speedup.png")
        sizes = {name: options[name] for name in options["size_names"] if options[name] is not None}
        return cls(
            benchmark,
            sizes,
            device,
            precisions,
            options.get("threads") or ([1] if quick or device.type != "cpu" else [1, 2]),
            options.get("repeats") or (5 if quick else 40),
            quick,
            frozenset(options.get("skip") or ()) | (SLOW_TO_BUILD if quick and device.type == "cpu" else frozenset()),
            options["json"],
            options.get("plots"),
            options.get("kinds") or (),
        )

    def precisions_or(self, names: Sequence[str], on_cpu: Sequence[str] = (FLOAT32.name,)) -> list[Precision]:
        """What was asked for; else the former on a GPU, of which only NVIDIA's have TF32, and the latter on the CPU."""
        chosen = [PRECISIONS[name] for name in (on_cpu if self.device.type == "cpu" else names)]
        return list(self.precisions) or [p for p in chosen if self.device.type == "cuda" or not p.tf32]


def device_with_kernels(benchmark: str, name: str) -> torch.device:
    """The device of that name, where this fourfold has kernels for it."""
    device = usable_device(benchmark, name)
    if device.type != "cpu":
        backend = backend_of(device)
        state = fourfold.backends()[backend]
        if not state["usable"]:
            words = {"cuda": "CUDA", "hip": "HIP", "metal": "Metal"}[backend]
            raise UsageError(f"{benchmark}: expected a fourfold with {words} kernels, but of them: {state['reason']}")
    return device


def backend_of(device: torch.device) -> str:
    """As fourfold.backends() names it; torch calls AMD's GPUs cuda too."""
    return "metal" if device.type == "mps" else "hip" if torch.version.hip else "cuda"
