import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import requested
import seeds
import simulated
import simulated_programs
import spared
from forked import Forks
from fourfold.compiler import options
from op_cases import Case, on_its_path

spared.spare_torch_its_diagnostics()
requested.note_requests()
if library := os.environ.get("FOURFOLD_SIMULATED"):
    simulated.serve(library)
if library := os.environ.get("FOURFOLD_SIMULATED_PROGRAMS"):
    simulated_programs.serve(library, os.environ.get("FOURFOLD_RECORDED_PROGRAMS"))


# Tests that take tens of seconds, the longest first; of tests that share a compilation, one. The last six only if
# nothing is compiled yet.
LONG = (
    "test_modules_print_themselves",
    "test_the_first_command",
    "test_the_path_in_python",
    "test_operators_run_on_an_older_cpu[core2duo",
    "test_values_on_a_lower_level",
    "test_aot_inductor",
    "test_silero_vad_as_a_program",
    "test_kernels_that_are_required_need_no_gpu",
    "test_an_operator_without_its_files_is_named",
    "test_kernels_are_compiled_for_the_gpu_that_is_there",
    "test_both_ways_build_the_same",
    "test_the_extension_computes_the_definition[cell",
    *(f"test_kernels_that_are_right_are_right[{build}-forward" for build in ("checked", "address", "thread")),
    *(f"test_kernels_that_are_right_are_right[{build}-forward" for build in ("warp32", "warp64")),
)


def place(item: pytest.Item) -> int:
    return next((k for k, name in enumerate(LONG) if item.name.startswith(name)), len(LONG))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds, mostly in processes of its own")


def pytest_report_header() -> str:
    return seeds.said()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the long tests first in the share that `--dist worksteal` deals to each worker: a worker that starts one at
    the end keeps the others waiting."""
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    first = sorted((item for item in items if place(item) < len(LONG)), key=place)
    others = [item for item in items if place(item) == len(LONG)]
    size = -(-len(others) // workers)
    items[:] = [item for k in range(workers) for item in (*first[k::workers], *others[k * size : (k + 1) * size])]


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """A file's own tensors are the same in every run: torch seeds each process differently."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


# Core seconds of a test in the mean of the suite, on processors from Zen 3 to Zen 5.
CORE_SECONDS = (0.13, 0.24)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Says what to expect, once: a run of all tests prints dots for half an hour."""
    workers = node.config.option.numprocesses or 1
    if node.gateway.id == "gw0" and len(ids) > 1000:
        low, high = (max(1, round(len(ids) * each / workers / 60)) for each in CORE_SECONDS)
        reporter = node.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"{len(ids)} tests, some {low} to {high} minutes in {workers} processes")


def pytest_collection_finish(session: pytest.Session) -> None:
    if "torch._dynamo" in sys.modules:
        spared.spare_dynamo_its_clock()
    spared.spare_the_collector()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file's tests have left in torch's and our caches stays: a worker's heap grows to gigabytes, and searching
    it took an eighth of the suite's time."""
    if nextitem is not None and nextitem.path != item.path:
        spared.spare_the_collector()


@pytest.fixture(autouse=True)
def _fixed_state():
    """Each test starts from the same seed and changes no default, so that tests can run in any order."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


@pytest.fixture(autouse=True)
def _gpu_path(request: pytest.FixtureRequest) -> Iterator[None]:
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    case = given.get("case")
    device = getattr(request.module, "DEVICE", None)  # of a file for one device
    dtype = given.get("dtype", torch.float32 if device == "cuda" else None)
    with on_its_path(case, dtype, given.get("device", device)) if isinstance(case, Case) else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _generators_agree(request: pytest.FixtureRequest) -> Iterator[None]:
    """Loop nests run compiled functions, from the first call on, unless a test is about loop nests. For a sample of
    each test's programs, interpreter and loop nests must give the same bits."""
    from fourfold.compiler.nest.jit import service

    if service.obstacle() or "nest" in request.node.path.name or "FOURFOLD_SIMULATED_PROGRAMS" in os.environ:
        yield
        return
    from nests import SampledPrograms

    with SampledPrograms() as programs:
        yield
    programs.compare()


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base


def forks(*imports: str) -> Iterator[Forks]:
    forks = Forks(*imports)
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def after_torch() -> Iterator[Forks]:
    """Runs Python's commands in processes that have imported torch, and nothing of fourfold."""
    yield from forks("torch")


@pytest.fixture(scope="session")
def after_dynamo() -> Iterator[Forks]:
    """The same for commands that compile or train: torch's compiler takes seconds to import, too."""
    yield from forks("torch", "torch._dynamo", "torch._functorch.aot_autograd")


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """torch.distributed's process group of this process alone. The test's objects are collected before it is destroyed:
    the last reference to a group would wait, holding the GIL, for one of its threads, which needs the GIL."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.fixture
def collected() -> Iterator[None]:
    """For tests that count what their own calls leave to the garbage collector. Collects what earlier tests left until
    nothing is left, because that holds more objects by references that the collector doesn't see. The thread that
    compiles their nests, which creates cycles of its own, waits, and no call waits for it."""
    from fourfold.compiler.nest.jit import service

    with service.service.busy, mock.patch.object(options, "DEFAULT", "auto"):
        while gc.collect():
            pass
        yield


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Pretends that torch.onnx.export is under way, or isn't."""
    # Dynamo lists torch's functions once: before another stands in for one of them.
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    return lambda on: monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: on)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures in torch.compile's backend are errors."""
    monkeypatch.setenv("FOURFOLD_STRICT", "1")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def fresh_steps(strict: None) -> Iterator[None]:
    """Each test traces its scans' steps for its own sizes; steps that run in Python are errors."""
    from fourfold.scanning import capture

    capture._compiled.clear()
    yield
    capture._compiled.clear()


@pytest.fixture
def in_programs() -> Iterator[None]:
    """Every operator that programs support joins one, even if torch's kernel is faster alone."""
    from in_programs import everything_in_programs

    with everything_in_programs():
        yield


@pytest.fixture(params=["fourfold", "torch"])
def whose(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which runtime runs a compiled function's forward and backward: fourfold's autograd node, or AOTAutograd's
    wrappers."""
    from fourfold import _native
    from fourfold.compiler.pipeline import runtime

    if request.param == "torch":
        monkeypatch.setattr(runtime, "obstacle", lambda *_: "a test asks for torch's runtime")
    elif _native.module is None:
        pytest.skip("this build has no calls compiled for this torch")
    return request.param
