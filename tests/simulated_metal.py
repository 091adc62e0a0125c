"""Builds the Metal backend for the simulator in tests/simulators/. Its host code is compiled for Linux against a Metal
framework that validates and runs what it encodes; that framework compiles the kernels on request.

    python tests/simulated_metal.py [--sanitizer thread]      builds the library and prints its path

Set FOURFOLD_SIMULATED to it as to any simulated library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import simulated
from simulated import ROOT, SANITIZERS, SIMULATORS, built, elementwise_sources, libfourfold, run

METAL = ROOT / "metal"
FRAMEWORK = SIMULATORS / "metal"
# GCC's Objective-C runtime; Debian installs its headers and library per compiler version.
OBJC = next(iter(sorted(Path("/usr/lib/gcc/x86_64-linux-gnu").glob("*/include/objc"))), Path("objc")).parent
WRAPPED = (
    *("torch_get_mutable_data_ptr", "torch_get_const_data_ptr", "torch_call_dispatcher"),
    *("aoti_torch_create_tensor_from_blob", "aoti_torch_copy_", "aoti_torch_empty_strided"),
)
# The .metal files, and the name of each in the host code.
SHADERS = {"recurrent": "recurrent_shaders", "mlp": "mlp_shaders", "mlp_layers": "mlp_layers_shaders"}


def build(sanitizer: str = "checked", metal: Path = METAL, jobs: int | None = None) -> Path:
    """The library of the Metal backend in the folder `metal`; built once for given sources."""
    import torch

    folders = (metal, ROOT / "cpp", ROOT / "cmake", *(SIMULATORS / n for n in ("gpusim", "library", "metal")))
    return built(
        f"metal-{sanitizer}",
        "libfourfold_simulated.so",
        lambda folder, library: compile_into(folder, library, sanitizer, metal, jobs),
        folders,
        torch.__version__,
        Path(__file__).read_text(),
    )


def unchanged(path: Path) -> Path:
    """The backend's own file for one of a changed copy, if it and the headers are the same: ccache has its object."""
    same = [METAL / path.name, *METAL.glob("*.h")]
    is_same = all((path.parent / each.name).read_bytes() == each.read_bytes() for each in same)
    return METAL / path.name if is_same else path


def embed(folder: Path, metal: Path) -> list[Path]:
    """The kernels as text, each in a source of its own, as the CMake target has them."""
    cmake = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    wanted = [(f"{stem}.metal", name, None) for stem, name in SHADERS.items()]
    operators = elementwise_sources(folder, unchanged(metal / "elementwise.mm"), ".mm")
    wanted += [("elementwise.metal", f"{name}_shaders", f"formulas/{name}.h") for name in operators]
    sources = []
    for file, name, formula in wanted:
        output = folder / f"{name}.mm"
        options = [f"-DINPUT={file}", f"-DOUTPUT={output}", f"-DNAME={name}", f"-DINCLUDES={metal}:{ROOT / 'cpp'}"]
        run(cmake, *options, *([f"-DFORMULA={formula}"] if formula else []), "-P", ROOT / "cmake" / "embed.cmake")
        sources.append(output)
    return sources + list(operators.values())


def compile_into(folder: Path, library: Path, sanitizer: str, metal: Path, jobs: int | None) -> None:
    import torch

    (folder / "kernels").mkdir(exist_ok=True)
    include = Path(torch.__file__).parent / "include"
    common = ["-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread", "-isystem", include]
    common += ["-I", SIMULATORS / "gpusim", "-I", ROOT / "cpp", "-I", ROOT / "cpp" / "include"]
    registration = ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DFOURFOLD_SIMULATION"]
    registration += ["-include", SIMULATORS / "library" / "registration.h"]
    checked = f"-DGPUSIM_CHECKED={int(sanitizer == 'checked')}"
    # The simulator itself performs the checks and is not checked.
    simulator = [checked, '-DGPUSIM_HOOK_VISIBILITY="default"']
    simulator += [f'-DGPUSIM_METAL_COMPILER="{sys.executable} {FRAMEWORK / "compiler.py"}"']
    simulator += [f'-DGPUSIM_METAL_FLAGS="{" ".join(SANITIZERS[sanitizer])}"']
    if sanitizer == "thread":
        simulator += SANITIZERS[sanitizer]
    objective = ["-x", "objective-c++", "-fobjc-runtime=gcc", "-fno-objc-arc", "-I", FRAMEWORK / "apple"]
    objective += ["-I", FRAMEWORK / "linux", "-isystem", OBJC, "-Wno-everything", "-Werror=objc-method-access"]

    commands: dict[Path, list[object]] = {}
    own = [FRAMEWORK / "gpu.cpp", SIMULATORS / "library" / "torch_mps.cpp"]
    own += [] if sanitizer == "thread" else [SIMULATORS / "library" / "device_memory.cpp"]
    own += [SIMULATORS / "gpusim" / "checks.cpp"] if sanitizer == "checked" else []
    for source in own:
        commands[source] = ["g++", "-w", *common, *simulator, "-O2", "-x", "c++"]
    for source in [*sorted((ROOT / "cpp" / "ops").glob("*.cpp")), SIMULATORS / "library" / "programs.cpp"]:
        commands[source] = ["g++", "-w", *common, *registration]
    hosts = [unchanged(path) for path in sorted(metal.glob("*.mm")) if path.stem != "elementwise"]
    for source in hosts:
        commands[source] = ["clang++-19", *common, *registration, *objective, "-iquote", source.parent]
    for source in embed(folder, metal):
        quoted = unchanged(metal / "elementwise.mm").parent
        commands[source] = ["clang++-19", *common, *registration, *objective, "-iquote", quoted]
    commands[FRAMEWORK / "framework.mm"] = ["clang++-19", *common, *objective, checked]

    def compile(source: Path) -> Path:
        target = folder / f"{source.parent.name}_{source.stem}.o"
        # Generated sources have the same name in each folder, and so one object in ccache.
        name = source.relative_to(folder) if source.is_relative_to(folder) else source
        run(*simulated.launcher(), *commands[source], "-c", name, "-o", target, cwd=folder, **simulated.SHARED_OBJECTS)
        return target

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        objects = list(pool.map(compile, commands))
    torch_library = Path(torch.__file__).parent / "lib"
    sanitized = SANITIZERS[sanitizer] if sanitizer == "thread" else []
    link = ["g++", "-shared", "-pthread", *sanitized, *objects, "-L", torch_library, "-ltorch_cpu", "-lc10", "-ldl"]
    link += ["-L", OBJC.parent, "-lobjc", *(f"-Wl,--wrap={name}" for name in WRAPPED), *libfourfold()]
    run(*link, "-o", library.with_suffix(".new"))
    library.with_suffix(".new").rename(library)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizer", choices=simulated.SANITIZERS, default="checked")
    print(build(parser.parse_args().sanitizer))


if __name__ == "__main__":
    main()
