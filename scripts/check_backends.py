"""Compiles every GPU kernel for NVIDIA and for AMD on a machine that needs no GPU, and runs it in the simulator.

    python scripts/check_backends.py

Ends in a table: what is proved of each operator on each backend, and what is not, and why. The exit code is 0 only
where everything is proved that can be without a GPU. `make check-backends` sets up what this needs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from xml.etree import ElementTree

import backend_builds
import backend_tools
import fourfold
import library_symbols
from backend_report import HARDWARE, Refused, Report
from backend_tools import ROOT, WORK, run

SIMULATOR = ROOT / "tests" / "simulated.py"
# The tests that the simulated kernels have to pass: every case of every operator, forward and backward.
CASE_TABLE_TESTS = ("tests/test_values.py", "tests/test_gradients.py")


def simulated(report: Report) -> None:
    """The simulator runs the kernels as HIP; with 32 threads a warp that is also how CUDA runs them."""
    if not SIMULATOR.exists():
        raise Refused(f"not simulated: there is no {SIMULATOR.relative_to(ROOT)}")
    for warp, backends in ((32, ("cuda", "hip")), (64, ("hip",))):
        passed, failed = simulate(warp, report.operators)
        for operator in report.operators:
            why = failed.get(operator) or f"no test ran it in the simulator with {warp} threads a warp"
            for backend in backends:
                if operator in passed and operator not in failed:
                    report.prove(backend, f"simulated warp {warp}", [operator])
                else:
                    report.refuse(backend, f"simulated warp {warp}", why, [operator])


def simulate(warp: int, operators: tuple[str, ...]) -> tuple[set[str], dict[str, str]]:
    """The operators of which a test passed, and those of which one did not, with the first such test."""
    built = run(sys.executable, SIMULATOR, "--warp", warp, log=WORK / f"simulator-{warp}.log")
    said = (WORK / f"simulator-{warp}.log").read_text().split()
    if built.returncode or not said:
        raise Refused(f"the simulated kernels with {warp} threads a warp do not build")
    results = WORK / f"simulated-{warp}.xml"
    results.unlink(missing_ok=True)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *CASE_TABLE_TESTS, f"--junitxml={results}")
    run(*command, env=os.environ | {"FOURFOLD_CASE_TABLE": said[-1]}, cwd=ROOT)
    if not results.exists():
        raise Refused(f"pytest did not run the simulated kernels with {warp} threads a warp")
    passed, failed = set(), {}
    for case in ElementTree.parse(results).iter("testcase"):
        # A case of tests/op_cases.py is named operator-case, and its test test_values[operator-case-...].
        operator = case.get("name").partition("[")[2].partition("-")[0]
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None)
        if outcome is None:
            passed.add(operator)
        elif outcome != "skipped":
            for name in [operator] if operator in operators else operators:
                failed.setdefault(name, f"{outcome} in {case.get('name')} with {warp} threads a warp")
    return passed, failed


def hardware(report: Report) -> None:
    """What scripts/check_gpu.py wrote into docs/benchmarks on a machine with a GPU."""
    for file in sorted((ROOT / "docs" / "benchmarks" / "gpu").glob("proof-*.json")):
        document = json.loads(file.read_text())
        if document.get("check") == "gpu":
            report.prove(document["backend"], HARDWARE, document["passed"])
            report.facts.append(f"{document['backend']}: run on {document['device']}, see {file.relative_to(ROOT)}")
    for backend in ("cuda", "hip"):
        unseen = [o for o in report.operators if (o, backend, HARDWARE) not in report.proved]
        report.refuse(backend, HARDWARE, "needs a GPU (make check-gpu)", unseen)


# (what it is called, what it does, the proofs that fall with it)
STEPS: tuple[tuple[str, Callable[[Report], None], tuple[tuple[str, str], ...]], ...] = (
    ("CUDA: compile, link, import", backend_builds.cuda, (("cuda", "compiled"), ("cuda", "linked"))),
    ("CUDA 12.8: compile", backend_builds.cuda_old, (("cuda", "compiled"),)),
    ("HIP: translate, compile, link, import", backend_builds.hip, (("hip", "compiled"), ("hip", "linked"))),
    (
        "simulator",
        simulated,
        (("cuda", "simulated warp 32"), ("hip", "simulated warp 32"), ("hip", "simulated warp 64")),
    ),
    ("hardware", hardware, ()),
)


def main() -> None:
    report = Report(fourfold.operator_names())
    backend_tools.apt_packages()
    if library_symbols.missing_tools():
        sys.exit(f"check_backends.py needs {', '.join(library_symbols.missing_tools())}: install binutils")
    for name, step, proofs in STEPS:
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        try:
            step(report)
        except (Refused, subprocess.CalledProcessError) as why:
            print(f"refused: {why}", flush=True)
            for backend, proof in proofs:
                report.refuse(
                    backend, proof, str(why), [o for o in report.operators if not report.has(o, backend, proof)]
                )
        print(f"   {time.monotonic() - started:.0f} s", flush=True)
    print("\n" + report.text())
    sys.exit(not report.complete())


if __name__ == "__main__":
    main()
