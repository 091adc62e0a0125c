"""Streams of calls: models that were saved with their state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import fourfold
from saved_models import graph, reloaded, rewritten

State = tuple[Tensor, Tensor]


class Cells(nn.Module):
    """States as a tuple, at both ends of the results."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor, state: State, count: Tensor) -> tuple[Tensor, State, Tensor]:
        h, c = self.cell(x, state)
        return count + 1, (h, c), self.out(h)


class Layers(nn.Module):
    """A dict of results; named arguments; a state with the batch in its second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = fourfold.nn.GRU(3, 4, num_layers=2)

    def forward(self, x: Tensor, *, h: Tensor, scale: Tensor) -> dict[str, Tensor]:
        y, h_n = self.gru(x, h)
        return {"h_n": h_n, "y": y * scale, "last": y[-1]}


class Ring(nn.Module):
    """The last rows, which the model changes in place."""

    def forward(self, x: Tensor, ring: Tensor) -> Tensor:
        ring.copy_(torch.cat([ring[1:], x]))
        return ring.sum(0)


def batch(low: int = 1) -> Dim:
    return Dim("batch", min=low, max=64)


def cells(n: int = 2) -> tuple[Any, ...]:
    return torch.randn(n, 3), (torch.zeros(n, 5), torch.zeros(n, 5)), torch.zeros(n)


def saved(
    folder: Path, model: nn.Module, given: tuple[Any, ...], state: dict[str, Any], **settings: Any
) -> fourfold.Model:
    path = folder / "model.ff"
    fourfold.save(torch.export.export(model.eval(), given, **settings), path, state=state)
    return fourfold.load(path)


def cells_model(folder: Path) -> tuple[nn.Module, fourfold.Model]:
    torch.manual_seed(1)
    model, by_batch = Cells(), {0: batch()}
    shapes = (by_batch, (by_batch, by_batch), by_batch)
    return model, saved(folder, model, cells(3), {"state": 1, "count": 0}, dynamic_shapes=shapes)


def test_a_stream_is_the_loop_that_passes_the_state(tmp_path: Path) -> None:
    model, loaded = cells_model(tmp_path)
    for n in (1, 4):
        stream, state, count = loaded.stream(), (torch.zeros(n, 5), torch.zeros(n, 5)), torch.zeros(n)
        for _ in range(2):
            for _ in range(5):
                x = torch.randn(n, 3)
                with torch.no_grad():
                    count, state, expected = model(x, state, count)
                torch.testing.assert_close(stream(x), expected)
                assert set(stream.state) == {"state_0", "state_1", "count"}
                torch.testing.assert_close(stream.state["state_1"], state[1])
                torch.testing.assert_close(stream.state["count"], count)
            stream.reset()
            assert stream.state == {}
            state, count = (torch.zeros(n, 5), torch.zeros(n, 5)), torch.zeros(n)


def test_streams_are_independent_and_calls_keep_the_state_as_arguments(tmp_path: Path) -> None:
    model, loaded = cells_model(tmp_path)
    x = torch.randn(2, 3)
    first, second = loaded.stream(), loaded.stream()
    one = first(x)
    assert not torch.equal(first(x), one)
    assert torch.equal(second(x), one)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x, *cells()[1:])[2], model(x, *cells()[1:])[2])


def test_a_stream_begins_with_a_given_state(tmp_path: Path) -> None:
    model, loaded = cells_model(tmp_path)
    h, x = torch.randn(2, 5), torch.randn(2, 3)
    stream = loaded.stream(state_0=h, count=torch.ones(2))
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(stream(x), model(x, (h, torch.zeros(2, 5)), torch.zeros(2))[2])
        assert torch.equal(stream.state["count"], torch.full((2,), 2.0))
        stream(x)
        stream.reset()


def test_streams_of_a_batch_begin_again(tmp_path: Path) -> None:
    model = Layers()
    given = {"h": torch.zeros(2, 3, 4), "scale": torch.ones(())}
    path = tmp_path / "model.ff"
    program = torch.export.export(
        model.eval(),
        (torch.randn(6, 3, 3),),
        given,
        dynamic_shapes={"x": {1: batch()}, "h": {1: batch()}, "scale": None},
    )
    fourfold.save(program, path, state={"h": "h_n"})
    stream = fourfold.load(path).stream()
    h = torch.zeros(2, 3, 4)
    restarts = torch.tensor([True, False, True])
    for step in range(4):
        if step == 2:
            stream.reset(restarts, dim=1)
            h = h.masked_fill(restarts.view(1, 3, 1), 0)
        x = torch.randn(6, 3, 3)
        with torch.no_grad():
            expected = model(x, h=h, scale=torch.tensor(2.0))
        got = stream(x, scale=torch.tensor(2.0))
        h = expected.pop("h_n")
        assert list(got) == ["y", "last"]
        for name, each in expected.items():
            torch.testing.assert_close(got[name], each)


def test_a_state_that_the_model_changes_in_place(tmp_path: Path) -> None:
    loaded = saved(tmp_path, Ring(), (torch.ones(1, 2), torch.zeros(3, 2)), {"ring": None})
    first = torch.full((3, 2), 5.0)
    stream = loaded.stream(ring=first)
    for expected in (11.0, 7.0, 3.0, 3.0):
        assert torch.equal(stream(torch.ones(1, 2)), torch.full((2,), expected))
    stream.reset(torch.tensor([True, False]), dim=1)
    assert torch.equal(stream(torch.ones(1, 2)), torch.tensor([11.0, 3.0]))
    assert torch.equal(first, torch.full((3, 2), 5.0))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown argument": (
        {"h": 1},
        "save: expected state to name arguments, x, state_0, state_1, count, state, but got 'h'",
    ),
    "an unknown result": ({"count": 3}, "save: expected state['count'] to be a result, 0, 1, 2, but got 3"),
    "another number of tensors": (
        {"state": 0},
        "save: expected the result 0 to have as many tensors as state, 2, but it has 1",
    ),
    "another shape": (
        {"count": 2},
        "save: expected the result that count takes to be float32 [2], as the argument, but it is",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_save_refuses_a_state_that_the_model_does_not_have(tmp_path: Path, kind: str) -> None:
    state, message = REFUSED[kind]
    with pytest.raises(ValueError, match=re.escape(message)):
        saved(tmp_path, Cells(), cells(), state)


def test_errors_name_what_to_change(tmp_path: Path) -> None:
    _, loaded = cells_model(tmp_path)
    stream = loaded.stream()
    with pytest.raises(TypeError, match="expected 1 arguments without names, but got 2"):
        stream(torch.randn(1, 3), torch.zeros(1))
    with pytest.raises(ValueError, match="expected dimension 1 of x to be 3, but got 4"):
        stream(torch.randn(1, 4))
    stream(torch.randn(2, 3))
    with pytest.raises(ValueError, match="of state_0 to be dimension 0 of x = 3, but got 2"):
        stream(torch.randn(3, 3))
    for streams in (torch.tensor([True]), torch.tensor([1, 0]), torch.tensor(True)):
        with pytest.raises(ValueError, match="reset: expected streams to be bool"):
            stream.reset(streams)
    with pytest.raises(ValueError, match="reset: expected streams"):
        stream.reset(torch.tensor([True, False]), dim=2)
    with pytest.raises(TypeError, match="reset: expected streams to be a tensor, but got list"):
        stream.reset([True])
    with pytest.raises(ValueError, match="stream: expected the name of a state, but got"):
        loaded.stream(h=torch.zeros(1, 5))
    plain = reloaded(nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path)
    with pytest.raises(ValueError, match=r"saved with its state: fourfold.save\(program, path, state="):
        plain.stream()


def test_sizes_of_the_state_that_nothing_tells(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return h.sum(), h + x

    shapes = (None, {0: Dim("features", min=1, max=8)})
    loaded = saved(tmp_path, Sums(), (torch.ones(()), torch.zeros(4)), {"h": 1}, dynamic_shapes=shapes)
    with pytest.raises(
        ValueError, match="known from the other arguments, but got no such size; give the stream its first state"
    ):
        loaded.stream()(torch.ones(()))
    stream = loaded.stream(h=torch.zeros(3))
    assert [stream(torch.ones(())).item() for _ in range(3)] == [0, 3, 6]


@pytest.mark.parametrize("pair", [[9, 1], [0, 9], [0], [1, 1], [0, -1], ["x", 0]])
def test_files_with_another_state_are_refused(tmp_path: Path, pair: list[Any]) -> None:
    cells_model(tmp_path)
    path = tmp_path / "model.ff"
    assert graph(path)["state"] == [[1, 1], [2, 2], [3, 0]]

    def change(header: dict[str, Any], inner: dict[str, Any]) -> None:
        inner["state"] = [[1, 1], pair]

    with pytest.raises(ValueError, match="load: expected"):
        fourfold.load(rewritten(path, tmp_path / "other.ff", change))


def test_one_tensor_as_two_arguments(tmp_path: Path) -> None:
    """torch.export takes them for one: its program would ignore the first."""

    class Two(nn.Module):
        def forward(self, x: Tensor, state: State) -> Tensor:
            return x + 2 * state[0] + 3 * state[1]

    zeros = torch.zeros(2)
    program = torch.export.export(Two(), (torch.ones(2), (zeros, zeros)))
    with pytest.raises(
        ValueError, match=r"expected state_0 and state_1 to be different tensors.*export with state_1.clone\(\)"
    ):
        fourfold.save(program, tmp_path / "model.ff")
    loaded = reloaded(Two(), (torch.ones(2), (zeros, zeros.clone())), tmp_path)
    same = torch.full((2,), 5.0)
    assert torch.equal(loaded(torch.ones(2), (same, same)), torch.full((2,), 26.0))
