"""Builds fourfold for this machine's GPU, runs the tests there, also under a sanitizer, and measures it.

    python scripts/check_gpu.py
    python scripts/check_gpu.py --device mps
    python scripts/check_gpu.py --minutes 9 --steps build,tests
    python scripts/check_gpu.py --minutes 9 --steps build,bench,paths

The Python that runs it needs a torch that uses the GPU, pip, scikit-build-core, pybind11, cmake, ninja and pytest;
nothing is downloaded. The tests that need the GPU run first, then the measurements, and the CPU's tests last.
Measurements and a proof of the passed tests go to docs/benchmarks/gpu, the output of every step to
build/check-gpu.log, and each test's outcome to build/check-gpu. If OUT names a folder, all of them are copied there
too. Ends in a table of the steps; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gpu_proof
from gpu_context import FAILED, NOT_RUN, PASSED, TESTED, Context, Outcome, stopped
from gpu_device import ROOT, find_device, output_of
from gpu_sanitizers import sanitized

MEASURED = ROOT / "docs" / "benchmarks" / "gpu"
BUILD = ROOT / "build"
STEPS = ("build", "tests", "bench", "paths", "sanitizer", "rest")
BENCHMARKS = ("sequence", "elementwise", "pointwise", "mlp", "cell")  # the most important first


def build(context: Context) -> Iterator[Outcome]:
    """An editable install into the running Python, with kernels for this GPU only and without a package index."""
    state, built = installed(context)
    if state == "usable" and built > max(file.stat().st_mtime for file in sources()):
        yield Outcome("build", PASSED, "installed already, after the last change of its sources")
        return
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--verbose")
    device = context.device
    settings = ["build-dir=build/gpu", *(f"cmake.define.{k}={v}" for k, v in device.build_settings().items())]
    done = context.run(
        *(sys.executable, "-m", "pip", "install", *options),
        *(f"--config-settings={setting}" for setting in settings),
        *("--editable", "."),
        **device.build_environment(),
    )
    if done.code != 0:
        yield Outcome("build", FAILED, stopped(done) or done.telling(r"\berror\b|Error|No module named"))
        return
    state, _ = installed(context)
    yield Outcome("build", *((PASSED, "") if state == "usable" else (FAILED, f"{device.backend}: {state}")))


def installed(context: Context) -> tuple[str, float]:
    """Whether this Python has a fourfold whose kernels for this GPU work here, or why not, and when it was built."""
    say = (
        f"import fourfold, pathlib; state = fourfold.backends()['{context.device.backend}']; "
        "print(pathlib.Path(fourfold._C.__file__).stat().st_mtime, 'usable' if state['usable'] else state['reason'])"
    )
    done = context.run(sys.executable, "-c", say)
    if done.code != 0:
        return done.telling("Error"), 0.0
    built, _, state = done.telling("").partition(" ")
    return state, float(built)


def sources() -> list[Path]:
    """The Makefile's BUILD_INPUTS."""
    folders = ("cmake", "cpp", "cuda", "hip", "metal")
    files = [ROOT / name for name in ("CMakeLists.txt", "pyproject.toml", "scripts/bitcode.py")]
    return [*files, *(f for name in folders for f in (ROOT / name).rglob("*") if f.is_file())]


def tests(context: Context) -> Iterator[Outcome]:
    """The tests that need the GPU, or those that --tests names."""
    yield from run_tests(context, chosen(context) or on_device(context))
    where = context.device.where
    if context.results and not any(gpu_proof.count(context.results, operators(context), where)[0].values()):
        yield Outcome("tests", FAILED, f"no test of an operator ran on {where}")


def rest(context: Context) -> Iterator[Outcome]:
    """The other tests, most of them on the CPU, with this machine's torch."""
    return run_tests(context, on_cpu(context))


Runs = list[tuple[str, list[str]]]  # name, pytest's arguments


def chosen(context: Context) -> Runs:
    return [("chosen", context.arguments.tests)] if context.arguments.tests else []


def on_device(context: Context) -> Runs:
    return [(name, [f"tests/test_{name}.py", *selected]) for name, selected in context.device.tests.items()]


def on_cpu(context: Context) -> Runs:
    first, where = context.device.tests, context.device.where
    parts = [name for name, selected in first.items() if selected]
    folders = ("tests", "tests/repository")
    files = {
        file.stem.removeprefix("test_"): file for name in folders for file in sorted((ROOT / name).glob("test_*.py"))
    }
    runs = [(f"{name} on the CPU", [f"tests/test_{name}.py", "-k", f"not {where}"]) for name in parts]
    return runs + [(name, [str(file.relative_to(ROOT))]) for name, file in files.items() if name not in first]


def run_tests(context: Context, runs: Runs) -> Iterator[Outcome]:
    """Each run has its own process and results file, so that an error that destroys the GPU's context affects one file;
    the proof is written after each, so that a time limit loses nothing."""
    notes, command, variables = pytest_command(context)
    named = operators(context)
    for name, arguments in runs:
        if context.no_time():
            yield Outcome(f"tests: {name}", NOT_RUN, "no time left")
            continue
        results = BUILD / "check-gpu" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.jsonl"
        results.parent.mkdir(parents=True, exist_ok=True)
        results.unlink(missing_ok=True)
        limit = 60 * context.arguments.file_minutes
        done = context.run(*command, "--results", results, *arguments, limit=limit, **variables)
        keep(results)
        if results.exists():
            context.results[results] = done.code == 0
        write_proof(context, named)
        summary = stopped(done) or done.telling(TESTED)
        yield Outcome(f"tests: {name}", PASSED if done.code == 0 else FAILED, "; ".join([summary, *notes]))
        notes = []


def write_proof(context: Context, named: Sequence[str]) -> None:
    """The proof of the runs so far. It records that every test passed only if all runs took place and passed."""
    device = context.device
    passed, failed = gpu_proof.count(context.results, named, device.where)
    if passed or failed:
        every = all(context.results.values()) and len(context.results) == len(on_device(context)) + len(on_cpu(context))
        proof = gpu_proof.of(device.backend, dataclasses.asdict(device), passed, failed, commit(), every)
        save(MEASURED / f"proof-{device.slug}.json", proof)


def pytest_command(context: Context) -> tuple[list[str], list[str], dict[str, str]]:
    """Notes on missing packages, the command, and its environment. Other installed pytest plugins are not loaded:
    warnings are errors in these tests, and plugins may cause some."""
    notes, command = [], [sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "gpu_results"]
    paths = [str(ROOT / "scripts"), os.environ.get("PYTHONPATH")]
    variables = {"FOURFOLD_REQUIRE": context.device.where, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if importable("pytest_randomly"):
        command += ["-p", "pytest_randomly"]
    else:
        notes.append("without pytest-randomly: in the order of the files")
    if context.arguments.workers > 1 and importable("xdist"):
        command += ["-p", "xdist", "-n", str(context.arguments.workers)]
    if not importable("expecttest"):
        paths.insert(0, str(stand_in()))
        notes.append("expecttest is missing, which torch's own test helpers import and do not use here: a stand-in")
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return notes, command, variables


def importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def stand_in() -> Path:
    """torch.library.opcheck imports torch's own test helpers, whose classes derive from expecttest's."""
    folder = BUILD / "check-gpu-modules"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "expecttest.py").write_text("import unittest\n\n\nclass TestCase(unittest.TestCase):\n    pass\n")
    return folder


def operators(context: Context) -> list[str]:
    done = context.run(sys.executable, "-c", "import fourfold; print(*fourfold.operator_names())")
    return done.telling("").split() if done.code == 0 else []


def commit() -> str | None:
    """FOURFOLD_COMMIT names it if the sources were copied without .git."""
    return os.environ.get("FOURFOLD_COMMIT") or output_of("git", "describe", "--always", "--dirty", "--abbrev=12")


def save(path: Path, contents: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
    keep(path)


def keep(path: Path) -> None:
    if (out := os.environ.get("OUT")) and path.exists():
        shutil.copy(path, out)


def sanitizer(context: Context) -> Iterator[Outcome]:
    _, pytest, variables = pytest_command(context)
    return sanitized(context, pytest, variables)


def bench(context: Context) -> Iterator[Outcome]:
    folder = BUILD if context.arguments.quick else MEASURED
    folder.mkdir(parents=True, exist_ok=True)
    device = context.device
    for name in BENCHMARKS:
        if context.no_time():
            yield Outcome(f"bench {name}", NOT_RUN, "no time left")
            continue
        file = folder / f"{device.slug}-{name}.json"
        options = ["--device", device.where, "--json", str(file), *(["--quick"] if context.arguments.quick else [])]
        options += ["--dtype", *device.precisions] if name == "sequence" else []
        # Inductor takes minutes for an unrolled loop of a hundred steps, in each precision.
        options += ["--skip", "inductor"] if name == "sequence" and not context.arguments.compile_sequence else []
        done = context.run(sys.executable, "-m", "benchmarks", name, *options)
        telling = re.compile(rf"WRONG|target [≤≥]|: {device.where}:")
        print("\n".join(f"  {line.strip()}" for line in done.lines if telling.search(line)))
        keep(file)
        if done.code is None:
            yield Outcome(f"bench {name}", NOT_RUN, f"{stopped(done)}; its file holds the tables until then")
        else:
            why = "" if done.code == 0 else done.telling("WRONG|failed: |Error")
            yield Outcome(f"bench {name}", PASSED if done.code == 0 else FAILED, why)


def paths(context: Context) -> Iterator[Outcome]:
    """Times the kernels that an operator can choose from, each forced, around the thresholds between them."""
    file = (BUILD if context.arguments.quick else MEASURED) / f"paths-{context.device.slug}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    quick = ["--quick"] if context.arguments.quick else []
    where = ("--device", context.device.where)
    done = context.run(sys.executable, "-m", "benchmarks.gpu_paths", *where, "--json", file, *quick)
    print("\n".join(f"  {line}" for line in done.lines))
    keep(file)
    if done.code is None:
        yield Outcome("paths", NOT_RUN, f"{stopped(done)}; its file holds the rows until then")
    else:
        yield Outcome("paths", PASSED if done.code == 0 else FAILED, "" if done.code == 0 else done.telling("Error"))


def selection(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(STEPS)}, but got {','.join(unknown)!r}")
    return names


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "mps for an Apple GPU; cuda for NVIDIA's and AMD's, as torch calls both (%(default)s)"
    parser.add_argument("--device", choices=("cuda", "mps"), default="cuda", help=text)
    parser.add_argument("--steps", type=selection, default=list(STEPS), metavar="LIST", help=f"of {','.join(STEPS)}")
    parser.add_argument("--minutes", type=float, metavar="N", help="time for all steps; what doesn't fit is not run")
    text = "what to give to pytest, in one process (each file that needs the GPU in one of its own)"
    parser.add_argument("--tests", nargs="+", default=[], metavar="ARG", help=text)
    text = "time for one file of tests, which a kernel that never ends would use up (%(default)s)"
    parser.add_argument("--file-minutes", type=float, default=6.0, metavar="N", help=text)
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="test processes, with pytest-xdist (1)")
    cases = "pytest's -k for the sanitizer (what is neither large nor long)"
    parser.add_argument("--sanitizer-cases", metavar="EXPRESSION", help=cases)
    parser.add_argument("--quick", action="store_true", help="a quick look at the benchmarks; figures go to build/")
    text = "also run torch.compile in the benchmark of sequences, which takes many minutes"
    parser.add_argument("--compile-sequence", action="store_true", help=text)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parse(arguments)
    device = find_device(parsed.device)
    print(device.describe(), flush=True)
    BUILD.mkdir(exist_ok=True)
    context = Context(parsed, device, BUILD / "check-gpu.log")
    context.log.write_text("")
    outcomes: list[Outcome] = []
    for step in parsed.steps:
        if context.no_time():
            outcomes.append(Outcome(step, NOT_RUN, "no time left"))
        elif step != "build" and Outcome("build", FAILED) in [Outcome(o.step, o.state) for o in outcomes]:
            outcomes.append(Outcome(step, NOT_RUN, "the build failed"))
        else:
            for outcome in globals()[step](context):
                print(f"{outcome.step}: {outcome.state} {outcome.why}".rstrip(), flush=True)
                outcomes.append(outcome)
    outcomes += [Outcome(step, NOT_RUN, "left out by --steps") for step in STEPS if step not in parsed.steps]
    keep(context.log)
    width = max(len(outcome.step) for outcome in outcomes)
    print("\n" + "\n".join(f"{o.step.ljust(width)}  {o.state.ljust(7)}  {o.why}".rstrip() for o in outcomes))
    return int(any(outcome.state == FAILED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
