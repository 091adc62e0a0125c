"""Builds fourfold for the CPU with a sanitizer, on every CPU level, and runs the tests that exercise it most.

    python scripts/sanitize.py address       operators, gradients, changed model files under AddressSanitizer and UBSan
    python scripts/sanitize.py thread        the recurrent engine under ThreadSanitizer

`make sanitize-address` and `make sanitize-thread` install what this needs: GCC, whose sanitizers can be preloaded into
Python.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from backend_builds import BIN, configure, stage
from backend_report import Refused
from backend_tools import ROOT, output, run

# Deselected: tests of 64-bit indices need all memory; compiled graphs start compilers, which would run under the
# sanitizer too; gradcheck repeats the calls of other tests a thousand times.
EVERYTHING = (
    *("test_values.py", "test_gradients.py", "test_errors.py"),
    *("test_program.py", "test_program_layouts.py", "test_program_errors.py"),
    *("test_refused_models.py", "test_trusted_arguments.py"),
)
NOT = "not 64_bit and not captured and not compiled and not gradcheck"
# Tests that run different code on each CPU level.
OF_A_LEVEL = (
    "test_values.py",
    "test_gradients.py::test_raw_operator",
    "test_gradients.py::test_raw_backward_takes_any_layout",
    "test_program.py",
    "test_program_layouts.py",
    "test_program_errors.py",
)
# AddressSanitizer doesn't check AVX-512's masked loads and stores; on the other levels it checks all accesses.
LEVELS = ("default", "avx2", "avx512", "avx512_bf16", "amx")
SWEEP_SECONDS = "60"
OPTIONS = {
    # Python and torch never free some memory; their leaks would hide fourfold's.
    "address": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    "thread": {"TSAN_OPTIONS": "exitcode=66"},
}


def build(kind: str, *targets: str) -> Path:
    options = ("-DFOURFOLD_CPU_LEVELS=ON", "-DFOURFOLD_CUDA=OFF", "-DFOURFOLD_HIP=OFF", "-DFOURFOLD_METAL=OFF")
    folder = configure(f"sanitize-{kind}", *options, f"-DFOURFOLD_SANITIZE={kind}")
    log = folder / "build.log"
    if run(BIN / "ninja", "-C", folder, *targets, log=log).returncode:
        raise Refused(f"fourfold does not compile with the {kind} sanitizer; see {log.relative_to(ROOT)}")
    return folder


def compiler(folder: Path) -> str:
    return re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", (folder / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)


def preloaded(folder: Path) -> str:
    """The sanitizer's runtime, which has to be a process's first library, and the C++ runtime, whose exceptions it
    intercepts."""
    found = [output(compiler(folder), f"-print-file-name={name}").strip() for name in ("libasan.so", "libstdc++.so")]
    missing = [path for path in found if not Path(path).is_absolute()]
    if missing:
        raise Refused(f"{compiler(folder)} has no {missing[0]}: install GCC's sanitizers (Debian: libgcc-12-dev)")
    return " ".join(found)


def address() -> None:
    folder = build("address")
    package = stage(folder)
    # -S, with the build first in PYTHONPATH: an editable install would load its own library instead.
    environment = (
        os.environ
        | OPTIONS["address"]
        | {
            "LD_PRELOAD": preloaded(folder),
            "PYTHONPATH": os.pathsep.join([str(package), *filter(None, sys.path)]),
            "OMP_NUM_THREADS": "2",
        }
    )
    python = (sys.executable, "-S")
    facts = "import fourfold; print(fourfold.cpu_capability(), fourfold.__file__)"
    best, file = output(*python, "-c", facts, env=environment | {"FOURFOLD_CPU_CAPABILITY": ""}).split()
    if not Path(file).is_relative_to(package):
        raise Refused(f"the tests would run {file}, which is not the build for the sanitizer")
    fuzz(python, environment)
    for level in reversed(LEVELS[: LEVELS.index(best) + 1]):
        print(f"\n== AddressSanitizer, UBSan: {level}", flush=True)
        tests = [ROOT / "tests" / name for name in (EVERYTHING if level == best else OF_A_LEVEL)]
        pytest = (*python, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", NOT, *tests)
        if run(*pytest, cwd=ROOT, env=environment | {"FOURFOLD_CPU_CAPABILITY": level}).returncode:
            raise Refused(f"the tests of the {level} level fail under AddressSanitizer and UBSan")


def fuzz(python: tuple[str, ...], environment: dict[str, str]) -> None:
    """Randomly changed model files. The originals are those of the releases, because saving takes long under the
    sanitizer."""
    print("\n== AddressSanitizer, UBSan: files of models", flush=True)
    limits = "allocator_may_return_null=1:max_allocation_size_mb=2048"
    for originals in sorted((ROOT / "tests" / "data" / "models").iterdir()):
        own = {"FOURFOLD_FUZZED_MODELS": str(originals), "FOURFOLD_SWEEP_SECONDS": SWEEP_SECONDS}
        own["ASAN_OPTIONS"] = f"{environment['ASAN_OPTIONS']}:{limits}"
        own["UBSAN_OPTIONS"] = f"{environment['UBSAN_OPTIONS']}:halt_on_error=1"
        tests = (ROOT / "tests" / "test_fuzzed_models.py", ROOT / "tests" / "test_frozen_models.py")
        pytest = (*python, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *tests)
        if run(*pytest, cwd=ROOT, env=environment | own).returncode:
            raise Refused(f"a file made of those in {originals} crashes the process that loads it")


def thread() -> None:
    folder = build("thread", "races", "no_barrier")
    programs = folder / "tests" / "cpp" / "races"
    log = folder / "run.log"

    def command(name: str, level: str, *words: str) -> dict[str, Any]:
        environment = os.environ | OPTIONS["thread"] | {"FOURFOLD_CPU_CAPABILITY": level}
        said = [str(programs / name), *words]
        print("+", *said, flush=True)
        return {"args": said, "env": environment, "stderr": subprocess.STDOUT}

    # avx2, and the best level of this CPU. GCC instruments neither the memcpy of vectors that it inlines on the default
    # level nor AVX-512's masked loads and stores.
    for level in ("avx2", ""):
        print(f"\n== ThreadSanitizer: {level or 'the best level'}", flush=True)
        with log.open("w") as file:
            code = subprocess.run(**command("races", level), stdout=file).returncode
        said = log.read_text()
        if "unexpected memory mapping" in said:
            raise Refused("ThreadSanitizer cannot run here: set vm.mmap_rnd_bits to 28 with sysctl")
        print(said[-6000:], end="", flush=True)
        if code != 0:
            raise Refused(f"the engine's threads race, or compute what they should not; see {log.relative_to(ROOT)}")
        unseen = {"recurrent_forward.h", "recurrent_backward.h"}
        with subprocess.Popen(
            **command("no_barrier", level, "lstm", "1"), stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:
                unseen -= {file for file in unseen if file in line}
                if not unseen:
                    break
            process.kill()  # it would check a race in every value until it is stopped
        if unseen:
            raise Refused(
                f"ThreadSanitizer sees no race in {' and '.join(sorted(unseen))} of a team that does not wait"
            )
        print("in a team that does not wait it finds the races that are there", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sanitizer", choices=OPTIONS)
    try:
        {"address": address, "thread": thread}[parser.parse_args().sanitizer]()
    except Refused as why:
        sys.exit(f"sanitize.py: {why}")


if __name__ == "__main__":
    main()
