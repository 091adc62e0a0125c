"""An operator is decomposed only beside work with which its parts are fused."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.nn import functional as F

from compiled import compiled, draw
from fourfold.compiler.lowering.decompositions import decompositions
from fourfold.compiler.pipeline.record import CapturedGraph, Record
from fourfold.compiler.pipeline.tracing import kept_whole

# The package exports the pass function under this name.
passes_decompose = importlib.import_module("fourfold.compiler.passes.decompose")
aten = torch.ops.aten
LAYER_NORM = aten.native_layer_norm_backward.default
GROUP_NORM = aten.native_group_norm.default


def captured(function: Callable[..., Tensor], *arguments: Tensor, **settings: object) -> CapturedGraph:
    """Compares values and gradients with eager's; returns the captured graph."""
    record = Record()
    ours = compiled(function, record, **settings)
    leaves = [x for x in arguments if x.requires_grad]
    got, expected = ours(*arguments), function(*arguments)
    torch.testing.assert_close(got, expected)
    if got.requires_grad:
        weight = draw(*got.shape, gradient=False).to(got.dtype)
        gradients = torch.autograd.grad(got, leaves, weight), torch.autograd.grad(expected, leaves, weight)
        torch.testing.assert_close(*gradients)
    return record.captured[0]


def targets(module: torch.fx.GraphModule) -> list[object]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def normalized(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def test_a_norm_alone() -> None:
    """Only forward a program is faster than torch's kernel."""
    found = captured(normalized, draw(8, 32), draw(32), draw(32, seed=1))
    assert len(found.forward.compiled.programs) == 1 and not found.backward.compiled.programs
    assert targets(found.backward.graph).count(LAYER_NORM) == 1


def test_a_sum_before_a_norm_leaves_its_backward_alone() -> None:
    found = captured(lambda x, y, w, b: normalized(x + y, w, b), draw(8, 32), draw(8, 32, seed=2), draw(32), draw(32))
    assert len(found.forward.compiled.programs) == 1
    assert not found.backward.compiled.programs


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: normalized(x, w, b).sin(),
        lambda x, w, b: normalized(x.sin(), w, b),
        lambda x, w, b: normalized(x, w, b).view(4, 2, 32).transpose(0, 1).exp(),
    ],
)
def test_a_neighbour_takes_the_pieces(function: Callable[..., Tensor]) -> None:
    found = captured(function, draw(8, 32), draw(32), draw(32, seed=1))
    assert len(found.backward.compiled.programs) == 1
    assert not any(node.target is LAYER_NORM and all(node.args[-1]) for node in found.backward.graph.graph.nodes)


def test_work_on_parameters_alone_is_no_neighbour() -> None:
    found = captured(lambda x, w, b: normalized(x, w.sin(), b.sin()), draw(8, 32), draw(32), draw(32, seed=1))
    assert targets(found.backward.graph).count(LAYER_NORM) == 1


def test_pieces_are_neighbours_of_the_next() -> None:
    def two(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return normalized(normalized(x, w, b), w, b).sin()

    found = captured(two, draw(8, 32), draw(32), draw(32, seed=1))
    assert not any(node.target is LAYER_NORM and all(node.args[-1]) for node in found.backward.graph.graph.nodes)


@pytest.mark.parametrize("is_trained", [False, True])
def test_group_norm(is_trained: bool) -> None:
    x, weight, bias = draw(2, 6, 5, 5, gradient=is_trained), draw(6, gradient=False), draw(6, gradient=False)
    for function in (lambda x, w, b: F.group_norm(x, 3, w, b), lambda x, w, b: F.group_norm(x, 3, w, b).relu().exp()):
        found = captured(function, x, weight, bias)
        assert GROUP_NORM not in targets(found.forward.graph) and len(found.forward.compiled.programs) == 1


def test_for_any_sizes() -> None:
    record = Record()
    ours = compiled(lambda x, w, b: normalized(x.sin(), w, b).exp(), record, dynamic=True)
    for rows, columns in ((4, 8), (7, 24), (3, 40)):
        x, weight, bias = draw(rows, columns), draw(columns), draw(columns, seed=1)
        got, expected = ours(x, weight, bias), normalized(x.sin(), weight, bias).exp()
        torch.testing.assert_close(got, expected)
        leaves = [x, weight, bias]
        torch.testing.assert_close(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(expected.sum(), leaves))
    assert len(record.captured) == 1 and record.captured[0].backward.compiled.programs


LOSSES = [F.huber_loss, F.smooth_l1_loss, F.mse_loss, F.soft_margin_loss]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_losses_alone_and_fused(loss: Callable[..., Tensor]) -> None:
    captured(loss, draw(50), draw(50, seed=1, gradient=False))
    found = captured(lambda x, y: loss(x.sin(), y), draw(50), draw(50, seed=1, gradient=False))
    assert found.forward.compiled.programs and found.backward.compiled.programs


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "nearest", "nearest-exact"])
def test_an_interpolation_is_one_operator(mode: str) -> None:
    kernels = aten.upsample_nearest2d.vec.py_kernels.copy()
    found = captured(lambda x: F.interpolate(x, scale_factor=2, mode=mode), draw(1, 2, 5, 6))
    assert len(targets(found.forward.graph)) == 1 and len(targets(found.backward.graph)) == 1
    assert kernels and aten.upsample_nearest2d.vec.py_kernels == kernels


def test_an_interpolation_of_any_size() -> None:
    record = Record()
    ours = compiled(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), record, dynamic=True)
    for side in (5, 8):
        x = draw(1, 2, side, side)
        torch.testing.assert_close(ours(x), F.interpolate(x, scale_factor=2, mode="bilinear"))
    assert len(record.captured) == 1


def test_kernels_come_back_after_an_error() -> None:
    overload, module = aten.upsample_bicubic2d.vec, GraphModule(nn.Module(), Graph())
    kernels = overload.py_kernels.copy()
    with pytest.raises(ValueError, match="stop"), kept_whole(module, []), kept_whole(module, []):
        assert len(overload.py_kernels) < len(kernels)
        raise ValueError("stop")
    assert overload.py_kernels == kernels


TRANSFORMS = {
    "grad": lambda x: torch.func.grad(lambda t: F.softshrink(t).sum())(x),
    "vjp": lambda x: torch.func.vjp(lambda t: F.interpolate(t, scale_factor=2), x)[1](torch.ones(1, 2, 8, 8))[0],
    "jvp": lambda x: torch.func.jvp(F.hardshrink, (x,), (x,))[1],
    "cond": lambda x: torch.cond(x.sum() > 0, lambda t: F.interpolate(t, scale_factor=2).sin(), upsampled, (x,)),
}


def upsampled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2).cos()


@pytest.mark.parametrize("function", TRANSFORMS.values(), ids=TRANSFORMS)
def test_operators_that_stay_whole_under_transforms_and_in_branches(function: Callable[[Tensor], Tensor]) -> None:
    x = draw(1, 2, 4, 4, gradient=False)
    torch.testing.assert_close(compiled(function)(x), function(x))


SIZED_BY_DATA = {
    "interpolate": lambda x, chosen: F.interpolate(x[chosen], scale_factor=2).sin(),
    "softshrink": lambda x, chosen: F.softshrink(x[chosen]) * 2,
    "smooth_l1": lambda x, chosen: F.smooth_l1_loss(x[chosen] * 2, x[chosen].exp()),
    "layer_norm": lambda x, chosen: F.layer_norm(x[chosen].sin(), (8,)).cos(),
}


@pytest.mark.parametrize("function", SIZED_BY_DATA.values(), ids=SIZED_BY_DATA)
def test_sizes_that_depend_on_data(function: Callable[..., Tensor]) -> None:
    x, chosen = draw(4, 3, 8, 8), torch.tensor([True, False, True, True])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        results = [call(x, chosen) for call in (compiled(function, fullgraph=True), function)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x) for result in results))


@pytest.mark.parametrize(
    "layers",
    [
        [layer for _ in range(20) for layer in (nn.LayerNorm(16), nn.Tanh())],
        [*(nn.LayerNorm(16) for _ in range(20)), nn.Tanh()],
        [nn.Tanh(), *(nn.LayerNorm(16) for _ in range(20))],
    ],
    ids=["between", "before one", "behind one"],
)
def test_many_norms_are_looked_at_a_few_times_each(layers: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[torch.fx.Node] = []
    has_fused_neighbour = passes_decompose.has_fused_neighbour

    def counted(node: torch.fx.Node) -> bool:
        looked.append(node)
        return has_fused_neighbour(node)

    monkeypatch.setattr(passes_decompose, "has_fused_neighbour", counted)
    record = Record()
    compiled(nn.Sequential(*layers), record)(draw(4, 16)).sum().backward()
    backward = record.captured[0].backward.graph.graph
    whole = [node for node in backward.nodes if node.target is LAYER_NORM and all(node.args[-1])]
    assert not whole and 20 <= len(looked) <= 3 * 20


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_refuse_what_torch_refuses(reduction: str) -> None:
    x, y = draw(4, 8, gradient=False), draw(4, 8, gradient=False, seed=1)
    with pytest.raises(RuntimeError, match="does not support negative values for beta"):
        compiled(lambda x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=-1.0).sin())(x, y)
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        compiled(lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=-1.0).sin())(x, y)


def test_the_table_for_tracing_is_made_once() -> None:
    """Each graph takes a table of its own, which its compilation may change, of the same functions."""
    once, again = decompositions(), decompositions()
    assert once is not again and all(once[operator] is again[operator] for operator in again)
