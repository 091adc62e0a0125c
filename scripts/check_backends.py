"""Compiles every GPU kernel for NVIDIA, AMD and Apple without a GPU and runs it in the simulator. Builds the library
for Windows.

    python scripts/check_backends.py

Ends in a table: what is proved of each operator on each backend, what isn't, and why. The exit code is 0 only if
everything is proved that can be proved without a GPU. `make check-backends` installs what this needs.
"""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import backend_builds
import backend_tools
import fourfold
import library_symbols
import metal_build
import windows_build
from backend_report import HARDWARE, IN_REGISTERS, Refused, Report
from backend_tools import ROOT, WORK, run

# A process each, all side by side. The first takes longest and runs its files' cases in as many processes as there are
# cores.
SIMULATOR_FILES = (
    ("case_table.py", "metal_language.py"),
    ("faults.py", "devices.py", "printed_functions.py", "paths.py"),
    ("nest_programs.py",),
    ("metal_programs.py", "broken_metal.py"),
)
# The simulator runs the kernels as HIP; with 32 threads per warp the results hold for CUDA too.
SIMULATED = {"32": ("cuda", "hip", "metal"), "64": ("hip",)}
NEEDS = {
    "cuda": "needs a GPU (make check-gpu)",
    "hip": "needs a GPU (make check-gpu)",
    "metal": "needs a Mac (make check-mac)",
}
ONLY_A_DEVICE = """\
What only a device can prove: that its tensor cores compute what their portable twin does, which the simulator runs
over the same tiles; that its blocks see each other's stores as the language promises, which the simulator
assumes; and every figure of speed. make check-gpu does, and make check-mac on a Mac."""


def simulator_tests(number: int, files: tuple[str, ...]) -> list[tuple[ElementTree.Element, Path]]:
    """Each test of these files, with the log that has its details."""
    results, log = WORK / f"simulated-{number}.xml", WORK / f"simulated-{number}.log"
    results.unlink(missing_ok=True)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
    paths = (ROOT / "tests" / "simulators" / name for name in files)
    run(*command, *paths, f"--junitxml={results}", "-o", "junit_family=xunit1", log=log, cwd=ROOT)
    if not results.exists():
        raise Refused(f"the simulator's tests broke off; see {log.relative_to(ROOT)}")
    print("\n".join(re.findall(r"^ +\d+ s  .*$", log.read_text(), re.MULTILINE)), flush=True)
    return [(case, log) for case in ElementTree.parse(results).iter("testcase")]


def simulated(report: Report) -> None:
    """The tests record with record_property what they ran: an operator, a warp size of 32 or 64, and the backend if it
    is only one. A test without a property counts for all its values."""
    with ThreadPoolExecutor(len(SIMULATOR_FILES)) as pool:
        outcomes = list(pool.map(simulator_tests, range(len(SIMULATOR_FILES)), SIMULATOR_FILES))
    for case, log in (each for outcome in outcomes for each in outcome):
        said = {item.get("name"): item.get("value") for item in case.iter("property")}
        operators = [said["operator"]] if "operator" in said else report.operators
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None)
        for warp in [said["warp"]] if "warp" in said else SIMULATED:
            for backend in [said["backend"]] if "backend" in said else SIMULATED[warp]:
                proof = f"simulated warp {warp}"
                if outcome is not None:
                    why = f"{outcome} in {case.get('name')}; see {log.relative_to(ROOT)}"
                    report.refuse(backend, proof, why, operators)
                elif "operator" in said:
                    report.prove(backend, proof, operators)


def hardware(report: Report) -> None:
    """The proofs that scripts/check_gpu.py wrote into docs/benchmarks on a machine with a GPU."""
    for file in sorted((ROOT / "docs" / "benchmarks" / "gpu").glob("proof-*.json")):
        document = json.loads(file.read_text())
        if document.get("check") == "gpu":
            report.prove(document["backend"], HARDWARE, document["passed"])
            report.facts.append(f"{document['backend']}: run on {document['device']}, see {file.relative_to(ROOT)}")
    for backend in ("cuda", "hip", "metal"):
        unseen = [o for o in report.operators if (o, backend, HARDWARE) not in report.proved]
        report.refuse(backend, HARDWARE, NEEDS[backend], unseen)


# (title, function, the proofs that are lost if it fails)
STEPS: tuple[tuple[str, Callable[[Report], None], tuple[tuple[str, str], ...]], ...] = (
    ("CUDA: compile, link, import", backend_builds.cuda, (("cuda", "compiled"), ("cuda", "linked"))),
    ("CUDA: look at the compiled code", backend_builds.cuda_code, (("cuda", IN_REGISTERS),)),
    ("CUDA 12.8: compile", backend_builds.cuda_old, (("cuda", "compiled"),)),
    ("HIP: translate, compile, link, import", backend_builds.hip, (("hip", "compiled"), ("hip", "linked"))),
    ("Metal: compile and link for macOS", metal_build.metal, (("metal", "compiled"), ("metal", "linked"))),
    ("Windows: compile, link, run under Wine", windows_build.windows, ()),
    ("simulator", simulated, tuple((b, f"simulated warp {warp}") for warp, those in SIMULATED.items() for b in those)),
    ("hardware", hardware, ()),
)


def main() -> None:
    report = Report(fourfold.operator_names())
    backend_tools.apt_packages()
    if library_symbols.missing_tools():
        sys.exit(f"check_backends.py needs {', '.join(library_symbols.missing_tools())}: install binutils")
    threading.Thread(target=backend_tools.fetch_ahead, daemon=True).start()
    failed = []
    for name, step, proofs in STEPS:
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        try:
            step(report)
        except (Refused, subprocess.CalledProcessError) as why:
            print(f"refused: {why}", flush=True)
            failed.append(f"{name}: {why}")
            for backend, proof in proofs:
                report.refuse(
                    backend, proof, str(why), [o for o in report.operators if not report.has(o, backend, proof)]
                )
        print(f"   {time.monotonic() - started:.0f} s", flush=True)
    report.facts += failed
    print(f"\n{report.text()}\n\n{ONLY_A_DEVICE}")
    sys.exit(bool(failed) or not report.complete())


if __name__ == "__main__":
    main()
