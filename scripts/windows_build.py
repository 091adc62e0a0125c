"""The step of check_backends.py for Windows: builds libfourfold with clang and MinGW-w64 and links it against
torch's Windows library. If Wine is installed, it then runs the system calls (cpp/system/windows.h), the operators and
programs (tests/recorded_calls.py).

This proves nothing about Windows itself, or about a compiler with MSVC's C++ ABI, which the Python modules need.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import backend_tools as tools
from backend_builds import BIN, UNOPTIMIZED, configure
from backend_report import Refused, Report
from backend_tools import ROOT, WORK, build_folder, run

OPTIONS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror")


def windows(report: Report) -> None:
    """It proves nothing about GPU backends: its outcome is a line of the report."""
    torch = tools.windows_torch()
    library, built = build(torch)
    system = compile_program("system.cpp", "-I", ROOT / "cpp")
    stable = ("-I", ROOT / "cpp" / "include", "-isystem", torch / "include")
    stable += (library.with_suffix(".dll.a"), torch / "lib" / "torch_cpu.lib")
    calls, recorded = (compile_program(f"{name}.cpp", *stable) for name in ("stable_calls", "recorded_calls"))
    wine = shutil.which("wine64") or shutil.which("wine") or shutil.which("wine64", path="/usr/lib/wine")
    if wine is None:
        report.facts.append(f"windows: {built}; not run: Wine is not installed")
        return
    cpus = ask_the_system(wine, system)
    level = call_operators(wine, calls, library, torch)
    repeated = repeat_calls(wine, recorded, library, torch)
    report.facts.append(
        f"windows: {built}; under Wine the system calls run ({cpus}), and {repeated} ({level} kernels); "
        "unproved on Windows itself"
    )


def build(torch: Path) -> tuple[Path, str]:
    """Returns the library and a summary for the report."""
    options = ("-DFOURFOLD_PYTHON=OFF", "-DFOURFOLD_CUDA=OFF", "-DFOURFOLD_HIP=OFF", "-DFOURFOLD_METAL=OFF")
    options += (
        UNOPTIMIZED,
        f"-DCMAKE_TOOLCHAIN_FILE={tools.windows_toolchain()}",
        f"-DTorch_ROOT={torch}",
    )
    # The environment's compiler settings are for this machine.
    folder = configure("windows", *options, CXX="", CXXFLAGS="-Werror", LDFLAGS="", CMAKE_CXX_COMPILER_LAUNCHER="")
    library = folder / "cpp" / "libfourfold.dll"
    log = folder / "build.log"
    done = run(BIN / "ninja", "-C", folder, "-k", "0", "fourfold", log=log)
    if done.returncode or not library.exists():
        failed = not_built(log.read_text())
        raise Refused(f"for Windows {failed} does not build; see {log.relative_to(ROOT)}")
    objects = list((folder / "cpp").rglob("*.obj"))
    return library, f"{len(objects)} sources compiled by clang and linked against torch 2.10"


def not_built(log: str) -> str:
    """The sources that ninja could not build."""
    failed = re.findall(r"^FAILED: (?:\[code=\d+\] )?(\S+)", log, re.MULTILINE)
    return ", ".join(re.sub(r"^.*\.dir/|\.obj$", "", name) for name in failed) or "the library"


def compile_program(name: str, *options: object) -> Path:
    program = build_folder("windows") / Path(name).with_suffix(".exe")
    log = program.with_suffix(".log")
    source = ROOT / "tests" / "cpp" / name
    if run(*tools.windows_compiler(), *OPTIONS, source, *options, "-o", program, log=log).returncode:
        raise Refused(f"tests/cpp/{name} does not compile for Windows; see {log.relative_to(ROOT)}")
    return program


def under_wine(wine: str, program: Path, *words: str, folder: Path, **environment: str) -> str:
    """Returns what the program prints; raises Refused if it fails."""
    # Wine creates the prefix, its system drive, in its first seconds.
    surroundings = os.environ | {"WINEPREFIX": str(WORK / "wine"), "WINEDEBUG": "-all", "DISPLAY": ""} | environment
    command = [wine, str(program), *words]
    try:
        done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise Refused(f"{program.name} did not end under Wine within 300 s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        raise Refused(f"{program.name} fails under Wine: {said}")
    return done.stdout.strip()


def ask_the_system(wine: str, program: Path) -> str:
    """The output of tests/cpp/system.cpp."""
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        (files / "digits").write_text("0123456789")
        (files / "empty").touch()
        return under_wine(wine, program, "digits", "empty", ".", folder=files)


def repeat_calls(wine: str, program: Path, library: Path, torch: Path) -> str:
    """Calls that run here, with their results, repeated by tests/cpp/recorded_calls.cpp."""
    file = program.with_suffix(".calls")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "recorded_calls.py", file], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise Refused(f"tests/recorded_calls.py fails: {done.stderr.strip()}")
    operators = set(done.stdout.split("calls of ")[1].split()) - {"fourfold::_run_program"}
    count = call_operators(wine, program, library, torch, file.name)
    return f"{count} of {len(operators)} operators and of programs give Linux's results"


def call_operators(wine: str, program: Path, library: Path, torch: Path, *words: str) -> str:
    """The output of a program that calls the library: of tests/cpp/stable_calls.cpp the CPU level in use."""
    path = ";".join(f"Z:{folder}".replace("/", "\\") for folder in (library.parent, torch / "lib"))
    # Wine lacks the call with which Intel's OpenMP finds the processors of a NUMA node.
    return under_wine(wine, program, *words, folder=program.parent, WINEPATH=path, KMP_AFFINITY="disabled")
