"""The case table on every GPU kernel in the simulator: pytest tests/simulators/case_table.py, which make check-backends
runs. Each run executes the tests' own files in a process of its own, with the simulated kernels registered for the
operators.

A run takes about a minute, so make test leaves them out.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import fourfold
import seeds
import simulated
import simulated_metal
from machine import output_of, tool
from simulation import run_python

MULTIPROCESSORS = "16"  # each has room for one block of the persistent kernels
REVERSE = (("GPUSIM_REVERSE", "1"),)
SHUFFLED = (("GPUSIM_SEED", str(seeds.FIRST)),)  # another order of threads and blocks in each run
WIDE_WARPS = (("GPUSIM_WARP", "64"),)
LARGE = "(launches or row-groups or many or vendor or chunks)"  # cases of many rows or steps
TALL = f"({LARGE} or row-tiles)"
# Each type in one of the orders. Kernels round to TF32 alike in threads of either warp.
OF_WIDE_WARPS = (
    "contiguous and (test_values and float32 or test_autograd and (float32 or float64))"
    " or test_raw_operator or tf32 and (odd or row-tiles)"
)
OF_WIDE_WARPS_REVERSED = "contiguous and (test_values or test_autograd) and bfloat16"
# Of kernels beside a vendor's products each thread has its own elements. The same code synchronizes tiles and blocks of
# rows of every cell.
SHORT = (
    "not many and not long-batch and not (chunks and (lstm or gru)) and not launches and not row-groups and not vendor"
    " and not ((row-tiles or block-rows) and (lltm or gru))"
)
FEW_TYPES = "(test_values or test_autograd) and contiguous and (float32 or bfloat16)"


@dataclass(frozen=True)
class Run:
    name: str
    selection: str
    sanitizer: str = "checked"
    environment: tuple[tuple[str, str], ...] = ()
    metal: bool = False

    @property
    def warp(self) -> str:
        return dict(self.environment).get("GPUSIM_WARP", "32")

    def build(self) -> Path:
        return (simulated_metal if self.metal else simulated).build(self.sanitizer)


EVERYTHING = (
    "not 64_bit and not error_bounds and not threads_do_not and not captured_graph"
    " and not (raw_backward and (float64 or float16))"
    f" and not ({TALL} and (strided or shifted))"  # the host handles layouts, for any size
    f" and not (tf32_is and {LARGE})"  # as in tiles of rows
    f" and not (test_values and {LARGE} and not float32)"  # test_autograd runs the same kernels
    " and not same_call"  # threads run in the same order in both calls
    " and not gradcheck and not func_transforms and not vmap_and"
)
# Without most of the cases for other backends' kernels: for chunks of steps on a CPU, and CUDA's kernels for one block.
FOR_METAL = "not (chunks and (lstm or gru)) and not block-launches"
RUNS = [
    # Everything that is tested on the CPU: values, gradients, errors, and reproducible bits; except finite differences,
    # and Dynamo's and functorch's handling of a call, which don't depend on the kernel.
    Run("every test", f"{EVERYTHING} and not wide_layers", environment=SHUFFLED),
    # Enough multiprocessors to hold the blocks of hundreds of hidden units at once.
    WIDE := Run("wide layers", "wide_layers", environment=(("GPUSIM_MULTIPROCESSORS", "132"),)),
    # Errors that depend on the wavefront size or thread order don't depend on the layout.
    Run("wavefront of 64", OF_WIDE_WARPS, environment=WIDE_WARPS),
    Run("wavefront of 64, reverse order", OF_WIDE_WARPS_REVERSED, environment=WIDE_WARPS + REVERSE),
    # A block's resources and the choice of kernels depend on the device: these are Turing's limits.
    Run("smallest GPU", f"{FEW_TYPES} and not (test_values and bfloat16)", environment=(("GPUSIM_CAPABILITY", "7.5"),)),
    # ThreadSanitizer is expensive per thread. Races don't depend on layouts, on types only in whether tensor cores
    # support them, and between the chunks of long sequences not on the cell. Groups of rows share nothing.
    Run(
        "ThreadSanitizer",
        f"test_autograd and contiguous and (float32 or bfloat16 and odd) and {SHORT}",
        sanitizer="thread",
        environment=(("GPUSIM_MULTIPROCESSORS", "8"),),
    ),
    # Apple's GPUs have no float64, which some tests of gradients need, and no TF32, which one case shows.
    METAL := Run(
        "Metal, every test",
        f"{EVERYTHING} and {FOR_METAL} and not (tf32 and not odd) and not saved_tensors_of",
        environment=SHUFFLED,
        metal=True,
    ),
    Run(
        "Metal, ThreadSanitizer",
        f"test_autograd and contiguous and float32 and {SHORT} and not chunks",
        sanitizer="thread",
        metal=True,
    ),
]
# torch's products round each step's sums to 16 bits; over many steps this exceeds the table's tolerance.
METAL_BY_TORCH = Run(
    "Metal, with torch's products",
    f"({FEW_TYPES} or contiguous and float16 and test_autograd) and (lltm or lstm or gru or mlp) and not chunks",
    environment=(("FOURFOLD_GPU_PATH", "vendor"),),
    metal=True,
)


@dataclass(frozen=True)
class Outcome:
    code: int
    said: str
    passed: Counter
    failed: tuple[str, ...]
    library: Path
    launches: Path
    seconds: float


def carry_out(run: Run) -> Outcome:
    library = run.build()
    folder = library.parent
    name = re.sub(r"\W+", "-", run.name)
    results, launches = folder / f"{name}.xml", folder / f"{name}.launches"
    results.unlink(missing_ok=True)
    launches.write_text("")
    begun = time.monotonic()
    environment = {"GPUSIM_MULTIPROCESSORS": MULTIPROCESSORS} | dict(run.environment)
    environment |= {"FOURFOLD_SIMULATED": str(library), "GPUSIM_LAUNCHES": str(launches)}
    command = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-k", run.selection, f"--junitxml={results}"]
    command += [f"test_{name}.py" for name in ("values", "gradients", "errors")]
    done = run_python(*command, sanitizer=run.sanitizer, **environment)
    passed, failed = Counter(), []
    cases = ElementTree.parse(results).iter("testcase") if results.exists() else ()
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name"))
        elif case.find("skipped") is None:
            # test_values[lltm-packed-many-float32-contiguous-cpu]
            passed.update(o for o in fourfold.operator_names() if re.search(rf"[\[-]{o}[-\]]", case.get("name")))
    seconds = time.monotonic() - begun
    return Outcome(done.returncode, done.stdout, passed, tuple(failed), library, launches, seconds)


def looks_at(*runs: Run) -> Callable[[Any], Any]:
    """Declares the runs that a test without a run parameter needs."""

    def mark(test: Any) -> Any:
        test.runs = runs
        return test

    return mark


@pytest.mark.parametrize("operator", fourfold.operator_names())
@pytest.mark.parametrize("run", [pytest.param(run, id=run.name) for run in RUNS if run is not WIDE])
def test_the_case_table_holds(run: Run, operator: str, record_property, outcome_of) -> None:
    record_property("operator", operator)
    record_property("warp", run.warp)
    if run.metal:
        record_property("backend", "metal")
    outcome = outcome_of(run)
    # A sanitizer's report ends the process, or sets its exit code: then no operator is proved.
    assert outcome.code == 0, f"{outcome.failed}\n{outcome.said[-6000:]}"
    assert not re.search("Sanitizer|runtime error|^gpusim: ", outcome.said, re.MULTILINE), outcome.said[-6000:]
    assert outcome.passed[operator] > 0, f"no test of {operator} ran: {outcome.passed}"
    assert outcome.launches.read_text(), "no kernel was launched: the tests ran on the CPU's own"


def kernels_in(library: Path) -> dict[int, str]:
    """Each kernel's offset in the library, and its name with template arguments."""
    lines = output_of(tool("nm", "binutils"), "--demangle", "--defined-only", library).splitlines()
    found = {}
    for line in lines:
        match = re.match(
            r"(\w+) \w void fourfold::gpu::(\w*(?:kernel|elementwise)|(?:persistent|one_block)_\w+)(<.*)", line
        )
        if match:
            found[int(match.group(1), 16)] = match.group(2) + match.group(3).split(">(")[0] + ">"
    return found


@looks_at(WIDE)
def test_wide_layers_hold(outcome_of) -> None:
    outcome = outcome_of(WIDE)
    assert outcome.code == 0, f"{outcome.failed}\n{outcome.said[-6000:]}"
    assert all(outcome.passed[operator] > 0 for operator in ("lltm", "lstm", "gru"))


@looks_at(RUNS[0], WIDE)
def test_every_kernel_was_launched(outcome_of) -> None:
    """Every type and size of every template. Only the index type of elementwise kernels may differ: 64 bits are for
    more than 2^31 elements."""
    kernels = kernels_in(outcome_of(RUNS[0]).library)
    launches = [outcome_of(run).launches.read_text().split() for run in (RUNS[0], WIDE)]
    launched = {kernels[int(offset, 16)] for offsets in launches for offset in offsets}
    assert kernels

    def kind(name: str) -> str:
        return re.sub(r"^(strided_elementwise<.*?), unsigned (?:int|long),", r"\1,", name)

    assert sorted({kind(name) for name in kernels.values()} - {kind(name) for name in launched}) == []


def metal_kernels() -> set[str]:
    """Every kernel that a call on an Apple GPU may launch, by the names of templates and arguments."""
    floats = ("float", "half", "bfloat")
    integers = ("bool", "unsigned char", "char", "short", "int", "long")
    kernels = {
        f"{step}_step<{cell}, {t}, {way}>"
        for step in ("forward", "backward")
        for cell in ("Lltm", "Lstm", "Gru")
        for t in floats
        for way in ("Given", "Few", "Tiles")
    }
    names = ("previous_h", "mlp_forward", "mlp_rows_backward", "mlp_weights_backward")
    kernels |= {f"{name}<{t}>" for name in names for t in floats}
    formulas = {
        *(("Axpby<float>, 2, Forward", t, "float") for t in floats),
        *(("Axpby<unsigned long>, 2, Forward", t, "unsigned long") for t in integers),
        *((f"Softshrink<float>, 1, {call}", t, "float") for t in floats for call in ("Forward", "Backward")),
    }
    listed = {operator.title().replace("_", "") for operator in simulated.elementwise_operators()}
    assert {formula.partition("<")[0] for formula, _, _ in formulas} == listed
    activations = {
        (f"Activate<{activation}>, 0, {call}", t, "float")
        for activation in ("Relu", "Tanh", "Gelu", "Silu")
        for t in floats
        for call in ("Forward", "Backward")
    }
    kernels |= {f"dense_elementwise<{t}, {v}, {f}>" for f, t, v in formulas | activations}
    # Saved values of a layer among others are strided.
    return kernels | {f"strided_elementwise<{t}, {v}, {f}, unsigned int>" for f, t, v in formulas}


@looks_at(METAL_BY_TORCH)
def test_metal_holds_with_torchs_products(outcome_of) -> None:
    outcome = outcome_of(METAL_BY_TORCH)
    assert outcome.code == 0, f"{outcome.failed}\n{outcome.said[-6000:]}"
    assert all(outcome.passed[operator] > 0 for operator in ("lltm_cell", "lltm", "lstm", "gru", "mlp", "mlp_layers"))


@looks_at(METAL, METAL_BY_TORCH)
def test_every_metal_kernel_was_launched(outcome_of) -> None:
    said = "".join(outcome_of(run).launches.read_text() for run in (METAL, METAL_BY_TORCH))
    launched = set(re.findall(r"void (.*?>)\(", said.replace("fourfold::", "")))
    assert sorted(metal_kernels() - launched) == []
