"""Embeddings and largest elements in the steps of a scan, which need no call of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from saved_models import reloaded

WORDS, SIZE = 11, 8


class Decoder(nn.Module):
    """Feeds what it found into the next step."""

    def __init__(self, look_up: Callable[[Tensor, Tensor], Tensor], largest: Callable[[Tensor], tuple[Tensor, ...]]):
        super().__init__()
        self.look_up, self.largest = look_up, largest
        self.table, self.out = nn.Parameter(torch.randn(WORDS, SIZE)), nn.Linear(SIZE, WORDS)

    def step(self, state: Any, x: Tensor) -> Any:
        h, word = state
        h = torch.tanh(h + self.look_up(self.table, word) + x)
        *values, found = self.largest(self.out(h))
        return (h, found), (found, *values)

    def forward(self, h: Tensor, word: Tensor, xs: Tensor) -> Any:
        return fourfold.scan(self.step, (h, word), xs)


LOOK_UPS = {
    "embedding": lambda table, word: nn.functional.embedding(word, table),
    "index": lambda table, word: table[word],
}
LARGEST = {"max": lambda x: tuple(x.max(1)), "argmax": lambda x: (x.argmax(-1),)}


@pytest.mark.parametrize("largest", LARGEST.values(), ids=LARGEST)
@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)
def test_as_in_python(tmp_path: Path, look_up: Any, largest: Any) -> None:
    model = Decoder(look_up, largest).eval().requires_grad_(False)
    given = torch.randn(3, SIZE), torch.tensor([0, 4, WORDS - 1]), torch.randn(9, 3, SIZE)
    expected = _in_python(model, *given)
    loaded = reloaded(model, given, tmp_path)
    for call in (loaded, loaded, loaded, loaded, model):
        (h, word), (words, *values) = call(*given)
        torch.testing.assert_close(h, expected[0])
        assert torch.equal(word, expected[1][-1]) and torch.equal(words, torch.stack(expected[1]))
        for value in values:
            torch.testing.assert_close(value, torch.stack(expected[2]))


def _in_python(model: Decoder, h: Tensor, word: Tensor, xs: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    words, values = [], []
    for x in xs:
        (h, word), (_, *value) = model.step((h, word), x)
        words.append(word)
        values.extend(value)
    return h, words, values


def test_they_run_on_rows() -> None:
    model = Decoder(LOOK_UPS["index"], LARGEST["max"]).eval().requires_grad_(False)
    explanation = fourfold.explain(model, torch.randn(3, SIZE), torch.tensor([0, 4, 5]), torch.randn(9, 3, SIZE))
    words = str(explanation.scans[0].forward.loop.stages)
    assert "index of rows" in words and "max of rows" in words and "by PyTorch" not in words


class Choice(nn.Module):
    """The largest of each step's rows, which the next step needs: what no step needs is computed behind the loop."""

    def step(self, state: Tensor, x: Tensor) -> Any:
        x = x + 0 * state.unsqueeze(-1)
        values, found = x.max(-1)
        places = x.argmax(1)
        return found + places, (values, found, places)

    def forward(self, state: Tensor, xs: Tensor) -> Any:
        return fourfold.scan(self.step, state, xs)


def test_the_first_of_equals_and_of_nans(tmp_path: Path) -> None:
    xs = torch.randn(40, 5, 6).round()
    xs[torch.rand(xs.shape) < 0.15] = torch.nan
    xs[torch.rand(xs.shape) < 0.1] = torch.inf
    given = torch.zeros(5, dtype=torch.int64), xs
    for call in (reloaded(Choice(), given, tmp_path), Choice()):
        _, (values, found, places) = call(*given)
        expected = xs.max(-1)
        assert torch.equal(values.nan_to_num(9), expected.values.nan_to_num(9))
        assert torch.equal(found, expected.indices) and torch.equal(places, xs.argmax(-1))


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)
@pytest.mark.parametrize("word", [-1, -WORDS, WORDS, -WORDS - 1, 2**40])
def test_places_around_the_table(tmp_path: Path, look_up: Any, word: int) -> None:
    """Only an index counts from the end; others raise torch's error."""

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(WORDS, SIZE))

        def forward(self, h: Tensor, words: Tensor) -> Any:
            return fourfold.scan(lambda h, word: (h + look_up(self.table, word), ()), h, words)

    model = Given().eval().requires_grad_(False)
    words, h = torch.randint(WORDS, (9, 3)), torch.randn(3, SIZE)
    loaded = reloaded(model, (h, words), tmp_path)
    words[6, 1] = word
    try:
        expected = h
        for each in words:
            expected = expected + look_up(model.table, each)
    except (IndexError, RuntimeError):
        with pytest.raises((IndexError, RuntimeError)):
            loaded(h, words)
    else:
        torch.testing.assert_close(loaded(h, words)[0], expected)
