"""The voice encoder of Resemblyzer, saved, against the package's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example
from benchmarks.published.speech import speech
from published import needs


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    needs("resemblyzer")
    path = tmp_path_factory.mktemp("resemblyzer") / "resemblyzer.ff"
    example("resemblyzer").save(str(path))
    return fourfold.load(path)


def encoder() -> Any:
    """The package's VoiceEncoder; what it needs of the package's other modules to read sound is left out."""
    (folder,) = importlib.util.find_spec("resemblyzer").submodule_search_locations
    package, name = ModuleType("resemblyzer"), "resemblyzer.voice_encoder"
    package.__path__ = [folder]
    modules = {"resemblyzer": package, "resemblyzer.audio": ModuleType("resemblyzer.audio")}
    package.audio = modules["resemblyzer.audio"]
    with mock.patch.dict(sys.modules, modules):
        spec = importlib.util.spec_from_file_location(name, Path(folder, "voice_encoder.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.VoiceEncoder("cpu", verbose=False).eval()


def partials(count: int, frames: int) -> Tensor:
    """Of speech, at different places."""
    mels = example("resemblyzer").mel_frames(speech(16000))
    return mels[(torch.arange(frames) + 17 * torch.arange(count).unsqueeze(1)) % len(mels)]


def test_embeddings_of_several_sizes(loaded: Any) -> None:
    package = encoder()
    with torch.no_grad():
        for count, frames in ((1, 160), (8, 160), (1, 1), (1, 400), (3, 77), (8, 160)):
            mels = partials(count, frames)
            expected = package(mels)
            torch.testing.assert_close(loaded(mels), expected, rtol=0, atol=1e-5)
            assert frames < 160 or (expected > 0.01).any(1).all(), "the embeddings say nothing"


def test_a_voice_is_closer_to_itself(loaded: Any) -> None:
    """As the package's embeddings: of a higher pitch, the same sound is another voice."""
    mel_frames, sound = example("resemblyzer").mel_frames, speech(16000)
    sounds = (
        sound[16000:41600],
        sound[12800:38400],
        torch.nn.functional.interpolate(sound[None, None], scale_factor=0.6),
    )
    mels = torch.stack([mel_frames(each.flatten()[-25600:])[:160] for each in sounds])
    got, expected = loaded(mels), encoder()(mels).detach()
    torch.testing.assert_close(got @ got.t(), expected @ expected.t(), rtol=0, atol=1e-5)
    assert got[0] @ got[1] > got[0] @ got[2]


def test_mel_frames() -> None:
    """librosa 0.11's melspectrogram of this sound."""
    mels = example("resemblyzer").mel_frames(speech(16000))
    assert mels.shape == (401, 40)
    expected = torch.tensor(
        [1.0286293e-05, 2.7653648e-04, 1.9879939e-05, 1.5977721e-05]
        + [1.6954441e-04, 4.0584880e-05, 1.5470847e-05, 1.8004641e-05]
    )
    torch.testing.assert_close(mels[150, ::5], expected, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(mels.sum(), torch.tensor(230.79752), rtol=1e-5, atol=0)
