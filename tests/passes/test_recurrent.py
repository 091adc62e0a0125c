"""torch.lstm and torch.gru in captured graphs, and models that hold nn.LSTM and nn.GRU, against eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import fourfold
from fourfold.compiler import backend, capture
from fourfold.compiler.passes import recurrent as pass_file
from fourfold.compiler.passes.recurrent import recurrent
from fourfold.compiler.record import Record
from tests.compiled import assert_same, compiled, draw, results_of

KINDS = (nn.LSTM, nn.GRU)
# Products that torch's and fourfold's kernels add up in another order, through some steps and their backward.
NEAR = {"rtol": 1e-4, "atol": 1e-5}

each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: type[nn.RNNBase], dtype: torch.dtype = torch.float32, **settings: object) -> nn.RNNBase:
    torch.manual_seed(1)
    return kind(5, 8, **settings).to(dtype)


def state_of(layer: nn.RNNBase, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), batch, layer.hidden_size)
    return tuple(draw(*shape, dtype=dtype, seed=k) for k in range(2 if layer.mode == "LSTM" else 1))


def packed_of(lengths: tuple[int, ...], enforce_sorted: bool) -> PackedSequence:
    return pack_sequence([draw(n, 5, gradient=False) for n in lengths], enforce_sorted=enforce_sorted)


def flat(layer: nn.RNNBase) -> Callable[..., tuple[Tensor, ...]]:
    """The layer with its states as arguments and as results of their own."""

    def call(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        hx = None if not states else states if layer.mode == "LSTM" else states[0]
        output, final = layer(x, hx)
        return (output, *final) if isinstance(final, tuple) else (output, final)

    return call


def check(layer: nn.RNNBase, *given: Tensor, **tolerance: float) -> None:
    """One graph whose values and gradients, of parameters too, are eager's; the same again when it is warm."""
    parameters = tuple(layer.parameters())
    function = flat(layer)
    fused = compiled(function, fullgraph=True)
    for _ in range(2):
        got = {}
        for name, call in (("eager", function), ("compiled", fused)):
            layer.zero_grad()
            got[name] = results_of(call, given, parameters)
        assert_same(got["compiled"], got["eager"], **(tolerance or NEAR))


def captured(function: Callable[..., object], *given: object, **settings: object) -> GraphModule:
    """The graph as Dynamo gives it to a backend, whatever that makes of recurrent layers."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(function, backend=keep, fullgraph=True, **settings)(*given)
    (graph,) = graphs
    return graph


def targets_of(graph: GraphModule) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


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
    """As make_fx writes it, and with arguments by keyword."""
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
@pytest.mark.parametrize(
    ("settings", "given_state"),
    [
        ({}, False),
        ({"num_layers": 2}, True),
        ({"bidirectional": True}, False),
        ({"bias": False}, True),
        ({"num_layers": 2, "bidirectional": True, "batch_first": True}, True),
        ({"num_layers": 3, "bidirectional": True, "batch_first": True, "dropout": 0.4, "bias": False}, False),
    ],
)
def test_a_layer(kind: type[nn.RNNBase], settings: dict[str, object], given_state: bool) -> None:
    """Dropout too: it draws what torch's draws in eager mode."""
    layer = made(kind, **settings)
    shape = (3, 7, 5) if layer.batch_first else (7, 3, 5)
    check(layer, draw(*shape), *(state_of(layer, 3) if given_state else ()))


@each_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(kind: type[nn.RNNBase], dtype: torch.dtype) -> None:
    """bfloat16: torch rounds the state at every step, fourfold at the end."""
    layer = made(kind, dtype, num_layers=2)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-7, "atol": 1e-9}
    check(layer, draw(7, 3, 5, dtype=dtype), *state_of(layer, 3, dtype), **tolerance)


@each_kind
def test_input_without_batch(kind: type[nn.RNNBase]) -> None:
    check(made(kind, num_layers=2), draw(7, 5))


@each_kind
def test_evaluation(kind: type[nn.RNNBase]) -> None:
    """Without dropout, and compiled anew when training begins."""
    layer, x = made(kind, num_layers=2, dropout=0.5).eval(), draw(4, 2, 5, gradient=False)
    fused = compiled(layer, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), layer(x), **NEAR)
    torch.testing.assert_close(fused(x), layer(x), **NEAR)
    layer.train()
    torch.manual_seed(3)
    got = fused(x)
    torch.manual_seed(3)
    torch.testing.assert_close(got, layer(x), **NEAR)


@each_kind
def test_sequences_of_any_length_share_a_graph(kind: type[nn.RNNBase]) -> None:
    layer = made(kind, num_layers=2, bidirectional=True)
    fused = compiled(layer, fullgraph=True)
    fused(draw(6, 2, 5))
    fused(draw(7, 3, 5))  # from here on both sizes are symbols
    with torch._dynamo.config.patch(error_on_recompile=True):
        for steps, batch in ((2, 5), (31, 4), (12, 9)):
            x = draw(steps, batch, 5)
            got, expected = (torch.autograd.grad(call(x)[0].square().sum(), x) for call in (fused, layer))
            torch.testing.assert_close(got, expected, **NEAR)


@each_kind
def test_dynamic_from_the_first_call(kind: type[nn.RNNBase]) -> None:
    layer, x = made(kind, batch_first=True), draw(3, 6, 5)
    torch.testing.assert_close(compiled(layer, fullgraph=True, dynamic=True)(x), layer(x), **NEAR)


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_in_one_graph(enforce_sorted: bool) -> None:
    """Of an LSTM whose state is given. nn.LSTM reads batch_sizes where there is none, and nn.GRU always."""
    layer = made(nn.LSTM, num_layers=2, bidirectional=True)
    packed = packed_of((4, 3, 1) if enforce_sorted else (1, 4, 3), enforce_sorted)

    def run(data: Tensor, batch_sizes: Tensor, h: Tensor, c: Tensor, *order: Tensor) -> tuple[Tensor, ...]:
        output, final = layer(PackedSequence(data, batch_sizes, *(order or (None, None))), (h, c))
        return (output.data, *final)

    order = () if enforce_sorted else (packed.sorted_indices, packed.unsorted_indices)
    arguments = (packed.data.requires_grad_(), packed.batch_sizes, *state_of(layer, 3), *order)
    parameters = tuple(layer.parameters())
    expected = results_of(run, arguments, parameters)
    layer.zero_grad()
    assert_same(results_of(compiled(run, fullgraph=True), arguments, parameters), expected, **NEAR)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's, at a graph's start
@each_kind
@pytest.mark.parametrize("given_state", [False, True])
def test_packed_sequences_where_dynamo_breaks_the_graph(kind: type[nn.RNNBase], given_state: bool) -> None:
    layer = made(kind, num_layers=2)
    states = state_of(layer, 3) if given_state else ()
    hx = states if len(states) == 2 else states[0] if states else None

    def run(data: Tensor, *lengths: int) -> Tensor:
        packed = pack_sequence(data.sin().split(lengths), enforce_sorted=False)
        return pad_packed_sequence(layer(packed, hx)[0])[0].cos()

    fused = compiled(run)
    for lengths in ((1, 4, 3), (3, 3, 2)):
        x = draw(8, 5)
        torch.testing.assert_close(fused(x, *lengths), run(x, *lengths), **NEAR)


@each_kind
@pytest.mark.parametrize("inside", [False, True])
def test_autocast(kind: type[nn.RNNBase], inside: bool) -> None:
    layer, x = made(kind, num_layers=2), draw(6, 3, 5)

    def under_autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)[0]

    if inside:
        expected, got = under_autocast(x), compiled(under_autocast, fullgraph=True)(x)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            expected, got = layer(x)[0], compiled(layer, fullgraph=True)(x)[0]
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    mine, theirs = (torch.autograd.grad(o.float().sum(), list(layer.parameters())) for o in (got, expected))
    torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.1)


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(11, 5)
        self.memory = kind(5, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.relu(self.memory(self.embedding(words))[0]))


@each_kind
def test_training_a_model(kind: type[nn.RNNBase]) -> None:
    """Some steps of an optimiser, each of which the next call sees."""
    words = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))
    losses = {}
    for name in ("eager", "compiled"):
        model = Tagger(kind)
        call = compiled(model, fullgraph=True) if name == "compiled" else model
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        losses[name] = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(call(words).flatten(0, 1), words.flatten() % 3)
            loss.backward()
            optimizer.step()
            losses[name].append(loss.detach())
    torch.testing.assert_close(losses["compiled"], losses["eager"], **NEAR)
    assert losses["eager"][-1] < losses["eager"][0]


@each_kind
def test_hooks_of_the_layer_are_called(kind: type[nn.RNNBase]) -> None:
    model, words = Tagger(kind), torch.tensor([[1, 2, 3]])
    model.memory.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model.memory.register_forward_hook(lambda module, given, result: (result[0] + 1, result[1]))
    plain = model(words)
    torch.testing.assert_close(compiled(model, fullgraph=True)(words), plain, **NEAR)
    model.memory._forward_pre_hooks.clear()
    assert (model(words) - plain).abs().max() > 1e-3  # so the hooks were seen


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
@pytest.mark.parametrize("optimized", [False, True])
def test_fourfolds_own_layers(kind: type[nn.RNNBase], optimized: bool) -> None:
    layer = made(kind, num_layers=2)
    ours = made(kind if optimized else getattr(fourfold.nn, kind.__name__), num_layers=2)
    if optimized:
        fourfold.optimize(ours)
    x = draw(6, 3, 5)
    torch.testing.assert_close(compiled(ours, fullgraph=True)(x), layer(x), **NEAR)


@each_kind
def test_a_frozen_layer_runs_between_graphs(kind: type[nn.RNNBase]) -> None:
    """Where its packed weights are read, and a change of them is found."""
    layer, x = getattr(fourfold.nn, kind.__name__)(5, 8), draw(6, 3, 5, gradient=False)
    with fourfold.frozen(layer), torch.no_grad():
        fused = compiled(lambda x: layer(x.sin())[0].cos())
        torch.testing.assert_close(fused(x), layer(x.sin())[0].cos())
        layer.weight_hh_l0.mul_(2)
        with pytest.raises(RuntimeError, match="weight_hh_l0"):
            fused(x)


class Doubled(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0] * 2


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.RNN(5, 8),
        lambda: nn.LSTM(5, 8, proj_size=3),
        lambda: nn.GRU(5, 1025),
        lambda: Doubled(5, 8),
        lambda: nn.utils.parametrizations.weight_norm(nn.GRU(5, 8), "weight_hh_l0"),
    ],
)
def test_layers_that_stay_run_between_graphs(layer: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(layer())
    x = draw(3, 2, 5)
    fused = compiled(model)
    torch.testing.assert_close(fused(x), model(x))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="RNN, GRU, or LSTM"):
        compiled(model, fullgraph=True)(x)


def test_other_backends_break_their_graphs_as_before() -> None:
    layer, x = made(nn.LSTM), draw(3, 2, 5)
    torch.testing.assert_close(compiled(layer, fullgraph=True)(x), layer(x), **NEAR)
    torch._dynamo.reset()
    counters.clear()
    torch.compile(lambda x: layer(x)[0] * 2, backend="aot_eager")(x)
    assert any("RNN, GRU, or LSTM" in reason for reason in counters["graph_break"])
    assert torch._dynamo.config.allow_rnn is False
    graph = captured(layer, x)  # as Dynamo has it for others who set allow_rnn
    assert torch.lstm in targets_of(graph)


def test_for_whom_dynamo_captures() -> None:
    wrapped = functools.partial(backend, record=Record())
    assert all(capture.is_for(backend, one) for one in (backend, wrapped, functools.partial(wrapped)))
    assert not any(capture.is_for(backend, one) for one in (None, Mock()))
    assert not capture.is_for(backend, torch._dynamo.lookup_backend("aot_eager"))


def test_explain_shows_one_graph() -> None:
    layer = made(nn.LSTM)
    explanation = fourfold.explain(lambda x: layer(x)[0].sin(), draw(4, 2, 5))
    assert len(explanation.graphs) == 1
    assert "1 × fourfold::lstm" in str(explanation)
