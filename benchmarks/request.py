"""The command line's settings for a suite."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fourfold
from benchmarks.problem import FLOAT32, PRECISIONS, Precision
from fourfold.cli.usage import UsageError, output_directory, usable_device

SLOW_TO_BUILD = frozenset({"aten", "inductor"})  # left out by --quick


@dataclass(frozen=True)
class Request:
    """Where a field is empty, the suite chooses."""

    suite: str
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
        """Built from the command line's options. Raises UsageError if this machine doesn't support them."""
        suite, quick, plots = options["suite"], options["quick"], options.get("plots")
        device = device_with_kernels(suite, options.get("device") or "cpu")
        if device.type != "cpu" and options.get("threads"):
            raise UsageError(f"{suite}: expected --threads only with --device cpu, but got {device}")
        precisions = [PRECISIONS[name] for name in options.get("dtype") or ()]
        if device.type != "cuda" and any(precision.tf32 for precision in precisions):
            raise UsageError(f"{suite}: expected --dtype tf32 only with --device cuda, but got {device}")
        if plots is not None:
            if importlib.util.find_spec("matplotlib") is None:
                raise UsageError(f"{suite}: expected matplotlib for --plots, but it is missing: pip install matplotlib")
            output_directory(suite, "--plots", plots, "speedup.png")
        return cls(
            suite,
            {name: options[name] for name in options["size_names"] if options[name] is not None},
            device,
            precisions,
            options.get("threads") or ([1] if quick or device.type != "cpu" else [1, 2]),
            options.get("repeats") or (5 if quick else 40),
            quick,
            frozenset(options.get("skip") or ()) | (SLOW_TO_BUILD if quick and device.type == "cpu" else frozenset()),
            options["json"],
            plots,
            options.get("kinds") or (),
        )

    def chosen(self, sizes: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
        """The requested sizes, completed from the first of the list; if none are requested, the list, or with quick its
        first."""
        return [{**size, **self.sizes} for size in (sizes[:1] if self.sizes or self.quick else sizes)]

    def precisions_or(self, on_gpu: Sequence[str], on_cpu: Sequence[str] = (FLOAT32.name,)) -> list[Precision]:
        """The requested precisions, or else the device's. TF32 is for NVIDIA only."""
        chosen = [PRECISIONS[name] for name in (on_cpu if self.device.type == "cpu" else on_gpu)]
        return list(self.precisions) or [p for p in chosen if self.device.type == "cuda" or not p.tf32]


def device_with_kernels(suite: str, name: str) -> torch.device:
    """The device of that name, if this build of fourfold has kernels for it."""
    device = usable_device(suite, name)
    if device.type != "cpu":
        hip = "hip" if torch.version.hip else "cuda"  # torch calls AMD's GPUs cuda too
        backend, words = ("metal", "Metal") if device.type == "mps" else (hip, hip.upper())
        state = fourfold.backends()[backend]
        if not state["usable"]:
            raise UsageError(f"{suite}: expected a fourfold with {words} kernels, but of them: {state['reason']}")
    return device
