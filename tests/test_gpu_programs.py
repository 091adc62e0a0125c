"""Compiled functions whose programs run on a GPU, real or simulated: values and gradients."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fourfold
import seeds
from compiled_functions import FUNCTIONS, Function, is_simulated
from fourfold.compiler.nest.jit.service import Service, number, service
from fourfold.compiler.pipeline.calling import Program
from fourfold.devices import programs
from fourfold.scanning import capture
from machine import devices
from nests import of_explained
from random_programs import Generator
from run_random_programs import NO_FLOAT64, differences, is_exact, on_device

GPUS = [device for device in devices() if device != "cpu" and not programs.obstacle(device)]
REQUIRED = os.environ.get("FOURFOLD_REQUIRE", "cpu")
if REQUIRED not in ("cpu", *GPUS):
    raise RuntimeError(f"FOURFOLD_REQUIRE={REQUIRED}, but programs don't run there: {programs.obstacle(REQUIRED)}")
DEVICES = ["cpu"] if is_simulated() else GPUS

pytestmark = [
    pytest.mark.skipif(not DEVICES, reason="needs a GPU (make check-gpu)"),
    pytest.mark.filterwarnings("error:fourfold could not compute"),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: f"{function.name}{'-races' * function.races}")
def test_a_compiled_function_is_what_eager_computes(function: Function, device: str) -> None:
    function.check(device)


@pytest.mark.parametrize("device", DEVICES)
def test_other_sizes_of_a_function_that_is_compiled_for_any(device: str) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1).cos()

    torch._dynamo.reset()
    function = torch.compile(call, backend="fourfold", dynamic=True)
    for rows, columns in ((3, 40), (50, 7), (1, 3000), (2, 41)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(function(x.to(device)).cpu(), call(x))


@pytest.mark.skipif(not GPUS, reason="needs a GPU (make check-gpu)")
@pytest.mark.parametrize("first", range(0, 1000, 50))
@pytest.mark.parametrize("device", GPUS)
def test_random_programs_are_as_interpreted(device: str, first: int) -> None:
    """In every memory layout."""
    types = NO_FLOAT64 if device in programs.WITHOUT_FLOAT64 else ("float64", *NO_FLOAT64)
    place = torch.device(device, 0)
    generator, wrong = number(device=place), []
    for seed in range(seeds.FIRST + first, seeds.FIRST + first + 50):
        case = Generator(seed, types).program()
        expected = Program(case.text, "interpreted", 0)(*case.arguments)
        got = Program(case.text, "on_a_gpu", generator, place)(*(on_device(a, device) for a in case.arguments))
        wrong += [f"seed {seed}: {what}\n{case.text}" for what in differences(got, expected, is_exact(case.text))]
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """The programs, layouts and targets that are compiled from here on."""
    found = []
    compile_grid = Service.compile_grid
    monkeypatch.setattr(Service, "compile_grid", lambda self, *given: found.append(given) or compile_grid(self, *given))
    return found


@pytest.mark.parametrize(("apart", "wide"), [(2**30, 1), (2**29 - 40, 0)])
@pytest.mark.parametrize("device", DEVICES)
def test_indices_have_64_bits_where_rows_lie_far_apart(
    device: str, apart: int, wide: int, asked: list[tuple[str, str, str]]
) -> None:
    """2^30 elements apart, the last of three rows begins 2^31 elements after the first, which 32 bits can't hold."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 1.375, -1).cos()

    values = torch.randn(3, 40).half()
    room = torch.empty(2 * apart + 40, dtype=torch.float16, device=device)  # at most 4 GiB
    x = room.as_strided((3, 40), (apart, 1)).copy_(values)
    torch._dynamo.reset()
    result = torch.compile(call, backend="fourfold")(x)
    torch.testing.assert_close(result.cpu().float(), call(values.float()), rtol=2e-3, atol=2e-3)
    ((_, layout, _),) = asked
    assert f" wide={wide}" in layout


class Loaded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 1.75, -1).cos() + x.sin().exp()


@pytest.mark.parametrize("device", DEVICES)
def test_a_models_file_runs_its_programs_there(device: str, asked: list[tuple[str, str, str]], tmp_path: Path) -> None:
    x = torch.randn(6, 40)
    fourfold.save(torch.export.export(Loaded(), (x,)), tmp_path / "model.ff")
    model = fourfold.load(tmp_path / "model.ff", device=device)
    with torch.no_grad():
        torch.testing.assert_close(model(x.to(device)).cpu(), Loaded()(x))
    assert asked, "no program ran"


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_are_cached_for_other_processes(
    device: str, asked: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOURFOLD_CACHE", str(tmp_path))
    x = torch.randn(6, 40)
    torch._dynamo.reset()
    torch.compile(lambda x: (x * 1.625).sin() + x, backend="fourfold")(x.to(device))
    (given,) = asked
    with service.busy:  # the code is attached before it is cached
        pass

    def refuse(*_: object) -> bytes:
        raise AssertionError("compiled again")

    name = given[2].partition(" ")[0]
    monkeypatch.setitem(programs.LANGUAGES, name, dataclasses.replace(programs.LANGUAGES[name], compile=refuse))
    Service().compile_grid(*given)
    monkeypatch.setenv("FOURFOLD_CACHE", str(tmp_path / "other"))
    with pytest.raises(AssertionError, match="compiled again"):
        Service().compile_grid(*given)


def of_rows_and_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).cos() + x.sum(0)


@pytest.fixture
def call() -> Callable[[torch.Tensor], torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(of_rows_and_columns, backend="fourfold")


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU (make check-gpu)")
def test_programs_are_captured_in_a_graph(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(50, 300, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(x)
    x.copy_(torch.randn(50, 300))
    graph.replay()
    torch.testing.assert_close(captured, of_rows_and_columns(x))


TRAINING = """
import torch, fourfold
from torch.nn import functional as F

x, w, b = (torch.randn(size, device="cuda") for size in ((10_000, 1000), (1000,), (1000,)))
call = torch.compile(lambda x, w, b: F.layer_norm(x, (1000,), w, b), backend="fourfold")
leaves = [each.requires_grad_() for each in (x, w, b)]
grad = torch.randn_like(x)

def inference():
    with torch.no_grad():
        return call(x, w, b)

def training():
    return torch.autograd.grad(call(*leaves), leaves, grad)

for step in (inference, training):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.testing.assert_close(captured, step())
"""


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU (make check-gpu)")
def test_inference_and_training_are_captured_first_in_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU (make check-gpu)")
def test_programs_run_on_the_current_stream_and_wait_for_nothing(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, late = torch.randn(50, 300, device="cuda"), torch.full((50, 300), float("nan"), device="cuda")
    call(x)
    torch.cuda.synchronize()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(500_000_000)
            late.copy_(x)
            result = call(late)
            done.record()
            assert not done.query(), "the call returned only when the device had finished what came before it"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    torch.testing.assert_close(result, of_rows_and_columns(x))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_of_a_graph_runs_its_own_programs(asked: list[tuple[str, str, str]]) -> None:
    torch._dynamo.reset()
    both = torch.compile(lambda x, y: (of_rows_and_columns(x), of_rows_and_columns(y)), backend="fourfold")
    x = torch.randn(50, 300)
    for result in both(x.to("cuda:0"), x.to("cuda:1")):
        torch.testing.assert_close(result.cpu(), of_rows_and_columns(x))
    assert asked


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_explain_shows_the_kernel_of_a_scan(device: str, reverse: bool, asked: list[tuple[str, str, str]]) -> None:
    """The kernel that runs: the call compiles the same program and layout."""
    factor = torch.tensor(0.75)  # a CPU scalar, which is a number argument of the GPU's program

    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.cos(h * factor + x)
        return h, h * 2

    def call(h: torch.Tensor, xs: torch.Tensor) -> object:
        return fourfold.scan(step, h, xs, reverse=reverse)

    size = (8, 20) if reverse else (6, 21)  # with vectors and without
    h, xs = torch.randn(size), torch.randn(5, *size)
    given = h.to(device), xs.to(device)
    explanation = fourfold.explain(call, *given)
    program = explanation.scans[0].forward.loop.programs[0]
    assert explanation.scans[0].forward.loop.way == "nest"
    assert any(word in explanation.nest(scan=0) for word in ("__global__", "kernel void"))
    capture._compiled.clear()
    (carry, ys) = call(*given)
    assert (of_explained(program.text), program.layout) in [given[:2] for given in asked]
    expected = []
    for x in xs.flip(0) if reverse else xs:
        h = torch.cos(h * factor + x)
        expected.append(h * 2)
    torch.testing.assert_close(carry.cpu(), h)
    torch.testing.assert_close(ys.cpu(), torch.stack(expected[::-1] if reverse else expected))
