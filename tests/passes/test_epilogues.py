"""The pass that attaches concatenations of a group's results, and sums over its rows, as epilogues."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.passes.epilogues import FEWEST_COLUMNS, epilogues
from fourfold.compiler.passes.fuse import fuse
from graphs import assert_alike, operators, traced

pytestmark = pytest.mark.filterwarnings("ignore:fourfold could not compute")
x, y = torch.randn(4, 32), torch.randn(4, 32)


def waiting_for_its_group(x: Tensor, y: Tensor) -> Tensor:
    a = x.sin()
    return torch.cat([a, a.cumsum(0)], 1)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x, y: torch.cat([x.sin(), y.cos()], 1), ["[sin cos cat]"]),
        (lambda x, y: torch.cat([x.sin(), x.cos()], 0), ["[sin cos cat]"]),
        (lambda x, y: torch.cat([x.sin(), y], -1), ["[sin cat]"]),
        (lambda x, y: torch.cat([x.sin(), y.double()], -1), ["[sin]", "[_to_copy]", "cat"]),
        (lambda x, y: torch.cat([x.sum(0), y.sum(0)]), ["sum", "sum", "cat"]),
        (waiting_for_its_group, ["[sin]", "cumsum", "cat"]),
        (lambda x, y: (x * y).sum(0), ["[mul sum]"]),
        (lambda x, y: (x * y).view(4, 1, 32).sum((0, 1)), ["[mul sum]"]),
        (lambda x, y: (x.exp(), x.sum(0)), ["[exp sum]", "getitem", "getitem"]),
        (lambda x, y: x.softmax(-1).sum(0), ["[_softmax sum]"]),
        (lambda x, y: (x - (x * y).sum(0)).exp(), ["[mul sum sub exp]"]),
        (lambda x, y: (x * y).sum(0).exp(), ["[mul sum]", "[exp]"]),
        (lambda x, y: x[:, : FEWEST_COLUMNS - 1].sin().sum(0), ["[sin]", "sum"]),
    ],
)
def test_what_ends_in_a_group(function, left: list[str]) -> None:
    module = epilogues(fuse(traced(function, x, y)))
    module.graph.lint()
    assert sorted(operators(module)) == sorted(left)
    assert_alike(module, function, x, y)


def test_a_result_that_only_the_sum_reads_is_not_written() -> None:
    module = epilogues(fuse(traced(lambda x, y: ((x * y).sum(0), x.sin().sum(0)), x, y)))
    assert sum(len(node.target.outputs) for node in fused_nodes(module.graph)) == 2


def test_what_stood_in_the_way_is_forgotten() -> None:
    module = epilogues(fuse(traced(lambda x, y: (x * y).sum(0), x, y)))
    assert not any("refusal" in node.meta for node in module.graph.nodes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_only_a_dead_result_reads_is_no_argument(dynamic: bool) -> None:
    module = fuse(traced(lambda x, y: (x.cos(), (x.sin() + y).cumsum(0)), x, y, dynamic=dynamic))
    (node,) = fused_nodes(module.graph)
    assert [given.name for given in node.args] == ["x_1", "y_1"]
    output = module.graph.output_node()
    output.args = (output.args[0][:1],)
    (node,) = fused_nodes(clean_up(module).graph)
    assert [given.name for given in node.args] == ["x_1"] and len(node.target.inputs) == 1
    assert_alike(module, lambda x, y: x.cos(), x, y)


def test_an_input_that_alone_has_a_size_stays() -> None:
    """A program reads unknown sizes from its inputs."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.sum(-1, keepdim=True)
        return rows.cos(), (y * rows).cumsum(0)

    module = fuse(traced(function, x, y, dynamic=True))
    output = module.graph.output_node()
    output.args = (output.args[0][:1],)
    assert_alike(clean_up(module), lambda x, y: function(x, y)[0], x, y)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_an_expanded_number_beside_a_tensor(monkeypatch: pytest.MonkeyPatch, dim: int) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")

    def function(s: Tensor, x: Tensor) -> Tensor:
        return torch.stack([x, (s * 0.4).sin().expand(4, 32)], dim)

    s = torch.randn(())
    torch.testing.assert_close(torch.compile(function, backend="fourfold")(s, x), function(s, x))
