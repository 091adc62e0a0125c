"""Programs as kernels for NVIDIA's and AMD's GPUs in the simulator: pytest tests/simulators/nest_programs.py, which
make check-backends runs. Random programs are compared with the interpreter, compiled functions with eager; injected
errors in generated code must be found; and the vendors' compilers compile every kernel.

With FOURFOLD_PROGRAMS=full torch's operator samples and the compiler's own tests run too, which takes several quarters
of an hour.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from case_table import REVERSE as REVERSED
from case_table import WIDE_WARPS
from metal_language import refusals

import backend_tools
import gpu_functions
import grid_bytes
import seeds
import simulated
from compiled_functions import SAMPLES
from fourfold.compiler.nest.grid.build import build
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.loops import Grid
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.ir.schedule import NotCompiled
from fourfold.compiler.nest.print import cuda, metal
from fourfold.devices.nvrtc import Nvrtc
from machine import tool
from simulation import run_python

SEEDS = seeds.so_many(400 if simulated.FULL else 60)
# The architectures, from Turing to Blackwell, are divided between the versions of the compiler.
NVRTC = {"12": ("sm_75", "sm_90"), "13": ("sm_80", "sm_100", "sm_120")}
MOST_COMPILED = 10_000 if simulated.FULL else 25
# The number of programs, and what is left to torch, differ from the CPU's; and torch's batch norm for CPUs sums in
# float64, which no GPU's does.
OF_CPUS = (
    "one_program_forward_and_one_backward and batch",
    "batch_norm_alone",
    "variance_of_a_large_mean and 1000",
)
NOT_OF_CPUS = " and ".join(f"not ({tests})" for tests in OF_CPUS)
OF_COMPILER = (
    "test_compiler_operators",
    "test_compiler_gradients",
    "test_norms",
    "test_compiler_special",
    "test_compiler_expressions",
)


@dataclass(frozen=True)
class Setting:
    """A simulated device, and the order in which its threads run."""

    name: str
    sanitizer: str = "checked"
    environment: tuple[tuple[str, str], ...] = ()

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess:
        return run_python(*command, sanitizer=self.sanitizer, **dict(self.environment), **environment)

    def library(self) -> Path:
        return simulated.build(self.sanitizer)

    def random(self, first: int, last: int, *options: object) -> subprocess.CompletedProcess:
        return self.run("run_random_programs.py", self.library(), first, last, *options)

    def tests(self, *files: str, selection: str = "", record: Path | None = None) -> subprocess.CompletedProcess:
        given = {"FOURFOLD_SIMULATED_PROGRAMS": str(self.library())}
        given |= {"FOURFOLD_RECORDED_PROGRAMS": str(record)} if record else {}
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *files]
        return self.run(*command, *(["-k", selection] if selection else []), **given)


FORWARD = Setting("forward")
REVERSE = Setting("reverse order", environment=REVERSED)
WIDE_WARP = Setting("wavefront of 64, reverse order", environment=WIDE_WARPS + REVERSED)
RACES = Setting("ThreadSanitizer", sanitizer="thread")
ORDERS = (
    FORWARD,
    REVERSE,
    Setting("shuffled", environment=(("GPUSIM_SEED", "7"),)),
    Setting("one multiprocessor", environment=(("GPUSIM_MULTIPROCESSORS", "1"), ("GPUSIM_THREADS", "1"))),
)


def parameter(setting: Setting) -> Any:
    return pytest.param(setting, id=setting.name.replace(" ", "-"))


def expect_success(done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The programs and layouts that random programs and the table of compiled functions compile."""
    file = tmp_path_factory.mktemp("programs") / "recorded"
    expect_success(FORWARD.random(*SEEDS, "--record", file))
    expect_success(FORWARD.tests("test_gpu_programs.py", record=file))
    if simulated.FULL:
        expect_success(FORWARD.tests(*(f"{name}.py" for name in OF_COMPILER), selection=NOT_OF_CPUS, record=file))
    found = [tuple(json.loads(line)) for line in file.read_text().splitlines()]
    return list(dict.fromkeys(found))


def test_programs(recorded: list[tuple[str, str]]) -> None:
    """Random programs and compiled functions; the run also records what the compilers below get."""
    assert len(recorded) > SEEDS[1] - SEEDS[0]


def test_random_programs_in_reverse_order_with_wide_warps() -> None:
    expect_success(WIDE_WARP.random(*seeds.so_many(30, behind=1000)))


def test_random_programs_with_wide_indices() -> None:
    expect_success(FORWARD.random(*seeds.so_many(25, behind=2000), "--wide"))


@pytest.mark.parametrize("setting", [parameter(WIDE_WARP), parameter(FORWARD)])
def test_random_programs_with_long_rows(setting: Setting) -> None:
    expect_success(setting.random(*seeds.so_many(160 if simulated.FULL else 25, behind=len(setting.name)), "--long"))


PARTS = {REVERSE: "races", WIDE_WARP: "races or statistics or softmax or norm or exponentials"}


@pytest.mark.parametrize("setting", [parameter(setting) for setting in PARTS])
def test_compiled_functions(setting: Setting) -> None:
    """A part: what depends on the order of threads has barriers, and on the size of a warp also reductions of rows."""
    expect_success(setting.tests("test_gpu_programs.py", selection="" if simulated.FULL else PARTS[setting]))


def test_samples_of_operators() -> None:
    expect_success(WIDE_WARP.tests(*SAMPLES, selection=NOT_OF_CPUS if simulated.FULL else ""))


def test_no_thread_races_with_another() -> None:
    expect_success(RACES.random(*seeds.so_many(5)))
    expect_success(RACES.random(*seeds.so_many(4), "--long"))
    expect_success(RACES.tests("test_gpu_programs.py", selection="races"))


def test_the_same_bits_in_any_order(tmp_path: Path) -> None:
    digests = set()
    for setting in ORDERS:
        expect_success(setting.random(*seeds.so_many(25), "--bits", tmp_path / "bits"))
        digests.add((tmp_path / "bits").read_text())
    assert len(digests) == 1


def test_a_sum_in_the_order_of_threads_has_other_bits(tmp_path: Path) -> None:
    """What the test above would find: values within the tolerance, from an order that isn't fixed."""
    digests = set()
    for setting in (FORWARD, REVERSE):
        expect_success(setting.random(50, 75, "--bits", tmp_path / "bits", "--broken", "order"))
        digests.add((tmp_path / "bits").read_text())
    assert len(digests) == 2


@pytest.mark.parametrize("fault", ["barrier", "mask", "store", "stride", "chunk", "shift", "distance"])
def test_a_fault_is_seen(fault: str) -> None:
    done = FORWARD.random(0, 60, *(["--long"] if fault in ("shift", "distance") else []), "--broken", fault)
    assert done.returncode != 0
    assert "has other values" in done.stdout or "gpusim:" in done.stdout, done.stdout[-3000:]


def test_a_missing_barrier_is_a_race() -> None:
    done = RACES.random(8, 18, "--broken", "barrier")
    assert done.returncode != 0 and "data race" in done.stdout, done.stdout[-3000:]


# Compilers.


def grids(recorded: list[tuple[str, str]], first: int = 0) -> Iterator[tuple[Grid, GridLayout]]:
    """All, or a sample with different layouts, another one for each first."""
    step = max(1, len(recorded) // MOST_COMPILED)
    for text, layout in sorted(recorded, key=lambda pair: pair[1])[first % step :: step]:
        yield build(read(text), GridLayout.of(layout)), GridLayout.of(layout)


@pytest.mark.parametrize(("major", "architecture"), [(m, a) for m, listed in NVRTC.items() for a in listed])
def test_nvrtc(recorded: list[tuple[str, str]], major: str, architecture: str, tmp_path: Path) -> None:
    """No stack and no local memory; as many bytes loaded and stored as in the nest, with vectors as wide."""
    compiler, cuobjdump = Nvrtc(backend_tools.nvrtc(major)), backend_tools.cuobjdump()

    def check(numbered: tuple[int, tuple[Grid, GridLayout]]) -> str:
        number, (grid, layout) = numbered
        file = tmp_path / f"{number}.cubin"
        file.write_bytes(compiler.compile(cuda.print_file(grid), architecture, "a program"))
        return grid_bytes.faults(grid, layout, file, cuobjdump)

    with ThreadPoolExecutor() as pool:
        chosen = grids(recorded, first=NVRTC[major].index(architecture))
        found = [fault for fault in pool.map(check, enumerate(chosen)) if fault]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("architecture", gpu_functions.AMD)
def test_hip(recorded: list[tuple[str, str]], architecture: str, tmp_path: Path) -> None:
    backend_tools.apt_packages()
    compiler = tool("clang++-19", "clang-19")

    def check(numbered: tuple[int, tuple[Grid, GridLayout]]) -> None:
        folder = tmp_path / str(numbered[0])
        folder.mkdir()
        source = cuda.print_file(numbered[1][0])
        assert "s_endpgm" in gpu_functions.compile_for_amd(source, architecture, folder, compiler)

    with ThreadPoolExecutor() as pool:
        list(pool.map(check, enumerate(grids(recorded, first=gpu_functions.AMD.index(architecture)))))


def test_metals_language(recorded: list[tuple[str, str]], tmp_path: Path) -> None:
    def check(numbered: tuple[int, tuple[Grid, GridLayout]]) -> str:
        number, (grid, _) = numbered
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            return refusals(metal.print_file(grid), folder)
        except NotCompiled:
            return ""

    with ThreadPoolExecutor() as pool:
        found = [fault for fault in pool.map(check, enumerate(grids(recorded))) if fault]
    assert not found, "\n".join(found)


HEAD = "fourfold program 1\naxes a=x.0\n"
DOUBLED = HEAD + "x: {0} = input {0} [a]\ny: {0} = add x x\noutput y {0} [a]\n"
# Of two conditions that don't change in the loop.
CHOSEN = HEAD + (
    "x: float32 = input float32 [a]\nk: boolean = number\nq: boolean = number\ne: float32 = exp x\n"
    "l: float32 = log x\ns: float32 = where k x e\ny: float32 = where q s l\noutput y float32 [a]\n"
)
INDEXED = "volatile int local[{0}]; for (int k = 0; k < {0}; ++k) local[(k * thread_index()) % {0}] = k; store(y_out"


def test_what_a_gate_refuses(tmp_path: Path) -> None:
    """Values in local memory, and a load that is not in the nest or is not a vector."""
    compiler, cuobjdump = Nvrtc(backend_tools.nvrtc("13")), backend_tools.cuobjdump()

    def made(text: str, lanes: int, strides: str) -> tuple[str, Callable[[str], str]]:
        layout = GridLayout.of(f"grid elements rows=0 lanes={lanes} copies=2 group=1 each=0 split=0 wide=0:{strides}")
        grid = build(read(text), layout)

        def faults(source: str) -> str:
            file = tmp_path / "x.cubin"
            file.write_bytes(compiler.compile(source, "sm_90", "a program"))
            return grid_bytes.faults(grid, layout, file, cuobjdump)

        return cuda.print_file(grid), faults

    def narrow(source: str) -> str:
        found = re.sub(r"load<4>\((x_data.*?)((?:, valid\w*)?)\);", r"load_strided<4>(\1, 1\2);", source)
        assert found != source
        return found

    source, faults = made(DOUBLED.format("float32"), 4, "v,v")
    assert not faults(source)
    more = source.replace("store(y_out", "store(y_out + 4096, load<4>(x_data + 4096)); store(y_out", 1)
    assert "moves" in faults(more)
    assert "accesses" in faults(narrow(source))
    for numbers in (12, 64):
        assert "stack" in faults(source.replace("store(y_out", INDEXED.format(numbers), 1))
    source, faults = made(CHOSEN, 4, "v,0,0,v")
    assert not faults(source)
    assert "accesses" in faults(narrow(source))
    source, faults = made(DOUBLED.format("float64"), 2, "v,v")
    assert not faults(source)
    assert "a stack of 48 bytes" in faults(source.replace("store(y_out", INDEXED.format(12), 1))
