"""Streams of calls: models that were saved with their state."""

from __future__ import annotations

import re
import threading
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
            stream.reset(restarts)
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
    with pytest.raises(ValueError, match="expected dim, the state's dimension that counts the streams"):
        stream.reset(torch.tensor([True, False]))
    stream.reset(torch.tensor([True, False]), dim=1)
    before = stream.state["ring"]
    assert torch.equal(stream(torch.ones(1, 2)), torch.tensor([11.0, 3.0]))
    assert not torch.equal(before, stream.state["ring"])  # it was a copy
    assert torch.equal(first, torch.full((3, 2), 5.0))


class Last(nn.Module):
    """A state that is an argument, and a result that is also a state."""

    def forward(self, x: Tensor, last: Tensor, total: Tensor, again: Tensor) -> tuple[Tensor, ...]:
        total = total + x
        return x - last, x[..., :1], total, total, total.view(-1)


def test_the_state_shares_no_memory(tmp_path: Path) -> None:
    """Callers write each frame into the same memory, and change results."""
    given = (torch.ones(1, 2), torch.zeros(1, 1), torch.zeros(1, 2), torch.zeros(2))
    stream = saved(tmp_path, Last(), given, {"last": 1, "total": 2, "again": 4}).stream()
    frame, last = torch.empty(1, 2), 0
    for k in range(1, 5):
        frame.fill_(k * k)
        difference, total = stream(frame)
        assert torch.equal(difference, torch.full((1, 2), float(k * k - last)))
        last = k * k
        total.fill_(-100)
        assert torch.equal(stream.state["total"], torch.full((1, 2), float(sum(i * i for i in range(1, k + 1)))))
    first = torch.full((1, 2), 3.0)
    other = fourfold.load(tmp_path / "model.ff").stream(total=first)
    first.zero_()
    other(frame)
    assert torch.equal(other.state["total"], torch.full((1, 2), 19.0))


def test_threads_that_share_a_stream_wait_for_each_other(tmp_path: Path) -> None:
    _, loaded = cells_model(tmp_path)
    stream, x = loaded.stream(), torch.randn(4, 3)

    def run() -> None:
        for k in range(100):
            stream(x)
            stream.reset(torch.arange(4) == k % 4)
            assert len(stream.state) in (0, 3)
            stream.reset()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.reset()
    stream(x)
    assert torch.equal(stream.state["count"], torch.ones(4))


def test_a_call_that_fails_leaves_the_state(tmp_path: Path) -> None:
    class Pick(nn.Module):
        def forward(self, x: Tensor, at: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return (h + x).index_select(1, at), h + x

    by_batch = {0: batch()}
    loaded = saved(
        tmp_path,
        Pick(),
        (torch.ones(2, 3), torch.tensor([0]), torch.zeros(2, 3)),
        {"h": 1},
        dynamic_shapes=(by_batch, None, by_batch),
    )
    stream = loaded.stream()
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        stream(torch.ones(5, 3), torch.tensor([7]))
    assert stream.state == {}
    stream(torch.ones(2, 3), torch.tensor([1]))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        stream(torch.ones(2, 3), torch.tensor([7]))
    assert torch.equal(stream.state["h"], torch.ones(2, 3))


class Named(nn.Module):
    """Arguments whose leaves torch.export names alike, and integers as keys of results."""

    def forward(self, x: Tensor, h: dict[str, Tensor], k: tuple[tuple[Tensor, Tensor]], k_0: Tensor) -> dict[Any, Any]:
        return {
            1: {name: each + x for name, each in h.items()},
            0: x * 10,
            "k": ((k[0][0] - x, k[0][1] + k_0),),
            2: k_0 + 1,
        }


def test_names_of_arguments_and_results(tmp_path: Path) -> None:
    zeros = [torch.zeros(2) for _ in range(5)]
    given = (torch.ones(2), {"n_1": zeros[0], "n_2": zeros[1]}, ((zeros[2], zeros[3]),), zeros[4])
    stream = saved(tmp_path, Named(), given, {"h": 1, "k": "k", "k_0": 2}).stream()
    for step in range(1, 4):
        assert {key: each.tolist() for key, each in stream(torch.ones(2)).items()} == {0: [10.0, 10.0]}
        sums = {name: each[0].item() for name, each in stream.state.items()}
        assert sums == {"h_n_1": step, "h_n_2": step, "k_0_0": -step, "k_0_1": step * (step - 1) / 2, "k_0": step}


def test_dimensions_of_streams_by_state(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x, a + x, b + x.unsqueeze(-1)

    stream = saved(
        tmp_path, Two(), (torch.ones(2, 2), torch.zeros(2, 2), torch.zeros(2, 2, 3)), {"a": 1, "b": 2}
    ).stream()
    stream(torch.ones(2, 2))
    stream.reset(torch.tensor([True, False]), dim={"a": 1, "b": 0})
    assert torch.equal(stream.state["a"], torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert stream.state["b"][0].sum() == 0 and stream.state["b"][1].sum() == 6


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
    "an argument twice": (
        {"state": 1, "state_0": 2},
        "save: expected each argument of state once, but 'state_0' has state_0 again",
    ),
    "an argument that is not changed": ({"count": None}, "expected the model to change the state count in place"),
    "another shape": (
        {"count": 2},
        "save: expected the result that count takes to be float32 [2], as the argument, but it is",
    ),
}


def test_save_takes_a_dict(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="save: expected state to be a dict of arguments"):
        saved(tmp_path, Cells(), cells(), ["state"])


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
    for streams in (torch.tensor([1, 0]), torch.tensor(True)):
        with pytest.raises(ValueError, match="reset: expected streams to be bool and of one dimension"):
            stream.reset(streams)
    with pytest.raises(ValueError, match="expected streams to have 2 elements, as dimension 0 of state_0, but got 1"):
        stream.reset(torch.tensor([True]))
    with pytest.raises(ValueError, match="reset: expected count to have a dimension 1 that counts the streams"):
        stream.reset(torch.tensor([True, False]), dim={"state_0": 0, "state_1": 0, "count": 1})
    with pytest.raises(ValueError, match="reset: expected a dimension for each state"):
        stream.reset(torch.tensor([True, False]), dim={"state_0": 0})
    with pytest.raises(TypeError, match="reset: expected streams to be a tensor, but got list"):
        stream.reset([True])
    with pytest.raises(ValueError, match="stream: expected the name of a state, state_0, state_1, count, but got"):
        loaded.stream(h=torch.zeros(1, 5))
    with pytest.raises(TypeError, match="stream: expected state_0 to be a tensor, but got float"):
        loaded.stream(state_0=0.0)
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
        ValueError, match="known from the other arguments, but got no size; begin the stream with this state"
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
