"""The symbols of a library, which decide whether one wheel works with every torch. Tests, check_backends.py and
wheel_checks.py check them."""

import re
import shutil
import subprocess
from pathlib import Path

# The C and C++ runtimes: their symbols have a version, or belong to the compiler or linker.
RUNTIME = r"\w+@(?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+|_ITM_\w+|__gmon_start__|__cxa_\w+"
STABLE_ABI = r"(?:aoti_torch|torch)_\w+"
IOSTREAMS = re.compile(r"\bstd::(?:__cxx11::)?(?:locale|ios_base|basic_ios|\w*stream|\w*streambuf|basic_\w*buf)\b")
# What the runtimes of CUDA and OpenMP export; macOS puts an underscore before each name.
OTHER_RUNTIMES = re.compile(r"_?(?:(?:__)?cuda\w+|GOMP_\w+|omp_\w+|__kmpc_\w+)(?:@.*)?")
# nm's options for the exported symbols, by the values of sys.platform.
EXPORTED = {"linux": ("--dynamic", "--defined-only"), "darwin": ("--extern-only", "--defined-only")}
HIP_RUNTIME = r"(?:__)?hip[A-Z]\w*@hip_[\d.]+"


def symbols(path: Path, *options: str, nm: str = "nm") -> list[tuple[str, str]]:
    """(kind, name) of each symbol, as nm prints them."""
    said = subprocess.run([nm, *options, str(path)], check=True, capture_output=True, text=True).stdout
    lines = [line for line in said.splitlines() if line and not line.endswith(":")]
    return [re.fullmatch(r"[0-9a-f]* *(\S) (.*)", line).groups() for line in lines]


def undefined(path: Path, nm: str = "nm") -> list[tuple[str, str]]:
    return symbols(path, "--dynamic", "--undefined-only", nm=nm)


def unexpected(path: Path, hip: bool = False, nm: str = "nm") -> list[str]:
    """The undefined symbols that belong neither to the C and C++ runtimes, nor to torch's stable ABI, nor to HIP."""
    allowed = re.compile("|".join([RUNTIME, STABLE_ABI] + [HIP_RUNTIME] * hip))
    return [name for _, name in undefined(path, nm) if not allowed.fullmatch(name)]


def iostreams(path: Path, nm: str = "nm") -> list[str]:
    """The undefined symbols of iostreams, which can crash with a CUDA build of torch (cpp/system/text.h).
    torch's headers include <iostream>, which only initialises them."""
    names = [name for _, name in symbols(path, "--dynamic", "--undefined-only", "--demangle", nm=nm)]
    return [name for name in names if IOSTREAMS.search(name) and "std::ios_base::Init::" not in name]


def only_in_gpu_torch(path: Path, torch_cpu: Path, nm: str = "nm") -> list[str]:
    """The torch symbols that the library refers to, weakly or not, and that libtorch_cpu lacks."""
    exported = {name.split("@")[0] for _, name in symbols(torch_cpu, "--dynamic", "--defined-only", nm=nm)}
    stable = re.compile(STABLE_ABI)
    return [name for _, name in undefined(path, nm) if stable.fullmatch(name) and name not in exported]


def of_other_runtimes(path: Path, system: str, nm: str = "nm") -> list[str]:
    """The exported symbols that belong to CUDA's runtime, which is linked statically, or to OpenMP's. Other libraries
    in the process would call this copy instead of their own."""
    return [name for _, name in symbols(path, *EXPORTED[system], nm=nm) if OTHER_RUNTIMES.fullmatch(name)]


def missing_tools() -> list[str]:
    return [name for name in ("nm", "readelf", "objcopy") if shutil.which(name) is None]
