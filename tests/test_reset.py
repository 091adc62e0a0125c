"""Restarts within a sequence: nn.LSTM, GRU and LLTM with a mask give the results of the segments run separately."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import fourfold

KINDS = {"LSTM": fourfold.nn.LSTM, "GRU": fourfold.nn.GRU, "LLTM": fourfold.nn.LLTM}
OPTIONS = [{}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 2, "bias": False}]


def states_of(layer: nn.Module, batch: int) -> list[Tensor]:
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), batch, layer.hidden_size)
    return [torch.randn(shape, dtype=torch.float64) for _ in range(1 if isinstance(layer, nn.GRU) else 2)]


def as_hx(layer: nn.Module, states: list[Tensor]) -> Any:
    return states[0] if isinstance(layer, nn.GRU) else tuple(states)


def as_states(hx: Any) -> list[Tensor]:
    return [hx] if isinstance(hx, Tensor) else list(hx)


def by_segments(layer: nn.Module, x: Tensor, states: list[Tensor], reset: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One sequence (time, input_size): layer by layer, direction by direction, each segment run separately by a
    unidirectional layer. states: (num_layers * directions, hidden_size) each."""
    directions = 2 if layer.bidirectional else 1
    begins = [0, *(t for t in range(1, len(x)) if reset[t])]
    ends = [*begins[1:], len(x)]
    final = []
    for number in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            k = number * directions + direction
            one = type(layer)(x.shape[1], layer.hidden_size, bias=layer.bias, dtype=x.dtype)
            suffix = f"_l{number}" + "_reverse" * direction
            names = [name for name, _ in layer.named_parameters() if name.endswith(suffix)]
            one.load_state_dict({name.removesuffix(suffix) + "_l0": getattr(layer, name) for name in names})
            pieces = []
            for begin, end in zip(begins, ends, strict=True):
                first = (begin == 0 and not reset[0]) if direction == 0 else end == len(x)
                given = [s[k] if first else torch.zeros_like(s[k]) for s in states]
                segment = x[begin:end].flip(0) if direction else x[begin:end]
                output, hx = one(segment, as_hx(layer, [s.unsqueeze(0) for s in given]))
                pieces.append((output.flip(0) if direction else output, as_states(hx)))
            outputs.append(torch.cat([piece for piece, _ in pieces]))
            final.append(pieces[0 if direction else -1][1])
        x = torch.cat(outputs, -1)
    return x, [torch.cat(column) for column in zip(*final, strict=True)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_segments_alone(name: str, options: dict) -> None:
    layer = KINDS[name](3, 5, **options, dtype=torch.float64)
    x, states = torch.randn(9, 4, 3, dtype=torch.float64), states_of(layer, 4)
    reset = torch.rand(9, 4) < 0.3
    reset[0] = torch.tensor([True, False, True, False])
    reset[:, 3] = False
    output, hx = layer(x, as_hx(layer, states), reset)
    for row in range(4):
        alone, final = by_segments(layer, x[:, row], [s[:, row] for s in states], reset[:, row])
        torch.testing.assert_close(output[:, row], alone)
        for got, wanted in zip(as_states(hx), final, strict=True):
            torch.testing.assert_close(got[:, row], wanted)


@pytest.mark.parametrize("name", KINDS)
def test_layouts_agree(name: str) -> None:
    layer = KINDS[name](3, 5, num_layers=2, bidirectional=True, dtype=torch.float64)
    x, reset = torch.randn(7, 3, 3, dtype=torch.float64), torch.rand(7, 3) < 0.3
    wanted, hx = layer(x, None, reset)
    unbatched, _ = layer(x[:, 1], reset=reset[:, 1])
    torch.testing.assert_close(unbatched, wanted[:, 1])
    layer.batch_first = True
    other, other_hx = layer(x.transpose(0, 1), reset=reset.T)
    torch.testing.assert_close(other.transpose(0, 1), wanted)
    torch.testing.assert_close(other_hx, hx)


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_packed(name: str, enforce_sorted: bool) -> None:
    layer = KINDS[name](3, 5, num_layers=2, bidirectional=True, dtype=torch.float64)
    lengths = torch.tensor([7, 4, 4, 1] if enforce_sorted else [4, 7, 1, 4])
    x, reset = torch.randn(7, 4, 3, dtype=torch.float64), torch.rand(7, 4) < 0.4
    states = states_of(layer, 4)
    pack = [pack_padded_sequence(t, lengths, enforce_sorted=enforce_sorted) for t in (x, reset)]
    output, hx = layer(pack[0], as_hx(layer, states), pack[1])
    padded, _ = pad_packed_sequence(output)
    for row, length in enumerate(lengths.tolist()):
        given = as_hx(layer, [s[:, row] for s in states])
        alone, final = layer(x[:length, row], given, reset[:length, row])
        torch.testing.assert_close(padded[:length, row], alone)
        for got, wanted in zip(as_states(hx), as_states(final), strict=True):
            torch.testing.assert_close(got[:, row], wanted)


@pytest.mark.parametrize("name", KINDS)
def test_a_mask_that_is_packed_otherwise_is_refused(name: str) -> None:
    """With as many steps, but from other sequences: its rows would belong to others."""
    layer = KINDS[name](3, 5, bidirectional=True)
    x, reset = torch.randn(4, 3, 3), torch.zeros(4, 3, dtype=torch.bool)
    packed = pack_padded_sequence(x, torch.tensor([2, 4, 3]), enforce_sorted=False)
    same = pack_padded_sequence(reset, torch.tensor([2, 4, 3]), enforce_sorted=False)
    layer(packed, reset=same)
    others = {
        "batch_sizes": pack_padded_sequence(reset, torch.tensor([3, 3, 3]), enforce_sorted=False),
        "sorted_indices": pack_padded_sequence(reset, torch.tensor([3, 4, 2]), enforce_sorted=False),
        "unsorted_indices": same._replace(unsorted_indices=same.unsorted_indices.flip(0)),
    }
    unsorted = pack_padded_sequence(reset, torch.tensor([4, 3, 2]))
    for field, other in (*others.items(), ("sorted_indices", unsorted)):
        with pytest.raises(
            ValueError, match=f"{name}: expected reset to have the input's {field}, but they differ; pack"
        ):
            layer(packed, reset=other)


def test_a_captured_graph_refuses_a_mask_that_is_packed_otherwise() -> None:
    """The graph doesn't have the lengths, so it compares them at each run."""
    torch._dynamo.reset()
    layer = fourfold.nn.LLTM(3, 5)
    state = (torch.zeros(1, 3, 5), torch.zeros(1, 3, 5))

    def run(data: Tensor, sizes: Tensor, mask: Tensor, mask_sizes: Tensor) -> Tensor:
        return layer(PackedSequence(data, sizes), state, PackedSequence(mask, mask_sizes))[0].data

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    data, mask, sizes = torch.randn(9, 3), torch.rand(9) < 0.3, torch.tensor([3, 3, 2, 1])
    torch.testing.assert_close(compiled(data, sizes, mask, sizes.clone()), run(data, sizes, mask, sizes))
    with pytest.raises(RuntimeError, match="LLTM: expected reset to have the input's batch_sizes, but they differ"):
        compiled(data, sizes, mask, torch.tensor([3, 2, 2, 2]))


@pytest.mark.parametrize("name", KINDS)
def test_exported_with_dynamic_time(name: str) -> None:
    layer = KINDS[name](3, 5, num_layers=2, bidirectional=True)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, reset: Tensor) -> Tensor:
            return self.layer(x, None, reset)[0]

    def draw(time: int) -> tuple[Tensor, Tensor]:
        return torch.randn(time, 2, 3), torch.rand(time, 2) < 0.3

    dims = {0: torch.export.Dim("time")}
    exported = torch.export.export(Masked(), draw(6), dynamic_shapes=(dims, dims)).module()
    for time in (2, 6, 9):
        x, reset = draw(time)
        torch.testing.assert_close(exported(x, reset), layer(x, None, reset)[0])


@pytest.mark.parametrize("name", KINDS)
def test_no_gradient_passes_a_reset(name: str) -> None:
    layer = KINDS[name](3, 5, dtype=torch.float64)
    x = torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True)
    states = [s.requires_grad_() for s in states_of(layer, 2)]
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[3, 0] = True
    output, _ = layer(x, as_hx(layer, states), reset)
    grad, *state_grads = torch.autograd.grad(output[4].sum(), [x, *states])
    assert not grad[:3, 0].any() and grad[3:5, 0].all() and grad[:5, 1].all()
    assert all(not g[:, 0].any() and g[:, 1].all() for g in state_grads)


def test_a_rollout_is_one_call() -> None:
    """The usual loop of reinforcement learning, with done before each step, and the one call that replaces it."""
    layer = fourfold.nn.LSTM(4, 16)
    x, done = torch.randn(12, 3, 4), torch.rand(12, 3) < 0.25
    h, c = torch.randn(1, 3, 16), torch.randn(1, 3, 16)
    state, outputs = (h, c), []
    for t in range(12):
        keep = (~done[t]).float()[None, :, None]
        output, state = layer(x[t : t + 1], (state[0] * keep, state[1] * keep))
        outputs.append(output)
    output, final = layer(x, (h, c), reset=done)
    torch.testing.assert_close(output, torch.cat(outputs))
    torch.testing.assert_close(final, state)


REFUSED = [
    (lambda: torch.zeros(6, 2), TypeError, "expected reset to have dtype torch.bool, but got torch.float32"),
    (lambda: torch.zeros(2, 6).bool(), ValueError, r"expected reset to have shape \(time, batch\) = \(6, 2\), but got"),
    (lambda: [True], TypeError, "expected reset to be a torch.Tensor of bools, but got list"),
]


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED, ids=["dtype", "shape", "list"])
@pytest.mark.parametrize("name", KINDS)
def test_refused(name: str, make: Any, kind: type, words: str) -> None:
    layer = KINDS[name](3, 5)
    with pytest.raises(kind, match=f"{name}: {words}"):
        layer(torch.randn(6, 2, 3), reset=make())
    packed = pack_padded_sequence(torch.randn(6, 2, 3), torch.tensor([6, 2]))
    with pytest.raises(ValueError, match=f"{name}: expected reset to be a PackedSequence of bools"):
        layer(packed, reset=torch.zeros(6, 2, dtype=torch.bool))
