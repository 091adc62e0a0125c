"""Groups have tensors of one device, which runs programs."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fourfold.compiler.passes.fuse import fuse
from fourfold.devices import programs
from graphs import operators, refusals


@pytest.fixture
def on_gpus() -> Iterator[None]:
    """As if programs ran on GPUs."""
    with mock.patch.object(programs, "obstacle", lambda type: "" if type in ("cpu", "cuda") else "none here"):
        yield


def fused(function: object, *devices: str) -> object:
    """The function's graph, of a matrix on each device, after fusion."""
    with FakeTensorMode():
        given = [torch.empty(4, 6, device=device) for device in devices]
        module = make_fx(function)(*given)
    output = module.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    return fuse(module)


def chain(x: Tensor) -> Tensor:
    return (x.sin() * 2).exp()


@pytest.mark.usefixtures("on_gpus")
def test_a_group_on_a_gpu() -> None:
    assert operators(fused(chain, "cuda")) == ["[sin mul exp]"]


@pytest.mark.usefixtures("on_gpus")
def test_each_device_has_groups_of_its_own() -> None:
    found = operators(fused(lambda x, y: (chain(x), chain(y)), "cuda:0", "cuda:1"))
    assert found == ["[sin mul exp]", "[sin mul exp]"]


@pytest.mark.usefixtures("on_gpus")
def test_operands_on_several_devices_are_torchs() -> None:
    def call(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() * 2 + y.sum()).exp() * 3

    module = fused(call, "cuda", "cpu")
    assert "add" in operators(module) and refusals(module)["add"] == "operands on several devices"


def test_a_device_without_programs_is_torchs_and_has_the_reason() -> None:
    with mock.patch.object(programs, "obstacle", lambda type: "" if type == "cpu" else "no compiler was found"):
        module = fused(chain, "cuda")
    assert operators(module) == ["sin", "mul", "exp"]
    assert set(refusals(module).values()) == {"no compiler was found"}


def test_why_programs_run_nowhere_else() -> None:
    """In a build without a backend, or for a device that none is for."""
    programs.obstacle.cache_clear()
    with mock.patch.object(programs._C, "program_backends", lambda: [0]):
        assert programs.obstacle("cuda") == "this build of fourfold runs no programs on cuda"
        assert programs.obstacle("xpu") == "this build of fourfold runs no programs on xpu"
    programs.obstacle.cache_clear()
    with (
        mock.patch.object(programs._C, "program_backends", lambda: [0, 1]),
        mock.patch.dict(programs.LANGUAGES, {"cuda": programs.Language("cuda", None, lambda: "no NVRTC")}),
    ):
        assert programs.obstacle("cuda") == "no NVRTC"
    programs.obstacle.cache_clear()


def test_a_reduction_of_one_number_is_torchs() -> None:
    with FakeTensorMode():
        module = make_fx(lambda x: (torch.amin(x, 0) + 1) * 2)(torch.empty(()))
    module.graph.output_node().args = ((module.graph.output_node().args[0],),)
    assert refusals(fuse(module))["amin"] == "a reduction of one number"
