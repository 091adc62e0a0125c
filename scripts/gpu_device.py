"""The GPUs that check_gpu.py builds for, tests and measures: their properties, and the differences in the procedure."""

from __future__ import annotations

import abc
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

from backend_report import BACKENDS

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Device(abc.ABC):
    name: str
    torch: str

    backend: ClassVar[str]  # as fourfold.backends() names it
    where: ClassVar[str] = "cuda"  # torch's device type
    # Test files that need the GPU, with pytest's selection; the most important first.
    tests: ClassVar[dict[str, tuple[str, ...]]] = {
        "gpu": (),
        "values": ("-k", "cuda"),
        "gradients": ("-k", "cuda"),
        "gpu_programs": (),
        "compiler_operators": (),
    }
    # The precisions of the suite ``sequence``, the most important first.
    precisions: ClassVar[tuple[str, ...]] = ("bfloat16", "tf32", "float16", "float32")

    @property
    def slug(self) -> str:
        """NVIDIA H100 80GB HBM3 -> h100-80gb-hbm3, for file names."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower().removeprefix("nvidia ")).strip("-")

    @abc.abstractmethod
    def describe(self) -> str:
        """The description that is printed first."""

    def build_environment(self) -> dict[str, str]:
        """Environment variables that describe this GPU to the kernels' compiler."""
        return {}

    def build_settings(self) -> dict[str, str]:
        """Requires this backend and disables the others."""
        return {f"FOURFOLD_{name.upper()}": "ON" if name == self.backend else "OFF" for name in BACKENDS}


@dataclass(frozen=True)
class Nvidia(Device):
    capability: str
    driver: str | None
    cuda: str
    toolkit: str | None

    backend = "cuda"

    def describe(self) -> str:
        return (
            f"{self.name}, compute capability {self.capability}, driver {self.driver or 'unknown'}\n"
            f"torch {self.torch} for CUDA {self.cuda}; CUDA toolkit {self.toolkit or 'not found'}"
        )

    def build_environment(self) -> dict[str, str]:
        return {"TORCH_CUDA_ARCH_LIST": self.capability}


@dataclass(frozen=True)
class Amd(Device):
    gfx: str
    rocm: str

    backend = "hip"
    precisions = ("bfloat16", "float16", "float32")

    def describe(self) -> str:
        return f"{self.name}, {self.gfx}\ntorch {self.torch} for ROCm {self.rocm}"

    def build_environment(self) -> dict[str, str]:
        return {"PYTORCH_ROCM_ARCH": self.gfx}


@dataclass(frozen=True)
class Apple(Device):
    macos: str
    cores: str | None

    backend = "metal"
    where = "mps"
    tests = {"values": ("-k", "mps"), "gradients": ("-k", "mps"), "gpu_programs": (), "compiler_operators": ()}
    precisions = ("bfloat16", "float16", "float32")

    def describe(self) -> str:
        return f"{self.name}, {self.cores or 'unknown'} GPU cores, macOS {self.macos}\ntorch {self.torch}"


def stop(sentence: str) -> NoReturn:
    sys.exit(f"check_gpu: {sentence}")


def find_device(where: str) -> Device:
    """Exits with an error if torch has no such GPU."""
    try:
        import torch
    except ImportError:
        stop(f"expected a Python with torch, but {sys.executable} has none; install one that is built for this GPU.")
    if where == "mps":
        if not torch.backends.mps.is_available():
            stop(f"expected a Mac with a GPU, but torch {torch.__version__} sees none; it has to be a build for macOS.")
        name = output_of("sysctl", "-n", "machdep.cpu.brand_string") or "Apple GPU"
        return Apple(name, torch.__version__, platform.mac_ver()[0], gpu_cores())
    if not torch.version.cuda and not torch.version.hip:
        stop(f"expected a CUDA or ROCm build of torch, but torch {torch.__version__} is built for neither.")
    if not torch.cuda.is_available():
        stop(f"expected a GPU, but torch {torch.__version__} sees none; nvidia-smi and rocm-smi show what drivers see.")
    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        gfx = properties.gcnArchName.partition(":")[0]
        return Amd(properties.name, torch.__version__, gfx, torch.version.hip)
    return Nvidia(
        properties.name,
        torch.__version__,
        f"{properties.major}.{properties.minor}",
        output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        torch.version.cuda,
        toolkit(),
    )


def gpu_cores() -> str | None:
    said = output_of("ioreg", "-rc", "AGXAccelerator", all_lines=True) or ""
    found = re.search(r'"gpu-core-count" = (\d+)', said)
    return found and found[1]


def toolkit() -> str | None:
    nvcc = find_tool("nvcc")
    release = re.search(r"release (\S+?),", output_of(nvcc, "--version", all_lines=True) or "") if nvcc else None
    return release and release[1]


def find_tool(name: str) -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    return shutil.which(name, path=os.pathsep.join(folders))


def output_of(*command: str, all_lines: bool = False) -> str | None:
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return said if all_lines else next(iter(said.splitlines()), None)
