"""nn.Recurrent with torch's cells against torch's layers, and with other cells against Python loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fourfold
from fourfold.nn import Recurrent

T, B, F, H = 6, 3, 4, 5
KINDS = {"LSTM": (nn.LSTM, nn.LSTMCell), "GRU": (nn.GRU, nn.GRUCell), "RNN": (nn.RNN, nn.RNNCell)}


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    torch.manual_seed(0)


def pair(kind: str, num_layers: int, bidirectional: bool, **settings: Any) -> tuple[nn.Module, Recurrent]:
    """torch's layer, and one composed of cells with the same weights."""
    layer_type, cell_type = KINDS[kind]
    layer = layer_type(F, H, num_layers, bidirectional=bidirectional, **settings)

    def make(number: int, is_reverse: bool) -> nn.Module:
        cell = cell_type(F if number == 0 else H * (1 + bidirectional), H)
        suffix = f"_l{number}" + "_reverse" * is_reverse
        cell.load_state_dict({name: getattr(layer, f"{name}{suffix}") for name in cell.state_dict()})
        return cell

    return layer, Recurrent(make, num_layers, bidirectional=bidirectional, **settings)


def same_gradients(layer: nn.Module, ours: Recurrent, output: Tensor, expected: Tensor) -> None:
    expected.square().sum().backward()
    output.square().sum().backward()
    for k, cell in enumerate(ours.cells):
        number, is_reverse = divmod(k, 1 + ours.bidirectional)
        for name, parameter in cell.named_parameters():
            theirs = getattr(layer, f"{name}_l{number}{'_reverse' * is_reverse}").grad
            torch.testing.assert_close(parameter.grad, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_torchs_layers(kind: str, num_layers: int, bidirectional: bool) -> None:
    layer, ours = pair(kind, num_layers, bidirectional)
    x = torch.randn(T, B, F)
    hx = torch.randn(num_layers * (1 + bidirectional), B, H)
    hx = (hx, hx + 1) if kind == "LSTM" else hx
    for given in ((x,), (x, hx)):
        expected, found = layer(*given), ours(*given)
        torch.testing.assert_close(found, expected)
        same_gradients(layer, ours, found[0], expected[0])


@pytest.mark.parametrize("kind", KINDS)
def test_batch_first_and_no_batch(kind: str) -> None:
    layer, ours = pair(kind, 2, True, batch_first=True)
    x = torch.randn(B, T, F)
    torch.testing.assert_close(ours(x), layer(x))
    torch.testing.assert_close(ours(x[0]), layer(x[0]))


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_input(kind: str, enforce_sorted: bool) -> None:
    layer, ours = pair(kind, 2, True)
    lengths = [6, 4, 1] if enforce_sorted else [2, 6, 4]
    packed = pack_padded_sequence(torch.randn(T, B, F), torch.tensor(lengths), enforce_sorted=enforce_sorted)
    hx = torch.randn(4, B, H)
    for given in ((packed,), (packed, (hx, hx + 1) if kind == "LSTM" else hx)):
        (expected, last), (found, ours_last) = layer(*given), ours(*given)
        torch.testing.assert_close(ours_last, last)
        torch.testing.assert_close(pad_packed_sequence(found), pad_packed_sequence(expected))
        same_gradients(layer, ours, found.data, expected.data)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_restarts_as_fourfolds_layers(bidirectional: bool, is_packed: bool) -> None:
    layer = fourfold.nn.LSTM(F, H, bidirectional=bidirectional)
    _, ours = pair("LSTM", 1, bidirectional)
    for k, cell in enumerate(ours.cells):
        cell.load_state_dict({n: getattr(layer, f"{n}_l0{'_reverse' * k}") for n in cell.state_dict()})
    x, reset = torch.randn(T, B, F), torch.rand(T, B) > 0.6
    if is_packed:
        lengths = torch.tensor([6, 4, 2])
        x, reset = pack_padded_sequence(x, lengths), pack_padded_sequence(reset, lengths)
    expected, found = layer(x, reset=reset), ours(x, reset=reset)
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(*((each.data if is_packed else each) for each in (found[0], expected[0])))


def test_restarts_from_a_given_state() -> None:
    _, ours = pair("GRU", 1, False)
    x, reset, to = torch.randn(T, B, F), torch.rand(T, B) > 0.5, torch.randn(1, B, H)
    found, _ = ours(x, reset=reset, reset_state=to)
    h = torch.zeros(B, H)
    for t in range(T):
        h = ours.cells[0](x[t], torch.where(reset[t][:, None], to[0], h))
        torch.testing.assert_close(found[t], h)


class MinimalGatedUnit(nn.Module):
    """Zhou et al. 2016, Minimal gated unit for recurrent neural networks, equations 9 to 11."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size
        self.forget = nn.Linear(input_size + hidden_size, hidden_size)
        self.candidate = nn.Linear(input_size + hidden_size, hidden_size)

    def initial_state(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self.hidden_size)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        f = torch.sigmoid(self.forget(torch.cat([h, x], -1)))
        h = (1 - f) * h + f * torch.tanh(self.candidate(torch.cat([f * h, x], -1)))
        return 2 * h, h


def test_a_cell_of_ones_own() -> None:
    cell = MinimalGatedUnit(F, H)
    layer = Recurrent(cell)
    x = torch.randn(T, B, F)
    found, last = layer(x)
    h, expected = cell.initial_state(x[0]), []
    for t in range(T):
        y, h = cell(x[t], h)
        expected.append(y)
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(last, h[None])
    assert {name.removeprefix("cells.0.") for name in layer.state_dict()} == set(cell.state_dict())


def test_dropout_between_layers_in_training_alone() -> None:
    _, ours = pair("GRU", 2, False, dropout=1.0)
    x = torch.randn(T, B, F)
    assert not torch.equal(ours(x)[0], ours(2 * x)[0].detach() * 0 + ours.eval()(x)[0])
    torch.testing.assert_close(ours.train()(x)[0], ours(-x)[0])  # the second layer sees zeros


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cell": 3}, "cell to be a module, a list or a function"),
        ({"cell": nn.GRUCell}, "cell to be a module, but got the class GRUCell; create an instance$"),
        ({"cell": nn.GRUCell(F, H), "num_layers": 2}, "expected 2 cells for 2 layers, but got 1"),
        ({"cell": [3]}, "cells to be modules"),
        ({"cell": nn.GRUCell(F, H), "num_layers": 0}, "num_layers"),
        ({"cell": nn.GRUCell(F, H), "dropout": 2}, "dropout to be a probability"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Recurrent(**given)


class ReturnsItsState(nn.Module):
    """Returns h alone, as nn.RNNCell does, for which Recurrent knows it. Each tensor of batch 2 could be a pair."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(x[..., :H] + h)


def test_a_cell_that_returns_no_pair_is_named() -> None:
    wanted = "^Recurrent: expected the cell to return a pair, its output and the new state, but got Tensor$"
    with pytest.raises(TypeError, match=wanted):
        Recurrent(ReturnsItsState())(torch.zeros(T, 2, H), torch.zeros(1, 2, H))


def test_calls_that_do_not_fit() -> None:
    layer = Recurrent(nn.GRUCell(F, H))
    with pytest.raises(ValueError, match="2 or 3 dimensions"):
        layer(torch.zeros(F))
    with pytest.raises(ValueError, match=r"in hx of shape \(1, 3, …\), but got shape \(2, 3, 5\)"):
        layer(torch.zeros(T, B, F), torch.zeros(2, B, H))
    with pytest.raises(
        TypeError,
        match=r"expected a cell, called as cell\(x, state\), .*, but Linear has no such method and hx is None",
    ):
        Recurrent(nn.Linear(F, H))(torch.zeros(T, B, F))
    with pytest.raises(ValueError, match="reset to have shape"):
        layer(torch.zeros(T, B, F), reset=torch.zeros(B, T, dtype=torch.bool))
