"""AMD's run-time compiler."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch

from fourfold.devices.runtime_compiler import Installed, RuntimeCompiler, first_library

# ROCm 5 has these functions in the runtime's library too, and Debian only there.
SONAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so", "libamdhip64.so.5")
# Results equal those of the same operations one by one.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off")


class Hiprtc(RuntimeCompiler):
    def __init__(self, path: str | Path):
        super().__init__(path, "hiprtc")
        self._lock = threading.Lock()  # hipRTC's documentation doesn't promise thread safety

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        """A module for the runtime: code for ``gfx90a`` or another architecture.

        Raises:
            CompilationError: the source is not HIP C++, or the compiler doesn't know the architecture.
        """
        with self._lock:
            return self.compiled(source, name, (f"--offload-arch={architecture}", *OPTIONS), "Code")


def _library() -> str | None:
    roots = [os.environ.get(name) for name in ("ROCM_PATH", "ROCM_HOME")]
    folders = [Path(torch.__file__).parent / "lib", *(Path(root) / "lib" for root in (*roots, "/opt/rocm") if root)]
    return first_library(SONAMES, [path for folder in folders if (path := folder / "libhiprtc.so").exists()])


installed = Installed(
    Hiprtc,
    _library,
    "AMD's run-time compiler was not found: install ROCm's package hiprtc, or set ROCM_PATH",
)
