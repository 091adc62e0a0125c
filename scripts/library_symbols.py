"""What a library asks of other libraries: one wheel for every torch hangs on it. Tests and check_backends.py look."""

import re
import shutil
import subprocess
from pathlib import Path

# The C and C++ runtimes: their symbols bear a version, or are the compiler's and linker's own.
RUNTIME = r"\w+@(?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+|_ITM_\w+|__gmon_start__|__cxa_\w+"
STABLE_ABI = r"(?:aoti_torch|torch)_\w+"
HIP_RUNTIME = r"(?:__)?hip[A-Z]\w*@hip_[\d.]+"


def symbols(path: Path, *options: str, nm: str = "nm") -> list[tuple[str, str]]:
    """(kind, name) of each symbol, as nm prints them."""
    said = subprocess.run([nm, *options, str(path)], check=True, capture_output=True, text=True).stdout
    return [tuple(line.split(maxsplit=2)[-2:]) for line in said.splitlines() if line and not line.endswith(":")]


def undefined(path: Path, nm: str = "nm") -> list[tuple[str, str]]:
    return symbols(path, "--dynamic", "--undefined-only", nm=nm)


def unexpected(path: Path, hip: bool = False, nm: str = "nm") -> list[str]:
    """The undefined symbols that are neither the C and C++ runtimes', nor torch's stable ABI, nor HIP's own."""
    allowed = re.compile("|".join([RUNTIME, STABLE_ABI] + [HIP_RUNTIME] * hip))
    return [name for _, name in undefined(path, nm) if not allowed.fullmatch(name)]


def only_in_gpu_torch(path: Path, torch_cpu: Path, nm: str = "nm") -> list[str]:
    """The symbols of torch that the library names, weakly or not, and libtorch_cpu lacks."""
    exported = {name.split("@")[0] for _, name in symbols(torch_cpu, "--dynamic", "--defined-only", nm=nm)}
    stable = re.compile(STABLE_ABI)
    return [name for _, name in undefined(path, nm) if stable.fullmatch(name) and name not in exported]


def missing_tools() -> list[str]:
    return [name for name in ("nm", "readelf", "objcopy") if shutil.which(name) is None]
