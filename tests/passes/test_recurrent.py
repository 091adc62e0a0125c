"""The pass that replaces torch.lstm and torch.gru, and the backends for which Dynamo captures layers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from compiled import compiled, draw
from fourfold.compiler import backend
from fourfold.compiler.passes.recurrent import recurrent
from fourfold.compiler.pipeline import capture
from fourfold.compiler.pipeline.record import Record
from recurrent_layers import NEAR, captured, each_kind, made, state_of, targets_of

pass_file = importlib.import_module("fourfold.compiler.passes.recurrent")  # the package exports the pass under it


def refusal_of(graph: GraphModule) -> str:
    (reason,) = [node.meta["refusal"] for node in graph.graph.nodes if "refusal" in node.meta]
    return reason


@each_kind
def test_the_pass_exchanges_the_node_and_nothing_else(kind: type[nn.RNNBase]) -> None:
    layer, x = made(kind, num_layers=2), draw(3, 2, 5)
    graph = captured(layer, x)
    before = targets_of(graph)
    name = kind.__name__.lower()
    assert recurrent(graph) is graph
    ours = {getattr(torch, name): pass_file.FUNCTIONS[name]}
    assert targets_of(graph) == [ours.get(target, target) for target in before] != before
    output = graph(*layer.parameters(), x)[0]
    torch.testing.assert_close(output, layer(x)[0], **NEAR)


def test_other_graphs_stay_as_they_are() -> None:
    graph = captured(lambda x: x.sin(), draw(3))
    before = graph.code
    assert recurrent(graph).code == before
    assert not any("refusal" in node.meta for node in graph.graph.nodes)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: nn.LSTM(5, 8, proj_size=3), "it has a proj_size"),
        (lambda: nn.LSTM(5, 8, proj_size=3, bias=False), "it has a proj_size"),
        (lambda: nn.GRU(5, 8).half(), "fourfold is no faster in torch.float16"),
        (lambda: nn.LSTM(5, 1025), "hidden_size 1025 is above 1024, the largest that is faster in torch.float32"),
    ],
)
def test_why_a_node_stays(layer: Callable[[], nn.RNNBase], reason: str) -> None:
    model = layer()
    graph = recurrent(captured(model, draw(2, 1, 5, dtype=next(model.parameters()).dtype)))
    assert refusal_of(graph) == reason
    assert getattr(torch, model.mode.lower()) in targets_of(graph)


def test_a_node_of_other_tensors_stays() -> None:
    graph = captured(made(nn.GRU), draw(2, 1, 5))
    (node,) = [node for node in graph.graph.nodes if node.target == torch.gru]
    del node.args[0].meta["example_value"]
    assert refusal_of(recurrent(graph)) == "an argument is not exactly a dense torch.Tensor"


@each_kind
def test_a_call_of_operators_by_name(kind: type[nn.RNNBase]) -> None:
    """As make_fx writes it, and with keyword arguments."""
    layer = made(kind, bidirectional=True)
    x, (hx, *more) = draw(3, 2, 5), state_of(layer, 2)
    states = [hx, *more] if more else hx
    name = kind.__name__.lower()
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = x
    settings = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": True, "bidirectional": True}
    held = {}
    for key, tensor in (("h", hx), *((f"c{k}", c) for k, c in enumerate(more)), *layer.named_parameters()):
        held[key] = graph.placeholder(key)
        held[key].meta["val"] = tensor.detach()
    nodes = list(held.values())
    state_nodes = nodes[: 1 + len(more)] if more else nodes[0]
    overload = getattr(torch.ops.aten, name).input
    settings |= {"hx": state_nodes, "params": nodes[1 + len(more) :], "batch_first": False}
    graph.output(graph.call_function(overload, (given,), settings))
    module = GraphModule(nn.Module(), graph)
    got = recurrent(module)(x, hx, *more, *layer.parameters())
    assert overload not in targets_of(module)
    expected = getattr(torch, name)(x, states, list(layer.parameters()), True, 1, 0.0, True, True, False)
    torch.testing.assert_close(tuple(got), tuple(expected), **NEAR)


@each_kind
def test_calls_of_the_function_itself(kind: type[nn.RNNBase]) -> None:
    layer, x = made(kind), draw(4, 2, 5)
    state = [torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)] if kind is nn.LSTM else torch.zeros(1, 2, 8)
    function = getattr(torch._VF, kind.__name__.lower())

    def call(x: Tensor) -> Tensor:
        return function(x, state, layer._flat_weights, True, 1, 0.0, True, False, False)[0] * 2

    record = Record()
    torch.testing.assert_close(compiled(call, record, fullgraph=True)(x), call(x), **NEAR)
    (graph,) = record.captured
    assert pass_file.FUNCTIONS[kind.__name__.lower()] in targets_of(graph.graph)


@each_kind
def test_inside_a_checkpoint(kind: type[nn.RNNBase]) -> None:
    """Its graph is nested in the function's."""
    layer = made(kind)
    operators = [pass_file.FUNCTIONS[kind.__name__.lower()]]

    def call(x: Tensor) -> Tensor:
        return checkpoint(lambda x: layer(x.sin())[0], x, use_reentrant=False)

    record = Record()
    fused, x = compiled(call, record, fullgraph=True), draw(4, 2, 5)
    torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), x) for f in (fused, call)), **NEAR)
    nested = [part for part in record.captured[0].graph.modules() if isinstance(part, GraphModule)]
    assert [t for part in nested for t in targets_of(part) if t in operators] == operators


def test_other_backends_break_their_graphs_as_before() -> None:
    layer, x = made(nn.LSTM), draw(3, 2, 5)
    torch.testing.assert_close(compiled(layer, fullgraph=True)(x), layer(x), **NEAR)
    torch._dynamo.reset()
    counters.clear()
    torch.compile(lambda x: layer(x)[0] * 2, backend="aot_eager")(x)
    assert any("RNN, GRU, or LSTM" in reason for reason in counters["graph_break"])
    assert torch._dynamo.config.allow_rnn is False
    graph = captured(layer, x)  # for other backends, with allow_rnn set
    assert torch.lstm in targets_of(graph)


def test_for_whom_dynamo_captures() -> None:
    wrapped = functools.partial(backend, record=Record())
    assert all(capture.is_for(backend, one) for one in (backend, wrapped, functools.partial(wrapped)))
    assert not any(capture.is_for(backend, one) for one in (None, Mock()))
    assert not capture.is_for(backend, torch._dynamo.lookup_backend("aot_eager"))
