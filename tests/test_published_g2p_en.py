"""The grapheme-to-phoneme model of g2p-en, saved, against the package's own code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example
from benchmarks.published.g2p_en import Loop, package
from published import needs

END = 3  # </s> among the phonemes


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    needs("g2p_en")
    path = tmp_path_factory.mktemp("g2p_en") / "g2p_en.ff"
    example("g2p_en").save(str(path))
    return fourfold.load(path)


def words() -> list[str]:
    """Of the package's homographs, and such as are in no dictionary."""
    homographs = [word for word in package().homograph2features if word]
    invented = ["a", "activationist", "don't", "naïve", "z", "pneumonoultramicroscopicsilicovolcanoconiosis", "e-mail"]
    pairs = zip(homographs[:-7], homographs[7:], strict=True)
    return homographs + invented + [a[: len(a) // 2] + b[len(b) // 2 :] for a, b in pairs]


def test_phonemes_of_hundreds_of_words(loaded: Any) -> None:
    """In batches of different sizes, padded."""
    g2p_en, of_package, all_words = example("g2p_en"), package(), words()
    assert of_package.phonemes == g2p_en.PHONEMES and of_package.graphemes == g2p_en.LETTERS
    assert len(all_words) > 700
    begin, count = 0, 1
    while group := all_words[begin : begin + count]:
        phonemes, _ = loaded(g2p_en.letters(group))
        for word, row in zip(group, phonemes.tolist(), strict=True):
            assert [g2p_en.PHONEMES[k] for k in until_end(row)] == of_package.predict(word), word
        begin, count = begin + count, min(2 * count, 100)


def test_probabilities(loaded: Any) -> None:
    """Those of the package's logits, until </s>."""
    g2p_en, of_package = example("g2p_en"), package()
    states: list[Any] = []
    cell = of_package.grucell
    of_package.grucell = lambda *given: states.append(cell(*given)) or states[-1]
    for word in words()[::20]:
        states.clear()
        of_package.predict(word)
        decoded = np.concatenate(states[len(word) + 1 :])
        logits = torch.from_numpy(decoded @ of_package.fc_w.T + of_package.fc_b)
        expected = logits.softmax(1).max(1).values
        for group in ([word], [word, "longer-than-others"]):
            _, probabilities = loaded(g2p_en.letters(group))
            torch.testing.assert_close(probabilities[0, : len(expected)], expected, rtol=0, atol=1e-5)


def test_a_loop_in_python_computes_the_same(loaded: Any) -> None:
    g2p_en = example("g2p_en")
    letters = g2p_en.letters(["refuse", "activationist", "a"])
    phonemes, probabilities = Loop(g2p_en.pretrained())(letters)
    ours: tuple[Tensor, Tensor] = loaded(letters)
    assert torch.equal(ours[0], phonemes)
    torch.testing.assert_close(ours[1], probabilities, rtol=0, atol=1e-5)


def until_end(row: list[int]) -> list[int]:
    return row[: row.index(END)] if END in row else row
