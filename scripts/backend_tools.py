"""The compilers of the GPU kernels, and the oldest CMake: finds them, installs them if possible, or names what is
missing.

    python scripts/backend_tools.py

prints the path of nvcc, and its progress on stderr. Also provides cuobjdump, NVRTC and the oldest CMake, which tests
look for. Fetches Python packages only; .ci/run installs the system's beside it.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backend_report import Refused

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "check-backends"


def build_folder(name: str) -> Path:
    """As deep as the folders of the library and of wheels: ccache sees relative paths, and so knows their objects."""
    return ROOT / "build" / f"check-{name}"


# Debian's ROCm packages are old; with this clang they compile torch's headers.
APT_PACKAGES = {
    "clang++-19": "clang-19",
    "clang-offload-bundler-19": "clang-tools-19",
    "ld.lld-19": "lld-19",
    "llvm-objcopy-19": "llvm-19",
    "/usr/include/hip/hip_runtime.h": "libamdhip64-dev",
    "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc": "rocm-device-libs",
    "nm": "binutils",
    "/usr/lib/llvm-19/bin/llvm-install-name-tool": "llvm-19",
    # Headers and libraries of MinGW-w64, with which the same clang compiles for Windows.
    "x86_64-w64-mingw32-g++-posix": "g++-mingw-w64-x86-64-posix",
}
# NVIDIA's packages of the compiler. Those of 12.8 have no nvcc, but its headers and its assembler.
NVCC = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
)
# They read the output of older versions of nvcc; cuobjdump looks for nvdisasm in its own directory.
DISASSEMBLER = ("nvidia-cuda-cuobjdump==13.5.37", "nvidia-cuda-nvdisasm==13.5.37")
OLD_HEADERS = (
    "nvidia-cuda-nvcc-cu12==12.8.93",
    "nvidia-cuda-runtime-cu12==12.8.90",
    "nvidia-cuda-cccl-cu12==12.8.90",
)
# NVIDIA's run-time compiler, by major version: the oldest supported one, and a new one.
NVRTC = {
    "12": ("nvidia-cuda-nvrtc-cu12==12.8.93", "cuda_nvrtc/lib/libnvrtc.so.12"),
    "13": ("nvidia-cuda-nvrtc==13.0.88", "cu13/lib/libnvrtc.so.13"),
}
MACOS = "14.0"  # the oldest version with wheels
# A compiler and linker for macOS that runs on any system, and torch's macOS libraries at both ends of the supported
# range.
ZIG = ("ziglang==0.17.1",)
TORCH_FOR_MACOS = {"2.10.0": "macosx_11_0_arm64", "2.15.0": "macosx_14_0_arm64"}
TORCH_FOR_WINDOWS = ("torch==2.10.0",)
OLDEST_CMAKE = ("cmake==3.24.*",)  # CMakeLists.txt requires it
# It lists the selectors of Apple's frameworks.
PYOBJC_METAL = ("pyobjc-framework-Metal==12.2.2",)


def run(*command: object, log: Path | None = None, **keywords: object) -> subprocess.CompletedProcess:
    """Prints and runs a command; its output goes to `log`, whose end is printed if the command fails."""
    print("+", *command, file=sys.stderr, flush=True)
    words = [str(word) for word in command]
    if log is None:
        return subprocess.run(words, stdout=sys.stderr, **keywords)
    with log.open("w") as file:
        done = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, text=True, **keywords)
    if done.returncode:
        print(log.read_text()[-6000:], file=sys.stderr, flush=True)
    return done


def output(*command: object, **keywords: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, **keywords).stdout


def apt_packages() -> None:
    """Installs the compilers for AMD's GPUs and for Windows, as root on Debian or Ubuntu; elsewhere a later step
    reports what is missing."""
    missing = [package for need, package in APT_PACKAGES.items() if not (shutil.which(need) or Path(need).exists())]
    if not missing:
        return
    if shutil.which("apt-get") and os.geteuid() == 0:
        run("apt-get", "update", "-q")
        run("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing)
    else:
        print(
            f"To compile for AMD GPUs and for Windows, install {' '.join(missing)} (Debian 12, Ubuntu 24.04), or run "
            "this as root.",
            file=sys.stderr,
        )


FETCHING = defaultdict(threading.Lock)


def python_packages(folder: Path, wanted: tuple[str, ...], platform: str | None = None) -> None:
    """Installs packages into a folder of their own; with `platform`, those for that platform. Safe to call from two
    threads."""
    with FETCHING[folder]:
        if not folder.exists():
            fetch(folder, wanted, platform)


def fetch(folder: Path, wanted: tuple[str, ...], platform: str | None) -> None:
    partial = folder.parent / f"{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", partial, *wanted)
    if platform:
        install += ("--only-binary=:all:", "--platform", platform, "--python-version", "3.11")
    # The environment's constraint on torch doesn't apply to a torch that is only linked against.
    if run(*install, env=os.environ | {"PIP_CONSTRAINT": os.devnull}).returncode:
        raise Refused(f"pip could not install {', '.join(wanted)}")
    partial.rename(folder)


def macos_torch(version: str) -> Path:
    """torch's package for macOS, which is only linked against."""
    folder = WORK / f"torch-{version}-macos"
    python_packages(folder, (f"torch=={version}",), TORCH_FOR_MACOS[version])
    return folder / "torch"


def windows_torch() -> Path:
    """torch's package for Windows, to link against and to run under Wine."""
    folder = WORK / "torch-windows"
    python_packages(folder, TORCH_FOR_WINDOWS, "win_amd64")
    return folder / "torch"


def metal_metadata() -> Path:
    """PyObjC's list of the selectors of Apple's Metal: those of protocols, and those with unusual types."""
    folder = WORK / "pyobjc-metal"
    python_packages(folder, PYOBJC_METAL, "macosx_10_9_universal2")
    return folder / "Metal" / "_metadata.py"


def fetch_ahead() -> None:
    """Fetches what later steps need while earlier ones compile. A step reports itself what it needs and doesn't
    find."""
    packages = [(WORK / "zig", ZIG, None), (WORK / "pyobjc-metal", PYOBJC_METAL, "macosx_10_9_universal2")]
    packages += [(WORK / f"torch-{v}-macos", (f"torch=={v}",), TORCH_FOR_MACOS[v]) for v in TORCH_FOR_MACOS]
    packages.append((WORK / "torch-windows", TORCH_FOR_WINDOWS, "win_amd64"))
    with contextlib.suppress(Refused):
        if not nvcc_version(nvcc()).startswith("12."):
            packages.insert(0, (WORK / "cuda-12.8", OLD_HEADERS, None))
    for each in packages:
        with contextlib.suppress(Refused):
            python_packages(*each)


def zig_tools(folder: Path, target: str) -> Path:
    """A folder with zig's commands: c++, which compiles for that target, ar and ranlib."""
    zig = WORK / "zig"
    python_packages(zig, ZIG)
    folder.mkdir(parents=True, exist_ok=True)
    # Without optimization, as in CMake's trials, zig would build and link its UndefinedBehaviorSanitizer.
    compiler = f"c++ -target {target} -fno-sanitize=undefined"
    for name, words in {"c++": compiler, "ar": "ar", "ranlib": "ranlib"}.items():
        # To link, zig would compile libc++ first, which takes a minute: its functions stay undefined
        # (metal_build.check_undefined).
        link = 'case " $* " in *" -c "*) ;; *) set -- "$@" -nostdlib++ ;; esac\n' if name == "c++" else ""
        tool = folder / name
        tool.write_text(
            f"#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR='{folder / 'cache'}'\n{link}"
            f"exec '{zig / 'ziglang' / 'zig'}' {words} \"$@\"\n"
        )
        tool.chmod(0o755)
    return folder


def windows_compiler() -> tuple[str, ...]:
    """The command that compiles and links for Windows on x86-64. The C++ library is linked statically."""
    for need in ("clang++-19", "ld.lld-19", "x86_64-w64-mingw32-g++-posix"):
        if shutil.which(need) is None:
            raise Refused(f"there is no {need}: install {APT_PACKAGES[need]}")
    link = ("-fuse-ld=lld", "-static", "-pthread", "-Wno-unused-command-line-argument")
    return ("clang++-19", "--target=x86_64-w64-mingw32", *link)


def windows_toolchain() -> Path:
    """A toolchain file for CMake that builds for Windows on x86-64."""
    compiler, *flags = windows_compiler()
    file = WORK / "windows.cmake"
    file.write_text(f"""set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(CMAKE_CXX_COMPILER {compiler})
set(CMAKE_CXX_FLAGS_INIT "{" ".join(flags)}")
set(CMAKE_RC_COMPILER llvm-windres-19)
# CMake takes lld for GNU's linker, which can write such a file for MinGW.
set(CMAKE_LINK_DEPENDS_USE_LINKER FALSE)
""")
    return file


def darwin_toolchain(headers: Path) -> Path:
    """A toolchain file for CMake that builds for macOS on Apple's processors, with the Apple headers in that folder."""
    folder = zig_tools(WORK / "darwin", f"aarch64-macos.{MACOS}")
    file = folder / "toolchain.cmake"
    file.write_text(f"""set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_ARCHITECTURES arm64)
set(CMAKE_CXX_COMPILER "{folder / "c++"}")
set(CMAKE_OBJCXX_COMPILER "{folder / "c++"}")
set(CMAKE_AR "{folder / "ar"}")
set(CMAKE_RANLIB "{folder / "ranlib"}")
set(CMAKE_INSTALL_NAME_TOOL /usr/lib/llvm-19/bin/llvm-install-name-tool)
set(CMAKE_OBJCXX_FLAGS_INIT "-I '{headers}' -Werror")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-F '{headers}' -Wl,-undefined,dynamic_lookup")
""")
    return file


def nvcc_of_toolkit() -> Path | None:
    """The nvcc that CMake would find."""
    named = os.environ.get("CUDACXX") or shutil.which("nvcc")
    for place in (named, "/usr/local/cuda/bin/nvcc"):
        if place and Path(place).exists():
            return Path(place)
    return None


def nvcc() -> Path:
    """The toolkit's nvcc, or else NVIDIA's Python packages."""
    if found := nvcc_of_toolkit():
        return found
    packages = WORK / "nvcc"
    try:
        python_packages(packages, NVCC)
    except Refused as why:
        raise Refused(f"there is no nvcc, and {why}: install the CUDA toolkit, or set CUDACXX to its nvcc") from None
    root = packages / "nvidia" / "cu13"
    # nvcc looks for libraries in lib64; the packages have them in lib.
    with contextlib.suppress(FileExistsError):
        (root / "lib64").symlink_to("lib")
    return root / "bin" / "nvcc"


def cuobjdump(fetch: bool = True) -> Path:
    """The toolkit's cuobjdump, or else NVIDIA's Python packages: a toolkit may come without it."""
    nvcc = nvcc_of_toolkit()
    found = shutil.which("cuobjdump") or (nvcc and shutil.which("cuobjdump", path=nvcc.resolve().parent))
    if found and shutil.which("nvdisasm", path=Path(found).resolve().parent):
        return Path(found)
    packages = WORK / "cuobjdump"
    if not fetch and not packages.exists():
        raise Refused("neither a CUDA toolkit has it nor has scripts/backend_tools.py fetched it")
    try:
        python_packages(packages, DISASSEMBLER)
    except Refused as why:
        raise Refused(f"there is no cuobjdump with its nvdisasm, and {why}: install the CUDA toolkit's") from None
    return packages / "nvidia" / "cu13" / "bin" / "cuobjdump"


def nvrtc(major: str, fetch: bool = True) -> Path:
    """NVIDIA's Python package of its run-time compiler."""
    package, library = NVRTC[major]
    packages = WORK / f"nvrtc-{major}"
    if not fetch and not packages.exists():
        raise Refused(f"NVRTC {major} has not been fetched (make check-backends does)")
    python_packages(packages, (package,))
    return packages / "nvidia" / library


def oldest_cmake(fetch: bool = True) -> Path:
    """The oldest CMake that the sources support."""
    packages = WORK / "cmake-oldest"
    if not fetch and not packages.exists():
        raise Refused("scripts/backend_tools.py has not fetched the oldest CMake")
    python_packages(packages, OLDEST_CMAKE)
    return packages / "cmake" / "data" / "bin" / "cmake"


def nvcc_version(nvcc: Path) -> str:
    return re.search(r"release (\d+\.\d+)", output(nvcc, "--version")).group(1)


def old_toolkit() -> tuple[Path, Path]:
    """The headers of CUDA 12.8 in one folder, and its ptxas."""
    packages = WORK / "cuda-12.8"
    python_packages(packages, OLD_HEADERS)
    headers = WORK / "cuda-12.8-headers"
    if not headers.exists():
        for part in ("cuda_nvcc", "cuda_runtime", "cuda_cccl"):
            shutil.copytree(packages / "nvidia" / part / "include", headers, dirs_exist_ok=True)
        # It belongs to the code that nvcc generates, so it has to come with the nvcc that runs.
        (headers / "crt" / "host_runtime.h").unlink()
    return headers, packages / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"


def main() -> None:
    try:
        with ThreadPoolExecutor() as pool:
            others = [pool.submit(fetched) for fetched in (cuobjdump, oldest_cmake)]
            others += [pool.submit(nvrtc, major) for major in NVRTC]
            print(nvcc())
        for each in others:
            each.result()
    except Refused as why:
        sys.exit(str(why))


if __name__ == "__main__":
    main()
