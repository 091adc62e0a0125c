"""torch.onnx.export of fourfold's layers and operators. The exporter is a separate package; these tests run its first
step, capture by torch.export, or by torch.jit.trace in the older exporter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fourfold
from fourfold import nn as ours

pytestmark = [
    # torch warns, about its own layers, that the export assigns their list of weights.
    pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export"),
    pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning"),
]

X, STATE = torch.randn(5, 2, 4), torch.randn(2, 6)


class Function(nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *given: Tensor) -> Any:
        return self.f(*given)


class Resetting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = ours.LSTM(4, 6)

    def forward(self, x: Tensor, reset: Tensor) -> Any:
        return self.layer(x, None, reset)


CASES = {
    "GRU": (ours.GRU(4, 6), (X,)),
    "GRU, two layers and directions": (ours.GRU(4, 6, 2, bidirectional=True), (X, torch.randn(4, 2, 6))),
    "LSTM": (ours.LSTM(4, 6, batch_first=True), (X,)),
    "LSTM with a reset": (Resetting(), (X, torch.rand(5, 2) < 0.3)),
    "LLTM": (ours.LLTM(4, 6, bidirectional=True), (X,)),
    "LLTMCell": (ours.LLTMCell(4, 6), (X[0], (STATE, STATE))),
    "LSTMCell": (ours.LSTMCell(4, 6), (X[0],)),
    "GRUCell": (ours.GRUCell(4, 6), (X[0], STATE)),
    "MLP": (ours.MLP(4, 6, 3), (X,)),
    "MLP by sizes": (ours.MLP([4, 6, 6, 3], activation="gelu"), (X,)),
    "Softshrink": (ours.Softshrink(), (X,)),
    "axpby": (Function(lambda x, y: fourfold.axpby(x, y, 3, 0.5)), (X, X[0])),
    "axpby of integers": (Function(fourfold.axpby), (torch.arange(4), torch.arange(4))),
    "lstm": (
        Function(lambda x, h, a, b: fourfold.lstm(x, h, h, a, b, reverse=True)),
        (X, STATE, torch.randn(24, 4), torch.randn(24, 6)),
    ),
    "gru": (Function(fourfold.gru), (X, STATE, torch.randn(18, 4), torch.randn(18, 6))),
    "mlp_layers": (
        Function(lambda x, a, b: fourfold.mlp_layers(x, [a, b], activation="tanh")),
        (X, torch.randn(6, 4), torch.randn(3, 6)),
    ),
}


def expect_equal(results: Any, wanted: Any) -> None:
    results, wanted = tree_leaves(results), tree_leaves(wanted)
    assert len(results) == len(wanted)
    for a, b in zip(results, wanted, strict=True):
        torch.testing.assert_close(a, b)


STRICT = ("GRU", "LSTM with a reset", "axpby", "mlp_layers")  # the exporter's second attempt


@pytest.mark.parametrize(("name", "strict"), [*((name, False) for name in CASES), *((name, True) for name in STRICT)])
def test_an_exported_program_holds_torchs_operators(name: str, strict: bool, exporting: Callable[[bool], None]) -> None:
    model, given = CASES[name]
    wanted = model(*given)
    for on in (False, True):
        exporting(on)
        with torch._dynamo.config.patch(allow_rnn=True):
            program = torch.export.export(model, given, strict=strict)
        names = [str(node.target) for node in program.graph.nodes]
        assert any(one.startswith("fourfold.") for one in names) != on
    expect_equal(program.module()(*given), wanted)
    exporting(False)
    expect_equal(model(*given), wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_trace_holds_torchs_operators(name: str, exporting: Callable[[bool], None]) -> None:
    model, given = CASES[name]
    wanted = model(*given)
    exporting(True)
    traced = torch.jit.trace(model, given, check_trace=False)
    assert not any(node.kind().startswith("fourfold::") for node in traced.inlined_graph.nodes())
    expect_equal(traced(*given), wanted)


@pytest.mark.parametrize(("layer", "operator"), [(ours.GRU(4, 6), "aten::gru"), (ours.LSTM(4, 6), "aten::lstm")])
def test_a_layer_of_torchs_name_is_torchs_layer_for_any_number_of_steps(
    layer: nn.Module, operator: str, exporting: Callable[[bool], None]
) -> None:
    exporting(True)
    traced = torch.jit.trace(layer, (X,))
    assert operator in [node.kind() for node in traced.inlined_graph.nodes()]
    longer = torch.randn(9, 3, 4)
    expect_equal(traced(longer), layer(longer))


def test_a_frozen_layer_is_exported_as_any_other(exporting: Callable[[bool], None]) -> None:
    layer = ours.GRU(4, 6)
    with torch.no_grad(), fourfold.frozen(layer):
        wanted = layer(X)
        exporting(True)
        program = torch.export.export(layer, (X,), strict=False)
        assert not any(str(node.target).startswith("fourfold.") for node in program.graph.nodes)
        expect_equal(program.module()(X), wanted)
