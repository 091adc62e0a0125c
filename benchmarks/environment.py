"""What a measurement is reported with: versions, the machine, its load, and the GPU's driver and clocks. Clocks are
read, never set."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fourfold
from benchmarks.measure import ENOUGH_REPEATS
from fourfold import _C
from fourfold.cli import timing

GPU_FACTS = {
    "driver": "driver_version",
    "clock_sm": "clocks.sm",
    "clock_memory": "clocks.mem",
    "largest_clock_sm": "clocks.max.sm",
    "largest_clock_memory": "clocks.max.mem",
    "power_limit": "power.limit",
    "temperature": "temperature.gpu",
}


def collect(repeats: int, device: torch.device) -> dict[str, Any]:
    """All of it, collected before anything runs."""
    load = timing.load_average()
    facts = {
        "fourfold": fourfold.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cpu_level": fourfold.cpu_capability(),
        "device": device.type,
        "load_average": load,
        "noisy": timing.is_noisy(load),
        "repeats": repeats,
        "trial": repeats < ENOUGH_REPEATS,
    }
    return {**facts, "gpu": gpu(device)} if device.type == "cuda" else facts


def gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda or f"none, ROCm {torch.version.hip}",
        "cudnn": torch.backends.cudnn.version(),
        "fourfold_kernels": _C.backends()["hip" if torch.version.hip else "cuda"][1],
        **nvidia_smi(uuid(device)),
    }


def uuid(device: torch.device) -> str:
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def said_by(command: Sequence[str]) -> str:
    """A program's output; empty if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def nvidia_smi(uuid: str) -> dict[str, str | None]:
    """Driver, clocks and limits of one GPU, as nvidia-smi prints them; None for each that it doesn't report."""
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FACTS.values())}", "--format=csv,noheader"]
    if uuid:  # torch may number the GPUs differently
        command.append(f"--id={uuid if uuid.startswith('GPU-') else f'GPU-{uuid}'}")
    values = [value.strip() for value in next(csv.reader(said_by(command).splitlines()), [])]
    known = values if len(values) == len(GPU_FACTS) else [None] * len(GPU_FACTS)
    return dict(zip(GPU_FACTS, known, strict=True))


def clocks(device: torch.device) -> dict[str, str | None] | None:
    """A CUDA device's clocks now; called right after a measurement, those of the measurement. None for other
    devices."""
    if device.type != "cuda":
        return None
    said = nvidia_smi(uuid(device))
    return {name: said[name] for name in ("clock_sm", "clock_memory", "temperature")}


def commit() -> str | None:
    """The source tree's commit: from git, or from FOURFOLD_COMMIT where the sources were copied without .git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    return os.environ.get("FOURFOLD_COMMIT") or said_by(command) or None


def opening(facts: Mapping[str, Any]) -> str:
    versions = f"fourfold {facts['fourfold']}, torch {facts['torch']}, Python {facts['python']}, {facts['platform']}"
    load = "not kept by this system" if facts["load_average"] is None else f"{facts['load_average']:.2f}"
    where = f"its {facts['cpu_level']} kernels" if facts["device"] == "cpu" else f"on {facts['device']}"
    lines = [versions, f"{facts['processor']}; fourfold runs {where}"]
    if card := facts.get("gpu"):
        driver, sm, memory = (card[name] or "unknown" for name in ("driver", "clock_sm", "clock_memory"))
        lines.append(f"{card['name']}, driver {driver}, CUDA {card['cuda']}, cuDNN {card['cudnn']}")
        lines.append(f"clocks at the start {sm}, memory {memory}; fourfold's kernels: {card['fourfold_kernels']}")
    lines.append(f"{facts['repeats']} repeats, load average {load}")
    if facts["noisy"]:
        lines.append(f"NOISY: the load average was above {timing.NOISY_LOAD} at the start; don't quote these figures.")
    if facts["trial"]:
        lines.append(f"TRIAL: fewer than {ENOUGH_REPEATS} repeats; don't quote these figures.")
    return "\n".join(lines)


def processor() -> str:
    """The processor's name and its relevant vector extensions."""
    path = Path("/proc/cpuinfo")
    if platform.system() == "Darwin":
        chip = said_by(["sysctl", "-n", "machdep.cpu.brand_string"])
        return f"{chip or platform.machine()}, macOS {platform.mac_ver()[0]}"
    if not path.exists():
        return f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    present = (facts.get("flags") or facts.get("Features") or "").split()
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")
    return ", ".join([facts.get("model name", platform.machine()), *(name for name in wanted if name in present)])
