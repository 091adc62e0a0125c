"""A group's tensors are on one device, which runs programs; only the printers of kernels name families of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fourfold.compiler
from fourfold.compiler.analysis import profitability
from fourfold.compiler.lowering.codegen import write_program
from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.passes.decompose import decompose
from fourfold.compiler.passes.fuse import fuse
from fourfold.compiler.pipeline.calling import Program
from fourfold.devices import programs
from graphs import operators, refusals

COMPILER = Path(fourfold.compiler.__file__).parent
# Also at the start of a longer name, as in cuda_graph or cudaMalloc.
FAMILY = re.compile(r"(?<![a-z])(amd|apple|cuda|hip|metal|mps|nvidia|rocm)", re.IGNORECASE)


@pytest.fixture
def on_gpus() -> Iterator[None]:
    """Pretends that GPUs run programs."""
    with mock.patch.object(programs, "obstacle", lambda type: "" if type in ("cpu", "cuda") else "none here"):
        yield


def fused(function: object, *devices: str) -> object:
    """The function's graph after fusion, with a matrix on each device as arguments."""
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
def test_a_layer_norm_alone_is_a_program_on_a_gpu() -> None:
    """torch's kernels for GPUs read more than a program does."""

    def norm(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5))

    def softmax(x: Tensor) -> Tensor:
        return torch.ops.aten._softmax(x, 1, False)

    def is_left(function: object, device: str) -> bool:
        (group,) = fused_nodes(fused(function, device).graph)
        return profitability.reason(group.target.members) is not None

    assert not is_left(norm, "cuda") and is_left(softmax, "cuda") and not is_left(softmax, "cpu")


@pytest.mark.parametrize("runs", [True, False])
def test_a_layer_norms_gradient_is_decomposed_where_programs_run(runs: bool) -> None:
    """The gradients of the parameters become sums; otherwise torch's kernel computes all of them."""
    operator = torch.ops.aten.native_layer_norm_backward.default

    def gradient(grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        return list(operator(grad, x, [6], mean, deviation, w, b, [True, True, True]))

    with FakeTensorMode():
        sizes = ((4, 6), (4, 6), (4, 1), (4, 1), (6,), (6,))
        module = make_fx(gradient)(*(torch.empty(size, device="cuda") for size in sizes))
    with mock.patch.object(programs, "obstacle", lambda type: "" if runs else "none here"):
        masks = [node.args[-1] for node in decompose(module).graph.nodes if node.target == operator]
    assert masks == [[True, not runs, not runs]]


@pytest.mark.usefixtures("on_gpus")
def test_each_device_has_groups_of_its_own() -> None:
    found = operators(fused(lambda x: chain(chain(x).to("cuda:1")), "cuda:0"))
    assert found == ["[sin mul exp]", "_to_copy", "[sin mul exp]"]


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize(("second", "count"), [("cuda:0", 1), ("cuda:1", 2)])
def test_two_groups_that_read_one_number(second: str, count: int) -> None:
    """They become one only on one device."""
    with FakeTensorMode():
        given = [torch.empty((), device=device) for device in ("cuda:0", second, "cpu")]
        module = make_fx(lambda x, y, k: ((x.sin() * k).exp(), (y.cos() * k).exp()))(*given)
    assert len(fused_nodes(fuse(module).graph)) == count


@pytest.mark.usefixtures("on_gpus")
def test_a_result_on_the_cpu_is_of_another_group() -> None:
    found = operators(fused(lambda x, y: (x.sin() * 2 + y.sum()).exp(), "cuda", "cpu"))
    assert sorted(found) == ["[sin mul add exp]", "[sum]"]


@pytest.mark.usefixtures("on_gpus")
def test_one_element_on_the_cpu_is_a_number_of_a_program_elsewhere() -> None:
    def call(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).exp() + y

    with FakeTensorMode():
        module = make_fx(call)(torch.empty(4, 6, device="cuda"), torch.empty((), dtype=torch.float64))
    module.graph.output_node().args = ((module.graph.output_node().args[0],),)
    (node,) = fused_nodes(fuse(module).graph)
    assert "x1: float64 = number" in write_program(node.target)


def test_a_program_takes_one_element_for_a_number() -> None:
    text = "fourfold program 1\naxes a=x.0\nx: float32 = input float32 [a]\nk: float32 = number\ny: float32 = mul x k\n"
    program = Program(f"{text}output y float32 [a]\n", "p", 0)
    x = torch.randn(5)
    torch.testing.assert_close(program(x, torch.tensor(1.5)), x * 1.5)
    with pytest.raises(TypeError, match="expected a number"):
        program(x, torch.ones(1))


def test_a_device_without_programs_is_torchs_and_has_the_reason() -> None:
    with mock.patch.object(programs, "obstacle", lambda type: "" if type == "cpu" else "no compiler was found"):
        module = fused(chain, "cuda")
    assert operators(module) == ["sin", "mul", "exp"]
    assert set(refusals(module).values()) == {"no compiler was found"}


def test_why_programs_run_nowhere_else() -> None:
    """In a build without a backend, or for a device without one."""
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


def test_a_reduction_of_one_number_falls_back() -> None:
    with FakeTensorMode():
        module = make_fx(lambda x: (torch.amin(x, 0) + 1) * 2)(torch.empty(()))
    module.graph.output_node().args = ((module.graph.output_node().args[0],),)
    assert refusals(fuse(module))["amin"] == "a reduction of one number"


def test_only_the_printers_of_kernels_name_families_of_devices() -> None:
    found = {path.relative_to(COMPILER).as_posix(): path.read_text("utf-8") for path in COMPILER.rglob("*.py")}
    assert len(found) > 50
    assert {name for name, text in found.items() if FAMILY.search(text)} == {
        "nest/print/cuda.py",
        "nest/print/metal.py",
    }


def test_printers_are_short() -> None:
    printers = [*(COMPILER / "nest" / "print").glob("*.py")]
    assert len(printers) >= 8
    assert not [path.name for path in printers if len(path.read_text("utf-8").splitlines()) > 400]
