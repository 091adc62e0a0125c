"""NVIDIA's run-time compiler."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path

import torch

from fourfold.devices.runtime_compiler import CompilationError, Installed, RuntimeCompiler, first_library

MAJORS = (13, 12)
OLDEST = (12, 6)  # of the oldest CUDA for which there is a torch 2.10
# Results equal those of the same operations one by one; division, roots and subnormal numbers are exact by default.
OPTIONS = ("-std=c++17", "--fmad=false")


class Nvrtc(RuntimeCompiler):
    def __init__(self, path: str | Path):
        super().__init__(path, "nvrtc")
        # NVRTC 13.0 doesn't look for this library in its own folder, but uses one that is loaded.
        version = ".".join(map(str, self.version))
        with contextlib.suppress(OSError):
            self._builtins = ctypes.CDLL(str(self.path().with_name(f"libnvrtc-builtins.so.{version}")))
        self._call("GetNumSupportedArchs", 0, ctypes.byref(count := ctypes.c_int()))
        numbers = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", 0, numbers)
        self.architectures = tuple(numbers)

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        """A module for the driver: code for ``sm_90`` or another architecture; or, if the device is newer than this
        compiler, PTX of the newest architecture that it knows, which the driver compiles.

        Raises:
            CompilationError: the source is not CUDA C++ or the architecture is too old.
        """
        found = re.fullmatch(r"sm_(\d+)([af]?)", architecture)
        if found is None:
            raise ValueError(f"nvrtc: expected an architecture such as sm_90, but got {architecture}")
        if int(found[1]) in self.architectures:
            return self.compiled(source, name, (f"--gpu-architecture={architecture}", *OPTIONS), "CUBIN")
        older = [known for known in self.architectures if known < int(found[1])]
        if not older:
            version = ".".join(map(str, self.version))
            oldest = min(self.architectures)
            raise CompilationError(f"NVRTC {version} compiles for sm_{oldest} and newer, not for {architecture}", "")
        return self.compiled(source, name, (f"--gpu-architecture=compute_{max(older)}", *OPTIONS), "PTX")


def _majors() -> list[int]:
    """torch's own version of CUDA first."""
    own = (torch.version.cuda or "").partition(".")[0]
    return sorted(MAJORS, key=lambda major: str(major) != own)


def _paths() -> list[Path]:
    """Its paths in torch's dependencies, in torch's own package, and in toolkits."""
    package = Path(torch.__file__).parent
    paths = []
    for major in _majors():
        folders = (f"nvidia/cu{major}/lib", "nvidia/cuda_nvrtc/lib")
        paths += [package.parent / folder / f"libnvrtc.so.{major}" for folder in folders]
        paths += sorted((package / "lib").glob(f"libnvrtc[.-]*so.{major}"))
        paths.append(Path("/usr/local/cuda/lib64") / f"libnvrtc.so.{major}")
    return [path for path in paths if path.exists() and "builtins" not in path.name]


def _library() -> str | None:
    return first_library([f"libnvrtc.so.{major}" for major in _majors()], _paths())


def _outdated(compiler: RuntimeCompiler) -> str | None:
    if compiler.version >= OLDEST:
        return None
    oldest, found = (".".join(map(str, version)) for version in (OLDEST, compiler.version))
    return (
        f"expected NVRTC {oldest} or newer, but found {found} at {compiler.path()}: "
        f"pip install 'nvidia-cuda-nvrtc-cu12>={oldest}', and load no older one first"
    )


installed = Installed(
    Nvrtc, _library, "NVIDIA's run-time compiler was not found: pip install nvidia-cuda-nvrtc", _outdated
)
