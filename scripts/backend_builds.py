"""The builds of check_backends.py: fourfold with its CUDA kernels, and with the same kernels translated to HIP."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import backend_tools as tools
import compiled_code
import front_end
import library_symbols
from backend_report import IN_REGISTERS, Refused, Report
from backend_tools import ROOT, WORK, build_folder, output, run

BIN = Path(sys.executable).parent
TORCH = Path(torch.__file__).parent
# AMD's GPUs with 64 threads per warp, and those with 32, for which Clang only reads the kernels unless everything is
# compiled: code for one takes a third of the time.
HIP_ARCHITECTURES, READ_ARCHITECTURES = ("gfx90a",), ("gfx1030",)
if os.environ.get("FOURFOLD_PROGRAMS") == "full":
    HIP_ARCHITECTURES, READ_ARCHITECTURES = (*HIP_ARCHITECTURES, *READ_ARCHITECTURES), ()
# The architectures between which the kernels differ; the wheel is compiled for more.
CUDA_ARCHITECTURES = "75-real;90"
# nvcc reads the kernels with the headers of CUDA 12.8 for this architecture, the first whose tensor cores they use, and
# CUDA 12.8's ptxas assembles the PTX of the other build, for an architecture for which nvcc doesn't.
OLD_VIRTUAL = "80"
OLD_ARCHITECTURE = "120"
OLD_PTX = "8.7"


# Where code is compiled and linked but not measured, the optimizer, which takes half of the time, would prove nothing.
# The last -O counts; only with one CPU level are unoptimized kernels right (cpp/CMakeLists.txt). zig takes -O0 as a
# request for debug information.
UNOPTIMIZED = (
    "-DCMAKE_CXX_COMPILE_OBJECT=<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -O0 -g0 -o <OBJECT> -c <SOURCE>"
)


def configure(name: str, *options: str, **environment: str) -> Path:
    """A configured build folder. The CPU kernels are built for one level only; other tests cover the rest."""
    folder = build_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    command = (BIN / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}")
    command += (f"-DPython_EXECUTABLE={sys.executable}", "-DFOURFOLD_CPU_LEVELS=OFF", *options)
    log = folder / "configure.log"
    if run(*command, log=log, env=os.environ | environment).returncode:
        said = re.search(r"CMake Error[^\n]*\n\s*(.*?)\n(?:Call Stack|\n\n)", log.read_text(), re.DOTALL)
        raise Refused(" ".join(said.group(1).split()) if said else f"CMake did not configure; see {log}")
    return folder


def build(folder: Path, report: Report, backend: str, objects: dict[str, Path], *targets: str) -> None:
    """Continues after errors, so that an operator that doesn't compile doesn't prevent the proof of the others."""
    log = folder / "build.log"
    for path in objects.values():
        path.unlink(missing_ok=True)
    run(BIN / "ninja", "-C", folder, "-k", "0", *targets, log=log)
    for operator, path in objects.items():
        if not path.exists():
            report.refuse(backend, "compiled", f"{path.stem} does not compile; see {log.relative_to(ROOT)}", [operator])


def stage(folder: Path) -> Path:
    """The package as it would be installed from this build."""
    package = folder / "stage"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "fourfold", package / "fourfold", ignore=shutil.ignore_patterns("__pycache__"))
    log = folder / "install.log"
    command = (BIN / "cmake", "--install", folder, "--component", "python", "--prefix", package / "fourfold")
    if run(*command, log=log).returncode:
        raise Refused(f"the library was not linked; see {(folder / 'build.log').relative_to(ROOT)}")
    return package


def check_linked(folder: Path, report: Report, backend: str) -> None:
    """Checks that no undefined symbol is left, and that it imports and computes without a GPU."""
    package = stage(folder)
    library = package / "fourfold" / "libfourfold.so"
    left = library_symbols.unexpected(library, hip=backend == "hip")
    if left:
        raise Refused(f"the library has undefined symbols that nothing here provides: {', '.join(left)}")
    lacking = library_symbols.only_in_gpu_torch(library, TORCH / "lib" / "libtorch_cpu.so")
    if lacking:
        raise Refused(f"a CPU build of torch lacks {', '.join(lacking)}, which the kernels are to look up by name")
    if streams := library_symbols.iostreams(library):
        raise Refused(f"the library uses iostreams: {', '.join(streams)}")
    path = os.pathsep.join([str(package), str(ROOT / "tests"), *filter(None, sys.path)])
    command = (sys.executable, "-S", str(ROOT / "scripts" / "run_cpu_operators.py"), backend)
    print("+", *command, flush=True)
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"the library does not run here: {(done.stderr.strip() or 'no word').splitlines()[-1]}")
    registered = done.stdout.split()
    report.prove(backend, "linked", registered)
    silent = [operator for operator in report.operators if operator not in registered]
    report.refuse(backend, "linked", "the library registers no GPU kernel of that name", silent)
    report.facts.append(f"{backend}: the library has {library.stat().st_size / 1e6:.1f} MB")


def cuda(report: Report) -> None:
    nvcc = tools.nvcc()
    version = tools.nvcc_version(nvcc)
    options = ("-DFOURFOLD_CUDA=ON", "-DFOURFOLD_HIP=OFF", f"-DCMAKE_CUDA_ARCHITECTURES={CUDA_ARCHITECTURES}")
    folder = configure("cuda", *options, CUDACXX=str(nvcc))
    build(folder, report, "cuda", cuda_objects(report))
    architectures = cuda_architectures(folder)
    report.facts.append(f"cuda: nvcc {version} compiled for {', '.join(architectures)}")
    report.prove("cuda", "compiled")
    check_linked(folder, report, "cuda")


def cuda_objects(report: Report) -> dict[str, Path]:
    """The object file of each operator, in the build of cuda()."""
    objects = build_folder("cuda") / "cuda" / "CMakeFiles" / "fourfold_cuda.dir"
    return {name: objects / f"{name}.cu.o" for name in report.operators}


def cuda_code(report: Report) -> None:
    """Checks that no kernel keeps values in local memory that belong in registers."""
    cuobjdump = tools.cuobjdump()
    objects = {name: path for name, path in cuda_objects(report).items() if path.exists()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(lambda path: compiled_code.of_file(path, cuobjdump), objects.values())
    for operator, found in zip(objects, outcomes, strict=True):
        for kernel, what in found.items():
            report.refuse("cuda", IN_REGISTERS, f"{kernel} has {what}", [operator])
    report.prove("cuda", IN_REGISTERS, objects)


def cuda_architectures(folder: Path) -> list[str]:
    """The architectures passed to nvcc. They can differ from those passed to CMake, because find_package(Torch) may
    change them."""
    commands = json.loads((folder / "compile_commands.json").read_text())
    told = {
        tuple(sorted(set(re.findall(r"arch=compute_(\w+)", command["command"]))))
        for command in commands
        if command["file"].endswith(".cu")
    }
    facts = (folder / "CMakeCache.txt").read_text()
    if len(told) != 1 or not next(iter(told)) or "FOURFOLD_CUDA" not in facts:
        raise Refused(f"nvcc's command lines name different architectures for different files, or none: {sorted(told)}")
    return sorted(next(iter(told)), key=lambda name: int(re.sub(r"\D", "", name)))


def cuda_commands() -> dict[Path, list[str]]:
    """nvcc's options for each source, in the build of cuda()."""
    listed = build_folder("cuda") / "compile_commands.json"
    if not listed.exists():
        raise Refused("the build for CUDA was not configured")
    commands = json.loads(listed.read_text())
    found = {Path(each["file"]): shlex.split(each["command"]) for each in commands if each["file"].endswith(".cu")}
    return {file: words[: words.index("-x")] for file, words in found.items()}


def owners(name: str, report: Report) -> list[str]:
    """The operators that a source of this name is for."""
    return [name] if name in report.operators else report.operators


def cuda_old(report: Report) -> None:
    """Checks the kernels against the oldest supported toolkit. No Python package has its nvcc, so a newer nvcc reads
    them with its headers, and its own ptxas assembles what the newer nvcc has compiled."""
    nvcc = tools.nvcc()
    if tools.nvcc_version(nvcc).startswith("12."):
        report.facts.append("cuda: that nvcc is of CUDA 12 itself")
        return
    headers, ptxas = tools.old_toolkit()
    folder = build_folder("cuda-12.8")
    folder.mkdir(parents=True, exist_ok=True)
    compiled = cuda_commands()
    words = [word for word in next(iter(compiled.values())) if not re.match(r"-O|--generate-code=", word)]
    words += [f"-I{headers}", f"-I{ROOT / 'cuda'}", "-fdevice-syntax-only", "-O0"]
    words.append(f"--generate-code=arch=compute_{OLD_VIRTUAL},code=[compute_{OLD_VIRTUAL}]")

    def read(file: Path) -> list[str]:
        target = folder / f"{file.stem}.o"
        return [*words, "-x", "cu", "-c", str(file), "-o", str(target), "-MD", "-MF", str(target.with_suffix(".d"))]

    everything = folder / "everything.cu"
    errors = front_end.refusals({file.stem: file for file in compiled}, everything, read)
    for name, why in errors.items():
        report.refuse("cuda", "compiled", f"CUDA 12.8's headers: {name} does not compile: {why}", owners(name, report))
    if not errors and str(headers / "cuda_runtime_api.h") not in everything.with_suffix(".d").read_text():
        raise Refused("nvcc did not read the headers of CUDA 12.8")
    kept, cuobjdump = WORK / "cuda-12.8-ptx", tools.cuobjdump()
    shutil.rmtree(kept, ignore_errors=True)
    objects = [(name, path) for name, path in cuda_objects(report).items() if path.exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        refusals = pool.map(lambda each: assemble(each[1], kept / each[0], cuobjdump, ptxas), objects)
    for (operator, _), why in zip(objects, refusals, strict=True):
        if why:
            report.refuse("cuda", "compiled", why, [operator])
    report.facts.append(
        f"cuda: also read with the headers of CUDA 12.8, and assembled by its ptxas for {OLD_ARCHITECTURE}"
    )


def assemble(file: Path, folder: Path, cuobjdump: Path, ptxas: Path) -> str:
    """Assembles the PTX in one object file; returns the error, or ""."""
    folder.mkdir(parents=True)
    output(cuobjdump, "-xptx", "all", file, cwd=folder)
    found = list(folder.glob("*.ptx"))
    if len(found) != 1:
        return f"{file.name} has {len(found)} PTX files instead of one"
    # A newer nvcc writes a newer PTX version; the kernels may only use features of the older one.
    text = re.sub(r"^\.version .*$", f".version {OLD_PTX}", found[0].read_text(), count=1, flags=re.MULTILINE)
    older = folder / "older.ptx"
    older.write_text(text)
    command = [str(ptxas), "-O0", f"-arch=sm_{OLD_ARCHITECTURE}", str(older), "-o", str(older.with_suffix(".cubin"))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[0]
        return f"CUDA 12.8's ptxas refuses the PTX of {file.name} for {OLD_ARCHITECTURE}: {said}"
    return ""


def hip(report: Report) -> None:
    # The code compiled here never runs. At -O1 clang takes twice as long, at -O3 eleven minutes for three of the files.
    options = ("-DFOURFOLD_HIP=ON", "-DFOURFOLD_CUDA=OFF", "-DCMAKE_HIP_FLAGS=-O0")
    folder = configure("hip", *options, PYTORCH_ROCM_ARCH=" ".join(HIP_ARCHITECTURES))
    objects = {name: folder / "hip" / f"{name}.o" for name in report.operators}
    build(folder, report, "hip", objects)
    for operator, path in objects.items():
        if path.exists():
            missing = set(HIP_ARCHITECTURES) - device_code(path)
            if missing:
                why = f"{path.name} holds no device code for {', '.join(sorted(missing))}"
                report.refuse("hip", "compiled", why, [operator])
    report.facts.append(f"hip: clang compiled for {', '.join(HIP_ARCHITECTURES)}")
    for architecture in READ_ARCHITECTURES:
        for name, why in hip_refusals(folder, objects, architecture).items():
            report.refuse("hip", "compiled", f"{name} does not compile for {architecture}: {why}", owners(name, report))
    if READ_ARCHITECTURES:
        report.facts.append(f"hip: clang read the kernels for {', '.join(READ_ARCHITECTURES)}")
    report.prove("hip", "compiled")
    check_linked(folder, report, "hip")


def hip_refusals(folder: Path, objects: dict[str, Path], architecture: str) -> dict[str, str]:
    """The errors of Clang's front end for an architecture that it only reads the kernels for."""
    commands = {}
    for operator in objects:
        (line,) = output(BIN / "ninja", "-C", folder, "-t", "commands", "-s", f"hip/{operator}.o").splitlines()[-1:]
        commands[operator] = shlex.split(line.split(" && ")[1])
    sources = {operator: Path(words[words.index("-c") + 1]) for operator, words in commands.items()}
    words = next(iter(commands.values()))
    words = [word for word in words[: words.index("-MD")] if not word.startswith("--offload-arch=")]
    words += ["--cuda-device-only", f"--offload-arch={architecture}", "-fsyntax-only"]
    return front_end.refusals(sources, folder / "everything.hip", lambda file: [*words, str(file)])


def device_code(path: Path) -> set[str]:
    """The architectures for which an object file has code."""
    bundle = path.with_suffix(".fatbin")
    output("objcopy", f"--dump-section=.hip_fatbin={bundle}", path, path.with_suffix(".copy"))
    said = output("clang-offload-bundler-19", "--list", "--type=o", f"--input={bundle}")
    return set(re.findall(r"amdhsa--(gfx\w+)", said))
