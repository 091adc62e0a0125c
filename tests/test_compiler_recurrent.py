"""Compiled models with nn.LSTM and nn.GRU, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import fourfold
from compiled import assert_same, compiled, draw, results_of
from recurrent_layers import NEAR, each_kind, made, state_of


def packed_of(lengths: tuple[int, ...], enforce_sorted: bool) -> PackedSequence:
    return pack_sequence([draw(n, 5, gradient=False) for n in lengths], enforce_sorted=enforce_sorted)


def flat(layer: nn.RNNBase) -> Callable[..., tuple[Tensor, ...]]:
    """The layer with its states as separate arguments and results."""

    def call(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        hx = None if not states else states if layer.mode == "LSTM" else states[0]
        output, final = layer(x, hx)
        return (output, *final) if isinstance(final, tuple) else (output, final)

    return call


def check(layer: nn.RNNBase, *given: Tensor, **tolerance: float) -> None:
    """One graph whose values and gradients, including the parameters', equal eager's; the same when it is warm."""
    parameters = tuple(layer.parameters())
    function = flat(layer)
    fused = compiled(function, fullgraph=True)
    for _ in range(2):
        got = {}
        for name, call in (("eager", function), ("compiled", fused)):
            layer.zero_grad()
            got[name] = results_of(call, given, parameters)
        assert_same(got["compiled"], got["eager"], **(tolerance or NEAR))


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
    """Dropout included: it draws the same numbers as torch in eager mode."""
    layer = made(kind, **settings)
    shape = (3, 7, 5) if layer.batch_first else (7, 3, 5)
    check(layer, draw(*shape), *(state_of(layer, 3) if given_state else ()))


@each_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(kind: type[nn.RNNBase], dtype: torch.dtype) -> None:
    """In bfloat16 torch rounds the state at every step, fourfold at the end."""
    layer = made(kind, dtype, num_layers=2)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-7, "atol": 1e-9}
    check(layer, draw(7, 3, 5, dtype=dtype), *state_of(layer, 3, dtype), **tolerance)


@each_kind
def test_input_without_batch(kind: type[nn.RNNBase]) -> None:
    check(made(kind, num_layers=2), draw(7, 5))


@each_kind
def test_evaluation(kind: type[nn.RNNBase]) -> None:
    """Without dropout; recompiled when training begins."""
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
    fused(draw(7, 3, 5))  # from here on both sizes are symbolic
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
    """An LSTM with a given state. Without one nn.LSTM reads batch_sizes, and nn.GRU always does."""
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from Dynamo
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's, at a graph's start
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("kind", [fourfold.nn.LSTM, fourfold.nn.GRU, fourfold.nn.LLTM])
def test_packed_sequences_without_a_state_break_the_graph_once(
    kind: type[nn.Module], enforce_sorted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And without Dynamo's warnings about item(); not at all where the sequences' order has the batch."""
    layer = kind(5, 4, num_layers=2)
    packed = packed_of((4, 3, 1) if enforce_sorted else (1, 4, 3), enforce_sorted)

    def run(packed: PackedSequence) -> Tensor:
        return layer(packed)[0].data.cos()

    torch._dynamo.reset()
    torch._dynamo.variables.tensor.TensorVariable._warn_capture_scalar_outputs.cache_clear()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(capture_scalar_outputs=False), caplog.at_level("WARNING"):
        found = compiled(run)(packed)
    torch.testing.assert_close(found, run(packed), **NEAR)
    reasons = "".join(torch._dynamo.utils.counters["graph_break"])
    assert ("the number of packed sequences is data" in reasons) == enforce_sorted
    assert "item()" not in reasons and "item()" not in caplog.text
    assert len(torch._dynamo.utils.counters["graph_break"]) == enforce_sorted


def eager_twin(layer: nn.RNNBase) -> nn.RNNBase:
    """A layer that runs in bfloat16: torch.nn's LSTM uses oneDNN, which needs AVX-512."""
    if not isinstance(layer, nn.LSTM) or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return layer
    twin = fourfold.nn.LSTM(layer.input_size, layer.hidden_size, layer.num_layers)
    twin.load_state_dict(layer.state_dict())
    return twin


@each_kind
@pytest.mark.parametrize("inside", [False, True])
def test_autocast(kind: type[nn.RNNBase], inside: bool) -> None:
    layer, x = made(kind, num_layers=2), draw(6, 3, 5)
    eager = eager_twin(layer)

    def under_autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)[0]

    with torch.autocast("cpu", torch.bfloat16):
        expected = eager(x)[0]
        got = compiled(layer, fullgraph=True)(x)[0] if not inside else None
    if inside:
        got = compiled(under_autocast, fullgraph=True)(x)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    pairs = ((got, layer), (expected, eager))
    mine, theirs = (torch.autograd.grad(o.float().sum(), list(of.parameters())) for o, of in pairs)
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
    """Several optimizer steps, each of which affects the next call."""
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
    assert (model(words) - plain).abs().max() > 1e-3  # the hooks ran


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
    """There its packed weights are used, and a change of them is detected."""
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


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
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


def test_explain_shows_one_graph() -> None:
    layer = made(nn.LSTM)
    explanation = fourfold.explain(lambda x: layer(x)[0].sin(), draw(4, 2, 5))
    assert len(explanation.graphs) == 1
    assert "1 × fourfold::lstm" in str(explanation)
