"""Compiled functions whose programs run on a GPU, or on one that is simulated: values and gradients."""

from __future__ import annotations

import os

import pytest
import torch

from compiled_functions import FUNCTIONS, Function, is_simulated
from fourfold.devices import programs
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
