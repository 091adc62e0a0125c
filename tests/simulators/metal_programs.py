"""Programs as Metal kernels in the simulator: pytest tests/simulators/metal_programs.py. Each run executes the compiled
functions (tests/test_gpu_programs.py) or random programs in a process of its own. The generated code is also compiled
with Metal's address spaces; and injected errors, in generated code and in host code, must be found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from case_table import REVERSE
from metal_language import refusals

import seeds
import simulated_metal
from compiled_functions import FUNCTIONS, SAMPLES
from simulated import FULL
from simulation import run_python

RACES = "races"
WRONG = "Tensor-likes are not equal|Tensor-likes are not close"


@dataclass(frozen=True)
class Run:
    selection: str = ""
    sanitizer: str = "checked"
    environment: Mapping[str, str] = field(default_factory=dict)


RUNS = {
    "everything": Run(),
    "reverse order": Run(RACES, environment=dict(REVERSE)),  # of kernels with barriers
    "ThreadSanitizer": Run(RACES, sanitizer="thread"),
}
SEEDS = {"everything": (60, 0), "reverse order": (30, 1000), "ThreadSanitizer": (8, 0)}


def said_by(run: Run, *command: object, **variables: str) -> tuple[int, str]:
    """The exit code, and Python's output."""
    done = run_python(*command, sanitizer=run.sanitizer, **run.environment, **variables)
    return done.returncode, done.stdout


def pytest_of(
    run: Run,
    metal: Path = simulated_metal.METAL,
    plugin: Path | None = None,
    tests: Sequence[str] = ("test_gpu_programs.py",),
) -> tuple[int, str]:
    """plugin: a module that injects an error first."""
    variables = {"FOURFOLD_SIMULATED_PROGRAMS": str(simulated_metal.build(run.sanitizer, metal))}
    command = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly"]
    if plugin is not None:
        variables["PYTHONPATH"] = str(plugin.parent)
        command += ["-x", "-p", plugin.stem]
    return said_by(run, *command, "-k", run.selection, *tests, **variables)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file to which a run appends the sources that it compiles."""
    return tmp_path_factory.mktemp("programs") / "sources"


@pytest.mark.parametrize("name", RUNS)
def test_compiled_functions(name: str, sources: Path, record_property) -> None:
    record_property("backend", "metal")
    record_property("warp", "32")
    run = RUNS[name]
    if name == "everything":
        run = replace(run, environment={"GPUSIM_SOURCES": str(sources)})
    code, said = pytest_of(run)
    # A sanitizer's report ends the process, or sets its exit code.
    assert code == 0, said[-6000:]
    assert not re.search("Sanitizer|runtime error|^gpusim: ", said, re.MULTILINE), said[-6000:]
    expected = [function for function in FUNCTIONS if function.races or not run.selection]
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None and int(passed[1]) >= len(expected) > 5


def test_samples_of_operators() -> None:
    code, said = pytest_of(Run(), tests=SAMPLES)
    assert code == 0 and (FULL or f"{len(SAMPLES)} passed" in said), said[-6000:]


@pytest.mark.parametrize("name", RUNS)
def test_random_programs(name: str, sources: Path) -> None:
    """Compared with the interpreter."""
    run, (first, end) = RUNS[name], seeds.so_many(*SEEDS[name])
    noted = {"GPUSIM_SOURCES": str(sources)} if name == "everything" else {}
    library = simulated_metal.build(run.sanitizer)
    code, said = said_by(run, "run_random_programs.py", library, first, end, **noted)
    assert code == 0 and f"{end - first} random programs" in said, said[-6000:]


def test_random_programs_with_long_rows(sources: Path) -> None:
    (first, end), noted = seeds.so_many(160 if FULL else 25), {"GPUSIM_SOURCES": str(sources)}
    code, said = said_by(Run(), "run_random_programs.py", simulated_metal.build(), first, end, "--long", **noted)
    assert code == 0 and f"{end - first} random programs" in said, said[-6000:]


def test_every_program_is_in_metals_language(sources: Path, tmp_path: Path) -> None:
    """The programs of the earlier runs, or of a run for this test."""
    if not sources.exists():
        pytest_of(Run(environment={"GPUSIM_SOURCES": str(sources)}))
    files = sorted(set(sources.read_text().splitlines()))
    assert len(files) > 50

    def check(file: str) -> str:
        folder = tmp_path / Path(file).stem
        folder.mkdir()
        return refusals(Path(file).read_text(), folder)

    with ThreadPoolExecutor() as pool:
        assert {file: said for file, said in zip(files, pool.map(check, files), strict=True) if said} == {}


# Errors in generated code, and how each is detected.
MISTAKES = {
    "a missing barrier": (
        "from fourfold.compiler.nest.grid.builder import GridBuilder\nGridBuilder.barrier = lambda self: None",
        Run("statistics_of_2000", "thread"),
        "data race",
    ),
    "one barrier for two reductions": (
        """
from fourfold.compiler.nest.grid import builder
before = builder.GridBuilder.across_parts
def across_parts(self, *given):
    found = before(self, *given)
    self.writer.body.pop()
    return found
builder.GridBuilder.across_parts = across_parts
""",
        Run("statistics_of_2000", "thread"),
        "data race",
    ),
    "a wrong tensor": (
        """
from fourfold.compiler.nest.print import metal
metal.Dialect.address = lambda self, index: metal.Expression(f"tensor_{index ^ (index < 2)}")
""",
        Run("shifted"),
        WRONG,
    ),
    "a mask left out": (
        """
from fourfold.compiler.nest.grid.elements import Elements, ThreadVector
before = Elements.place
def place(self, at, copy, vectors):
    return ThreadVector(before(self, at, copy, vectors).offsets, None)
Elements.place = place
""",
        Run("vectors"),
        "of an allocation of",
    ),
    "a broadcast element that is always read": (
        """
from fourfold.compiler.nest.grid import builder
before = builder.GridBuilder.load
builder.GridBuilder.load = lambda self, value, offset, valid=None: before(self, value, offset)
""",
        Run("broadcast"),
        "of an allocation of",
    ),
    "a kernel that does not compile": (
        """
from fourfold.compiler.nest.print import metal
metal.Dialect.address = lambda self, index: metal.Expression(f"tensors_{index}")
""",
        Run("sums_of_columns"),
        r"no kernels for these tensors: fourfold: Metal does not compile fourfold_columns and fourfold_finish of a "
        r"compiled program:(?s:.*)tensors_0",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_what_is_printed_is_seen(mistake: str, tmp_path: Path) -> None:
    code, run, seen_as = MISTAKES[mistake]
    (tmp_path / "mistaken.py").write_text(code)
    status, said = pytest_of(run, plugin=tmp_path / "mistaken.py")
    assert status not in (0, 5), "no test saw it"
    assert re.search(seen_as, said), said[-4000:]


def test_a_program_is_left_to_torch_where_a_threadgroup_has_no_room() -> None:
    code, said = pytest_of(Run("statistics_of_2000", environment={"GPUSIM_METAL_THREADS": "128"}))
    assert code == 1
    assert re.search("expected threadgroups of [0-9]+ threads for fourfold_rows of a compiled program, but", said), said


def test_kernels_in_another_order_are_seen(tmp_path: Path) -> None:
    right, wrong = "encoder.use(pipelines_[k]);", "encoder.use(pipelines_[pipelines_.size() - 1 - k]);"
    metal = tmp_path / "metal"
    shutil.copytree(simulated_metal.METAL, metal)
    text = (metal / "program.mm").read_text()
    assert text.count(right) == 1
    (metal / "program.mm").write_text(text.replace(right, wrong))
    status, said = pytest_of(Run("sums_of_columns"), metal)
    assert status not in (0, 5), "no test saw it"
    assert re.search(WRONG, said), said[-4000:]
