"""Batch, instance and group norms in programs: values, gradients and statistics against eager and float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compiled import compiled
from fourfold.compiler.analysis.support import results_of
from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.pipeline.record import Record

aten = torch.ops.aten
BATCH_NORM = (
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
)
BACKWARD = aten.native_batch_norm_backward.default
GROUP_NORM = (aten.native_group_norm.default, aten.native_group_norm_backward.default)
LOW = (torch.bfloat16, torch.float16)
MIXED = [(torch.float32, torch.float32), (torch.float64, torch.float64)] + [
    (low, parameters) for low in LOW for parameters in (torch.float32, low)
]


def block(
    layer: nn.Module, activation: Callable[[Tensor], Tensor], dtype: torch.dtype, parameters: torch.dtype
) -> nn.Module:
    """The norm with random parameters, and the operators fused with it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = layer

        def forward(self, x: Tensor) -> Tensor:
            return activation(self.norm(x))

    generator = torch.Generator().manual_seed(1)
    for name, each in (*layer.named_parameters(), *layer.named_buffers()):
        if each.is_floating_point():
            each.data = torch.rand(each.shape, generator=generator) + (0.5 if "var" in name or "weight" in name else 0)
    return Block().to(parameters)


def draw(*shape: int, dtype: torch.dtype = torch.float32, shift: float = 0.5) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 2 + shift
    return drawn.to(dtype).requires_grad_()


def results(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The result, all gradients, and the statistics after two calls."""
    own = x.detach().clone().requires_grad_()
    for _ in range(2):
        y = call(own)
    leaves = {"x": own} | dict(module.named_parameters())
    weight = torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y.dtype)
    gradients = torch.autograd.grad(y, list(leaves.values()), weight)
    found = {"y": y.detach()} | dict(zip(leaves, gradients, strict=True))
    return found | {name: buffer.clone() for name, buffer in module.named_buffers()}


def copy_of(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    return copy.deepcopy(module) if dtype is None else copy.deepcopy(module).to(dtype)


def compared(module: nn.Module, x: Tensor, record: Record | None = None, **settings: object) -> Record:
    """Compares compiled and eager with float64: the compiled error may exceed eager's by a few roundings: 16 of its
    dtype, or an eighth of that in low precision, where float32 sums add rounded terms."""
    record = record or Record()
    ours, exact = copy_of(module), copy_of(module, torch.float64)
    got = results(compiled(ours, record, **settings), ours, x)
    eager = results(module, module, x)
    expected = results(exact, exact, x.detach().double())
    for name, mine in got.items():
        theirs, right = eager[name], expected[name]
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.stride() == theirs.stride(), name
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs), name
            continue
        scale = right.abs().amax().clamp(min=1e-3)
        error, theirs_error = ((each.double() - right).abs().amax() / scale for each in (mine, theirs))
        few = max(16 * torch.finfo(mine.dtype).eps, torch.finfo(x.dtype).eps / 8)
        assert error <= 1.5 * theirs_error + few, (name, error, theirs_error)
    return record


def targets(record: Record) -> set[object]:
    (captured,) = record.captured
    halves = [half for half in (captured.forward, captured.backward) if half is not None]
    return {node.target for half in halves for node in half.compiled.nodes}


def programs(record: Record) -> tuple[int, int]:
    (captured,) = record.captured
    return len(captured.forward.compiled.programs), len(captured.backward.compiled.programs)


LAYERS = {
    "batch norm": (lambda: nn.BatchNorm2d(6), (4, 6, 8, 16)),
    "without parameters": (lambda: nn.BatchNorm2d(6, affine=False), (4, 6, 8, 16)),
    "without statistics": (lambda: nn.BatchNorm2d(6, track_running_stats=False), (4, 6, 8, 16)),
    "batch norm of one dimension": (lambda: nn.BatchNorm1d(6), (3, 6, 128)),
    "batch norm of three dimensions": (lambda: nn.BatchNorm3d(6, momentum=0.3), (3, 6, 4, 4, 16)),
    "of odd sizes": (lambda: nn.BatchNorm2d(5, eps=1e-3), (3, 5, 13, 11)),
    "group norm": (lambda: nn.GroupNorm(3, 6), (4, 6, 8, 8)),
    "group norm without parameters": (lambda: nn.GroupNorm(2, 6, affine=False), (4, 6, 5, 7)),
    "group norm of one dimension": (lambda: nn.GroupNorm(6, 6), (4, 6, 40)),
    "instance norm": (lambda: nn.InstanceNorm2d(6), (4, 6, 8, 8)),
    "instance norm with parameters": (lambda: nn.InstanceNorm2d(6, affine=True), (4, 6, 8, 8)),
    "instance norm with statistics": (
        lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        (4, 6, 8, 8),
    ),
}
WITH_STATISTICS = [name for name, (make, _) in LAYERS.items() if getattr(make(), "running_mean", None) is not None]
# Evaluation differs from training only with running statistics.
MODES = [(name, mode) for name in LAYERS for mode in ("train", "eval") if mode == "train" or name in WITH_STATISTICS]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("dtype", "parameters"), MIXED, ids=str)
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_values_gradients_and_statistics(name: str, mode: str, dtype: torch.dtype, parameters: torch.dtype) -> None:
    make, shape = LAYERS[name]
    module = block(make(), F.silu, dtype, parameters).train(mode == "train")
    record = compared(module, draw(*shape, dtype=dtype))
    assert not targets(record) & {*BATCH_NORM, BACKWARD, *GROUP_NORM}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("activation", [F.relu, F.silu])
def test_a_group_norms_backward_writes_one_tensor_between_programs(activation: Callable[[Tensor], Tensor]) -> None:
    """The first program computes the activation's gradient and all sums, the last the input's gradient."""
    record = compared(block(nn.GroupNorm(3, 6), activation, torch.float32, torch.float32), draw(4, 6, 8, 8))
    (captured,) = record.captured
    sizes = [
        [result.numel() for result in results_of(node)] for node in fused_nodes(captured.backward.compiled.module.graph)
    ]
    assert programs(record)[0] == 1
    assert [max(each) for each in sizes].count(4 * 6 * 8 * 8) == 2
    assert sum(each.count(4 * 6 * 8 * 8) for each in sizes) == 2


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("activation", [F.relu, F.silu, lambda y: F.leaky_relu(y, 0.2), lambda y: F.relu(y + 1)])
@pytest.mark.parametrize("name", ["batch norm", "without statistics", "instance norm"])
def test_one_program_forward_and_one_backward(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    make, shape = LAYERS[name]
    (captured,) = compared(block(make(), activation, torch.float32, torch.float32), draw(*shape)).captured
    for half in (captured.forward, captured.backward):
        results = [results_of(node)[0] for node in fused_nodes(half.compiled.module.graph)]
        assert sum(result.is_floating_point() for result in results) == 1  # the number of batches is another


def test_a_batch_norm_alone_is_a_program() -> None:
    record = compared(block(nn.BatchNorm2d(6), lambda y: y, torch.float32, torch.float32), draw(4, 6, 8, 16))
    assert not targets(record) & {BATCH_NORM[0], BACKWARD}


@pytest.mark.parametrize(
    ("shape", "backward"),
    [
        *(((4, 6, 5, 5), True), ((4, 6), True), ((4, 6, 3), True), ((4, 6, 6, 6), True), ((4, 6, 7, 7), False)),
        ((1, 6, 5, 5), False),
    ],
)
def test_channels_of_few_elements_fall_back(shape: tuple[int, ...], backward: bool) -> None:
    layer = nn.BatchNorm2d(6) if len(shape) == 4 else nn.BatchNorm1d(6)
    record = compared(block(layer, F.silu, torch.float32, torch.float32), draw(*shape))
    assert (BACKWARD in targets(record)) == backward


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("shape", [(4, 6, 2), (4, 6, 7), (4, 6, 3, 3), (4, 6, 2, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_instance_norms_of_few_elements_are_programs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = (nn.InstanceNorm1d if len(shape) == 3 else nn.InstanceNorm2d)(6, affine=True)
    record = compared(block(layer, F.relu, dtype, torch.float32), draw(*shape, dtype=dtype))
    assert not {*BATCH_NORM, BACKWARD} & targets(record)


@pytest.mark.parametrize("is_trained", [True, False])
def test_channels_last(is_trained: bool) -> None:
    x = draw(4, 6, 8, 16).detach().to(memory_format=torch.channels_last)
    module = block(nn.BatchNorm2d(6), F.silu, torch.float32, torch.float32).train(is_trained)
    assert BACKWARD in targets(compared(module, x))


def test_a_layout_for_each_tensor() -> None:
    """A gradient in another layout, and an expanded one."""
    module = block(nn.BatchNorm2d(6), lambda y: y.relu().mT.contiguous().sum(), torch.float32, torch.float32)
    ours = copy_of(module)
    call = compiled(ours)
    grads = []
    for each, function in ((module, module), (ours, call)):
        x = draw(4, 6, 8, 16)
        grads.append(torch.autograd.grad(function(x), [x, *each.parameters()]))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shift", [0, 1000])
def test_the_variance_of_a_large_mean(shift: float) -> None:
    compared(block(nn.BatchNorm2d(6), F.relu, torch.float32, torch.float32), draw(4, 6, 8, 16, shift=shift))
    compared(block(nn.GroupNorm(2, 6), F.silu, torch.float32, torch.float32), draw(4, 6, 8, 16, shift=shift))


def test_one_value_per_channel_and_no_values() -> None:
    call = compiled(block(nn.BatchNorm2d(6), F.relu, torch.float32, torch.float32))
    with pytest.raises(Exception, match="Expected more than 1 value per channel"):  # Dynamo wraps torch's ValueError
        call(draw(1, 6, 1, 1))
    with torch.no_grad():
        assert compiled(block(nn.BatchNorm2d(6), F.relu, torch.float32, torch.float32))(draw(0, 6, 8, 8)).numel() == 0


@pytest.mark.usefixtures("strict")
def test_any_number_of_images() -> None:
    module, record = block(nn.BatchNorm2d(6), F.silu, torch.float32, torch.float32), Record()
    ours = copy_of(module)
    call = compiled(ours, record)
    for images in (3, 4, 7):
        x = draw(images, 6, 8, 16).detach()
        torch._dynamo.mark_dynamic(x, 0)
        found = []
        for function in (module, call):
            own = x.clone().requires_grad_()
            if function is call:
                torch._dynamo.mark_dynamic(own, 0)
            y = function(own)
            found.append((y, *torch.autograd.grad(y.sin().sum(), own)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(ours.buffers()), list(module.buffers()))
    assert not targets(record) & {*BATCH_NORM, BACKWARD}
