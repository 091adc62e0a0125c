"""Builds the GPU kernels for the simulator in tests/simulators/, and lets fourfold's operators run on them.

    python tests/simulated.py [--warp 64] [--sanitizer address|thread]      builds, and prints where the library is

With FOURFOLD_SIMULATED set to such a library, conftest.py puts its kernels under the operators' CPU key, so that the
same tests and the same case table run on them.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIMULATORS = ROOT / "tests" / "simulators"
BUILD = ROOT / "build" / "simulated"
SANITIZERS = {
    "none": [],
    # Divisions by zero of floats are what the operators are specified by, and signed shifts are defined in C++20.
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}


def build(warp: int = 32, sanitizer: str = "none", jobs: int | None = None) -> Path:
    """The library of the hipified kernels for a device of that warp; built once for given sources."""
    import torch

    sources = sorted(
        p for d in ("cuda", "cpp", "hip", "tests/simulators") for p in (ROOT / d).rglob("*") if p.is_file()
    )
    digest = hashlib.sha256(f"{torch.__version__} {warp} {sanitizer}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    folder = BUILD / f"warp{warp}-{sanitizer}-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libfourfold_simulated.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two may ask for it at the same time
        if not library.exists():
            compile_into(folder, library, warp, sanitizer, jobs)
    return library


def compile_into(folder: Path, library: Path, warp: int, sanitizer: str, jobs: int | None) -> None:
    import torch

    translated = folder / "hip"
    run(sys.executable, ROOT / "hip" / "hipify.py", ROOT / "cuda", translated)
    replace_shared_memory(translated)

    include = Path(torch.__file__).parent / "include"
    flags = [
        *("-std=c++20", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-pthread", "-w", f"-DGPUSIM_WARP={warp}"),
        *("-DTORCH_TARGET_VERSION=0x020a000000000000", "-DFOURFOLD_CPU_LEVEL_COUNT=1", "-DFOURFOLD_SIMULATION"),
        *('-DFOURFOLD_CUDA_ARCHITECTURES="the simulator"', "-include", SIMULATORS / "library" / "registration.h"),
        *("-I", SIMULATORS / "gpusim", "-I", ROOT / "cpp", "-I", ROOT / "cpp" / "include", "-isystem", include),
        *SANITIZERS[sanitizer],
    ]
    inputs = sorted((ROOT / "cpp" / "ops").glob("*.cpp")) + sorted(translated.glob("*.hip"))
    inputs += [SIMULATORS / "library" / "torch_gpu.cpp"]

    def compile(source: Path) -> Path:
        target = folder / f"{source.parent.name}_{source.stem}.o"
        run("g++", *flags, "-x", "c++", "-c", source, "-o", target)
        return target

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        objects = list(pool.map(compile, inputs))
    torch_library = Path(torch.__file__).parent / "lib"
    link = ["g++", "-shared", "-pthread", *SANITIZERS[sanitizer], *objects, "-L", torch_library, "-ltorch_cpu", "-ldl"]
    run(*link, "-Wl,--no-undefined" if sanitizer == "none" else "-g", "-o", library.with_suffix(".new"))
    library.with_suffix(".new").rename(library)


def replace_shared_memory(folder: Path) -> None:
    """AMD's compiler knows CUDA's declaration of dynamic shared memory; the simulator takes HIP's older macro."""
    from torch.utils.hipify import hipify_python

    for path in folder.iterdir():
        path.write_text(hipify_python.replace_extern_shared(path.read_text()))


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def serve(library: str) -> None:
    """From here on a call of fourfold's operators with the CPU's tensors runs the library's kernels."""
    import torch

    importlib.import_module("fourfold")  # whose operators are there first
    torch.ops.load_library(library)
    global _overrides
    _overrides = torch.library.Library("fourfold", "IMPL")
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("fourfold_simulated::")]
    if not names:
        raise RuntimeError(f"{library} registers no operators")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name in names:
            operator = name.removeprefix("fourfold_simulated::").split(".")[0]
            kernel = getattr(torch.ops.fourfold_simulated, operator).default
            _overrides.impl(operator, kernel, "CPU", allow_override=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warp", type=int, choices=(32, 64), default=32)
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="none")
    arguments = parser.parse_args()
    print(build(arguments.warp, arguments.sanitizer))


if __name__ == "__main__":
    main()
