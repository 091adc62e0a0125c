"""``files``: models saved in one file, against AOTInductor's packages and torch.export's: time to save, size, load and
first call in a fresh process, in Python and in C++, and warm calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import fourfold
from benchmarks.cold import median
from benchmarks.file_models import MODELS, exported
from benchmarks.processes import ROOT
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import OURS, Outcome
from fourfold.cli.timing import pinned_threads

EXPORT, AOTI = "torch.export", "AOTInductor"
SUFFIXES = {OURS: ".ff", EXPORT: ".pt2", AOTI: ".aoti.pt2"}
IN_CPP = f"{OURS}, C++"
NEEDS = {
    OURS: "Python, fourfold",
    EXPORT: "Python",
    AOTI: "to save: a C++ compiler; to load: the processor's instructions",
    IN_CPP: "libtorch, libfourfold",
}
REPEATS = 3
PARTS = ("load", "first call", "warm call")


class Failed(Exception):
    """A process that returned no times."""


def tables(request: Request) -> Iterator[Report]:
    with tempfile.TemporaryDirectory() as folder, pinned_threads(1):
        program = cpp_program(Path(folder) / "cpp")
        for name in request.kinds or (tuple(MODELS)[2:] if request.quick else tuple(MODELS)):
            own = Path(tempfile.mkdtemp(dir=folder))
            yield report(name, own, program, request)
            shutil.rmtree(own)


def cpp_program(build: Path) -> Path | None:
    """The program of tests/consumer, or None if it can't be built."""
    cmake = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
    package = subprocess.run(
        [sys.executable, "-m", "fourfold", "--cmake-dir"], capture_output=True, text=True, cwd=ROOT
    )
    options = [f"-Dfourfold_DIR={package.stdout.strip()}", f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"]
    commands = (
        [cmake, "-S", str(ROOT / "tests" / "consumer"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", *options],
        [cmake, "--build", str(build), "--target", "runs_model"],
    )
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return build / "runs_model"


def saved(name: str, way: str, path: Path) -> float:
    """Seconds to save the model, without the export."""
    program = exported(name)
    start = time.perf_counter()
    if way == OURS:
        fourfold.save(program, path)
    elif way == EXPORT:
        torch.export.save(program, str(path))
    else:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return time.perf_counter() - start


def report(name: str, folder: Path, program: Path | None, request: Request) -> Report:
    torch.manual_seed(1)
    args = MODELS[name].inputs()
    inputs, calls = folder / "inputs.pt", folder / "calls.pt"
    torch.save(args, inputs)
    torch.save([pytree.tree_leaves(args)], calls)
    exact = results_of(name, args)
    rows: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    ways = [way for way in SUFFIXES if way != AOTI or not ({"inductor"} & set(request.skip) or request.quick)]
    for way in ways:
        path = folder / f"model{SUFFIXES[way]}"
        try:
            seconds = saved(name, way, path)
        except Exception as error:  # a rival's failure becomes a line under the table
            if way == OURS:
                raise
            reasons[way] = (str(error).splitlines() or [type(error).__name__])[0][:200]
            continue
        rows[way] = {"save": seconds, "size": path.stat().st_size / 1e6}
        sample(rows, reasons, way, lambda way=way, path=path: in_python(way, path, inputs, folder, exact), request)
    if program is not None and OURS in rows:
        rows[IN_CPP] = {key: rows[OURS][key] for key in ("save", "size")}
        path = folder / f"model{SUFFIXES[OURS]}"
        sample(rows, reasons, IN_CPP, lambda: in_cpp(program, path, calls, folder, exact), request)
    return table(name, rows, reasons)


def sample(rows: dict[str, Any], reasons: dict[str, str], way: str, run: Any, request: Request) -> None:
    try:
        found = [run() for _ in range(1 if request.quick else 1 + REPEATS)][0 if request.quick else 1 :]
    except Failed as failed:
        reasons[way] = str(failed)
        del rows[way]
        return
    rows[way] |= {part: median([each[part] for each in found]) for part in PARTS}


def results_of(name: str, args: tuple[Any, ...]) -> list[Any]:
    torch.manual_seed(0)
    model = MODELS[name].make().eval()
    with torch.no_grad():
        return pytree.tree_leaves(model(*args))


def in_python(way: str, path: Path, inputs: Path, folder: Path, exact: list[Any]) -> Mapping[str, float]:
    results = folder / "results.pt"
    command = [sys.executable, "-m", "benchmarks.first_file", way, str(path), str(inputs), str(results)]
    done = run(command)
    expect_same(torch.load(results), exact)
    return json.loads(done.splitlines()[-1])


def in_cpp(program: Path, path: Path, calls: Path, folder: Path, exact: list[Any]) -> Mapping[str, float]:
    results = folder / "results.pt"
    done = run([str(program), str(path), str(calls), str(results), "1000"])
    expect_same(list(torch.load(results, weights_only=False)[0]), exact)
    found = dict(line.split() for line in done.splitlines())
    return {"load": float(found["load"]), "first call": float(found["first"]), "warm call": float(found["warm"])}


def run(command: Sequence[object], **variables: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # pip then compiles bytecode at installation
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def expect_same(found: list[Any], exact: list[Any]) -> None:
    for mine, theirs in zip(found, exact, strict=True):
        error = float((mine.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-6))
        if error > 1e-3:
            raise ArithmeticError(f"files: expected results within 1e-3 of eager mode's, but got {error:.1e}")


def table(name: str, rows: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]) -> Report:
    cells, figures = [], []
    for way, row in rows.items():
        first = row["load"] + row["first call"]
        cells.append(
            (
                way,
                f"{row['save']:.2f}",
                f"{row['size']:.1f}",
                f"{row['load']:.1f}",
                f"{row['first call']:.1f}",
                f"{first:.1f}",
                f"{row['warm call']:.3f}",
                NEEDS[way],
            )
        )
        figures.append({"way": way, "load and first call": first, "needs": NEEDS[way], **row})
    outcomes = [
        Outcome(target("load and first call of a file", against), MODELS[name].title, figure["load and first call"])
        for way, against in ((OURS, "Python"), (IN_CPP, "C++"))
        for figure in figures
        if figure["way"] == way
    ]
    return Report(
        title=f"{MODELS[name].title}: saved and run in a fresh process, one thread; medians",
        headings=("", "save, s", "MB", "load, ms", "first call, ms", "both, ms", "warm call, ms", "needs"),
        cells=cells,
        figures=figures,
        notes=[
            "load: with what is imported besides torch.",
            *(f"{way} fails: {why}" for way, why in reasons.items()),
        ],
        outcomes=outcomes,
        wrong=OURS in reasons,
    )
