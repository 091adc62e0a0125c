"""The pass that groups operators: which, into how many groups, and that groups form no cycle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.options import Options
from fourfold.compiler.passes.fuse import MOST_MEMBERS, fuse
from graphs import assert_alike, operators, refusals, traced
from nests import GENERATORS

pytestmark = pytest.mark.filterwarnings("ignore:fourfold could not compute")
x, y, row = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)


def around_a_product(x: Tensor, y: Tensor) -> Tensor:
    """The sum that follows the product reads a value that the product depends on: two groups."""
    a = x.sin()
    return (a @ y.t()).exp() + a.sum()


def of_neighbours(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """They are related only by the tensor that they read."""
    return x.sin(), x.cos() * 2


@pytest.mark.parametrize(
    ("function", "groups"),
    [
        (lambda x, y: x.sin() + y, ["[sin add]"]),
        (lambda x, y: (x * y).softmax(-1).exp(), ["[mul _softmax exp]"]),
        (lambda x, y: x.sin() + y.cumsum(0), ["cumsum", "[sin add]"]),
        (lambda x, y: (x.sin() @ y.t()).cos(), ["[sin]", "t", "mm", "[cos]"]),
        (lambda x, y: (x + y).t().exp().t().view(24), ["[add exp]", "t", "view"]),
        (of_neighbours, ["[sin cos mul]", "getitem", "getitem"]),
        (lambda x, y: x.sum(0), ["sum"]),
        (lambda x, y: x.clone(), ["clone"]),
    ],
)
def test_groups(function, groups: list[str]) -> None:
    module = fuse(traced(function, x, y))
    assert operators(module) == groups
    assert_alike(module, function, x, y)


def normalized_groups(x: Tensor, weight: Tensor) -> Tensor:
    """A decomposed group norm: its groups are rows, its channels and pixels columns."""
    grouped = x.view(2, 3, 2, 20)
    grouped = (grouped - grouped.mean((2, 3), keepdim=True)) * weight.view(1, 3, 2, 1)
    return grouped.view(2, 6, 4, 5).sigmoid() * x


def of_columns_in_parts(x: Tensor, weight: Tensor) -> Tensor:
    return ((x.exp().view(2, 3, 2, 4, 5) * 2).sum((2, 3, 4), keepdim=True) * x.view(2, 3, 2, 4, 5)).view(2, 6, 20) + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [normalized_groups, of_columns_in_parts])
def test_axes_are_split_where_a_reshape_needs_it(function, dynamic: bool) -> None:
    arguments = torch.randn(2, 6, 4, 5), torch.randn(6)
    module = fuse(traced(function, *arguments, dynamic=dynamic))
    found = [node.target for node in fused_nodes(module.graph)]
    assert dynamic or [sorted(fused.space.sizes) for fused in found] == [[2, 2, 3, 4, 5]]  # sizes may be symbolic
    assert_alike(module, function, *arguments)


def test_axes_are_not_split_for_what_no_group_reads() -> None:
    (node,) = fused_nodes(fuse(traced(lambda x, y: (x * y).exp().view(4, 2, 3).cumsum(2), x, y)).graph)
    assert node.target.space.sizes == [4, 6]


def test_axes_that_two_reshapes_split_differently() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.sin()
        return a.view(3, 4).cos() * 2, a.view(4, 3).exp() * 2

    module = fuse(traced(function, torch.randn(12)))
    assert len(fused_nodes(module.graph)) == 2
    assert_alike(module, function, torch.randn(12))


def test_no_group_waits_for_itself() -> None:
    module = fuse(traced(around_a_product, x, y[:, :6]))
    module.graph.lint()
    assert sum(name.startswith("[") for name in operators(module)) == 2
    assert_alike(module, around_a_product, x, y)


def test_refusals_are_recorded_where_they_are_taken() -> None:
    module = fuse(traced(lambda x, k: (x.sum(0), x.clone(), k // k, x.to(torch.complex64)), x, torch.ones(3).long()))
    found = refusals(module)
    assert found["sum"] == "torch's kernel is as fast for a sum over the outermost dimensions"
    assert found["clone"] == "only a copy"
    assert "zero" in found["floor_divide"]
    assert "dtype" in found["_to_copy"]


@pytest.mark.parametrize("generator", GENERATORS)
def test_groups_do_not_depend_on_what_runs_them(generator: str) -> None:
    module = traced(lambda x: x.sin().amax(0), x)
    module.meta["options"] = Options(generator=generator)
    assert operators(fuse(module)) == ["[sin amax]"]


def test_a_subgraph_reads_views_by_what_they_show() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.t().unsqueeze(0).exp() + y.view(1, 6, 4)

    module = fuse(traced(function, x, y))
    (node,) = fused_nodes(module.graph)
    first, second = node.args
    assert first.op == "placeholder" and second.op == "call_function"  # 4 x 6 elements don't map to 6 x 4
    assert operators(module) == ["view", "[exp add]"]
    assert_alike(module, function, x, y)


def test_subgraphs_know_symbolic_sizes() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.view(-1, x.shape[1]) * 2).view(x.shape[0], 2, -1) + y.exp().view(x.shape[0], 2, -1)

    module = fuse(traced(function, x, y, dynamic=True))
    assert any(name.startswith("[") for name in operators(module))
    assert_alike(module, function, torch.randn(5, 8), torch.randn(5, 8))


def test_groups_have_room_for_so_many() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(MOST_MEMBERS + 10):
            x = x.sin()
        return x

    sizes = [len(node.target.members) for node in fused_nodes(fuse(traced(function, x)).graph)]
    assert sizes == [MOST_MEMBERS, 10]


def test_dead_code_is_in_no_group() -> None:
    module = traced(lambda x, y: ((x + y).sin(), x.cos()), x, y)
    output = module.graph.output_node()
    output.args = (output.args[0][1:],)
    assert operators(fuse(module)) == ["[cos]"]


def test_symbolic_sizes_are_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search for a group's inputs, for any number of views that read sizes."""

    def function(*tensors: Tensor) -> Tensor:
        return sum((x.unsqueeze(0).expand(3, x.shape[0], x.shape[1]) * 2).view(3, -1, x.shape[1]) for x in tensors)

    module = traced(function, *(torch.randn(4, 6) for _ in range(20)), dynamic=True)
    searched = []
    find_nodes = torch.fx.Graph.find_nodes
    monkeypatch.setattr(torch.fx.Graph, "find_nodes", lambda *a, **k: searched.append(a) or find_nodes(*a, **k))
    fuse(module)
    assert any(name.startswith("[") for name in operators(module)) and len(searched) < 20
