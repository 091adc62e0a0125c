"""The text side of Kokoro-82M, saved, against the same model in eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("kokoro") / "kokoro_text.ff"
    example("kokoro_text").save(str(path))
    return fourfold.load(path)


@pytest.mark.parametrize("length", [1, 10, 61])
def test_kokoro_text(loaded: Any, length: int) -> None:
    model, (sentence, voice) = example("kokoro_text").pretrained(), inputs(length)
    durations, _, for_decoder = model(sentence, voice)
    # After 12 layers and 3 LSTMs eager mode is 1.4e-5 from float64 itself, as far as the loaded model.
    exact = copy.deepcopy(model).double()(sentence, voice.double())[1]
    for _ in range(3):  # large matrices are packed in the third call
        got = loaded(sentence, voice)
        torch.testing.assert_close(got[0], durations, rtol=0, atol=1e-5)
        assert (got[1] - exact).abs().max() < 1e-5 * exact.abs().max()
        torch.testing.assert_close(got[2], for_decoder, rtol=0, atol=1e-5)
        assert torch.equal(got[0].round(), durations.round())
    other = loaded(sentence, -voice)
    assert (other[0] - durations).abs().max() > 1e-3 and torch.equal(other[2], got[2]), "the voice changes durations"


def inputs(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(178, (1, length), generator=generator), torch.randn(1, 128, generator=generator)
