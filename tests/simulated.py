"""Builds the GPU kernels for the simulator in tests/simulators/, and runs fourfold's operators on them.

    python tests/simulated.py [--sanitizer thread]      builds the library and prints its path

With FOURFOLD_SIMULATED set to such a library, conftest.py registers its kernels for the operators' CPU key, so that the
same tests and the same case table run on them.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Sources that are generated into different folders have one object in ccache.
SHARED_OBJECTS = {"CCACHE_NOHASHDIR": "true", "CCACHE_BASEDIR": str(ROOT / "build")}
SIMULATORS = ROOT / "tests" / "simulators"
BUILD = ROOT / "build" / "simulated"
FULL = os.environ.get("FOURFOLD_PROGRAMS", "") == "full"  # compile and run everything, not a part
DEVICE_CALLS = ("copy_", "get_device_index", "empty_strided", "create_tensor_from_blob")
# Makes AddressSanitizer call a function before each access; the simulator defines these functions (gpusim/checks.cpp).
# They refuse null pointers and accesses beyond an object too. UBSan's own checks of these, and of addresses that wrap
# around, double the compilation.
CALLS = ("asan-instrumentation-with-call-threshold=0", "asan-stack=0", "asan-globals=0")
UNDEFINED = (
    "-fsanitize=kernel-address,undefined",
    "-fno-sanitize=null,object-size,pointer-overflow",
    "-fno-sanitize-recover=all",
)
CHECKED = ["-DGPUSIM_CHECKED=1", *UNDEFINED]
CHECKED += [word for setting in CALLS for word in ("--param", setting)]
SANITIZERS = {"checked": CHECKED, "thread": ["-fsanitize=thread"]}
LENDERS = ("gpusim_lend_to_host", "gpusim_metal_lend")
# library/torch_gpu.cpp intercepts the library's calls of these functions.
WRAPPED = ("torch_call_dispatcher", *(f"aoti_torch_{name}" for name in DEVICE_CALLS))


def build(sanitizer: str = "checked", jobs: int | None = None) -> Path:
    """The library of the hipified kernels; built once for given sources."""
    import torch

    folders = [ROOT / name for name in ("cuda", "cpp", "hip", "cmake")]
    folders += [SIMULATORS / name for name in ("gpusim", "library", "modules")]
    return built(
        f"gpu-{sanitizer}",
        "libfourfold_simulated.so",
        lambda folder, library: compile_into(folder, library, sanitizer, jobs),
        folders,
        torch.__version__,
        Path(__file__).read_text(),
    )


def built(
    name: str, product: str, compile: Callable[[Path, Path], None], sources: Iterable[Path], *settings: object
) -> Path:
    """The product that compile(folder, product) makes; built once for given sources and settings, also across
    processes."""
    # All source files, without bytecode.
    files = sorted(p for source in sources for p in source.rglob("*") if p.is_file() and p.suffix != ".pyc")
    digest = hashlib.sha256(repr(settings).encode())
    for path in files:
        digest.update(path.read_bytes())
    folder = BUILD / f"{name}-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes may build it at the same time
        if not (folder / product).exists():
            compile(folder, folder / product)
    return folder / product


def compile_into(folder: Path, library: Path, sanitizer: str, jobs: int | None) -> None:
    import torch

    translated = folder / "hip"
    translate(translated)

    include = Path(torch.__file__).parent / "include"
    common = [
        *("-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread", "-w"),
        *("-I", SIMULATORS / "gpusim", "-isystem", include),
    ]
    flags = [
        *("-DTORCH_TARGET_VERSION=0x020a000000000000", "-DFOURFOLD_SIMULATION"),
        *('-DFOURFOLD_CUDA_ARCHITECTURES="the simulator"', "-include", SIMULATORS / "library" / "registration.h"),
        *("-I", ROOT / "cpp", "-I", ROOT / "cpp" / "include", *SANITIZERS[sanitizer]),
    ]
    inputs = sorted(translated.glob("*.hip")) + sorted((ROOT / "cpp" / "ops").glob("*.cpp"))
    inputs += [SIMULATORS / "library" / "torch_gpu.cpp", SIMULATORS / "library" / "programs.cpp"]
    # Linked first, so that of functions in both checked and unchecked files the unchecked version remains. Under
    # ThreadSanitizer launches are not deferred and torch's own memory is used.
    memory = [] if sanitizer == "thread" else [SIMULATORS / "library" / "device_memory.cpp"]
    checks = [SIMULATORS / "gpusim" / "checks.cpp"] if sanitizer == "checked" else []
    unchecked = [*checks, *memory, SIMULATORS / "modules" / "services.cpp"]

    # Loaded modules call the same checks. ThreadSanitizer must instrument all of the simulator, or nothing.
    own = [f"-DGPUSIM_CHECKED={len(checks)}", '-DGPUSIM_HOOK_VISIBILITY="default"']
    own += SANITIZERS["thread"] if sanitizer == "thread" else []

    def compile(source: Path) -> Path:
        target = folder / f"{source.parent.name}_{source.stem}.o"
        # Every access calls the checks.
        options = [*own, "-O2"] if source in unchecked else flags
        # Translated sources have the same name in each folder, and so one object in ccache.
        name = source.relative_to(folder) if source.is_relative_to(folder) else source
        command = (*launcher(), "g++", *common, *options, "-x", "c++", "-c", name, "-o", target)
        run(*command, cwd=folder, **SHARED_OBJECTS)
        return target

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        objects = list(pool.map(compile, unchecked + inputs))
    torch_library = Path(torch.__file__).parent / "lib"
    sanitized = ["-fsanitize=undefined"] if sanitizer == "checked" else SANITIZERS[sanitizer]
    link = ["g++", "-shared", "-pthread", *sanitized, *objects, "-L", torch_library, "-ltorch_cpu", "-lc10", "-ldl"]
    link += [f"-Wl,--wrap={name}" for name in WRAPPED] + ["-Wl,-Bsymbolic-functions"] + libfourfold()
    run(*link, "-g", "-Wl,--no-undefined", "-o", library.with_suffix(".new"))
    library.with_suffix(".new").rename(library)


def launcher() -> list[str]:
    return ["ccache"] if shutil.which("ccache") else []


def libfourfold() -> list[object]:
    """Linker arguments for the library that the package has loaded."""
    from fourfold import _C

    return ["-L", Path(_C.__file__).parent, "-lfourfold"]


def translate(folder: Path) -> None:
    """Translates cuda/ to HIP, with a source for each elementwise operator, as CMake does. AMD's compiler accepts
    CUDA's declaration of dynamic shared memory; the simulator needs HIP's older macro."""
    run(sys.executable, ROOT / "hip" / "hipify.py", ROOT / "cuda", folder)
    shared = (folder / "elementwise.hip").rename(folder / "elementwise.cuh")
    elementwise_sources(folder, shared, ".hip")
    from torch.utils.hipify import hipify_python

    for path in folder.iterdir():
        path.write_text(hipify_python.replace_extern_shared(path.read_text()))


def elementwise_operators() -> list[str]:
    """Those that the build compiles from a formula."""
    listed = re.search(r"set\(FOURFOLD_ELEMENTWISE\s+(.*?)\)", (ROOT / "CMakeLists.txt").read_text(), re.DOTALL)
    return listed[1].split()


def elementwise_sources(folder: Path, shared: Path, suffix: str) -> dict[str, Path]:
    """Writes a source for each elementwise operator that includes `shared`, as CMake does (cmake/operators.cmake)."""
    files = {}
    for operator in elementwise_operators():
        text = (ROOT / "cmake" / "elementwise.in").read_text()
        for name, value in (("operator", operator), ("type", operator.title().replace("_", "")), ("source", shared)):
            text = text.replace(f"@{name}@", str(value))
        files[operator] = folder / f"{operator}{suffix}"
        files[operator].write_text(text)
    return files


def run(*command: object, cwd: Path | None = None, **environment: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=os.environ | environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def serve(library: str) -> None:
    """From here on, calls of fourfold's operators on CPU tensors run the library's kernels."""
    import torch

    importlib.import_module("fourfold")  # registers its operators first
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
            _overrides.impl(operator, finished(kernel, ctypes.CDLL(library)), "CPU", allow_override=True)


def finished(kernel: Any, simulator: ctypes.CDLL) -> Callable[..., Any]:
    """Wraps the operator so that it waits for its launches: the caller treats the results as CPU tensors."""
    import torch

    names = [argument.name for argument in kernel._schema.arguments]
    place = names.index("batch_sizes") if "batch_sizes" in names else len(names)

    # batch_sizes stays on the CPU, as in torch; host code may read it.
    lenders = [getattr(simulator, name) for name in LENDERS if hasattr(simulator, name)]

    @torch.compiler.disable  # otherwise Dynamo would trace it, as any Python function, and break its graph there
    def call(*args: Any, **keywords: Any) -> Any:
        if len(args) > place and args[place] is not None and lenders:
            sizes = args[place].contiguous()
            for lend in lenders:
                lend(ctypes.c_void_p(sizes.data_ptr()))
            args = (*args[:place], sizes, *args[place + 1 :])
        try:
            return kernel(*args, **keywords)
        finally:
            simulator.gpusim_synchronize()
            for lend in lenders:
                lend(None)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="checked")
    print(build(parser.parse_args().sanitizer))


if __name__ == "__main__":
    main()
