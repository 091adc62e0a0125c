"""Compiled functions whose programs run on a GPU, real or simulated: values and gradients."""

from __future__ import annotations

import os

import pytest
import torch

import fourfold
from compiled_functions import FUNCTIONS, Function, is_simulated
from fourfold.compiler.nest.service import Service
from fourfold.devices import programs
from fourfold.scanning import capture
from machine import devices

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


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_explain_shows_the_kernel_of_a_scan(device: str, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    asked = []
    compile_grid = Service.compile_grid
    monkeypatch.setattr(
        Service, "compile_grid", lambda self, *given: asked.append(given[:2]) or compile_grid(self, *given)
    )
    explanation = fourfold.explain(call, *given)
    program = explanation.scans[0].forward.loop.programs[0]
    assert explanation.scans[0].forward.loop.way == "nest"
    assert any(word in explanation.nest(scan=0) for word in ("__global__", "kernel void"))
    capture._compiled.clear()
    (carry, ys) = call(*given)
    assert (program.text, program.layout) in asked
    expected = []
    for x in xs.flip(0) if reverse else xs:
        h = torch.cos(h * factor + x)
        expected.append(h * 2)
    torch.testing.assert_close(carry.cpu(), h)
    torch.testing.assert_close(ys.cpu(), torch.stack(expected[::-1] if reverse else expected))
