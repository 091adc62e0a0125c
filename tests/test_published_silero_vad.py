"""examples/models/silero_vad, saved and streamed, against the package's own results."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example
from benchmarks.published.speech import WORDS, speech
from published import needs, program


def frames_of(sound: Tensor, samples: int) -> Tensor:
    return sound[: len(sound) // samples * samples].view(-1, 1, samples)


def probabilities(rate: int) -> Tensor:
    """Those of the package's own model."""
    package = torch.jit.load(needs("silero_vad") / "data/silero_vad.jit")
    with torch.no_grad():
        return torch.cat([package(frame, rate).flatten() for frame in frames_of(speech(rate), rate * 4 // 125)])


@pytest.mark.parametrize("rate", [16000, 8000])
def test_silero_vad(tmp_path: Path, rate: int) -> None:
    needs("silero_vad")
    path = tmp_path / "vad.ff"
    example("silero_vad").save(str(path), rate)
    stream, expected = fourfold.load(path).stream(), probabilities(rate)
    frames = frames_of(speech(rate), rate * 4 // 125)
    got = torch.cat([stream(frame) for frame in frames])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert torch.equal(got > 0.5, expected > 0.5)
    assert (got > 0.5).any() and (got < 0.1).any()


def test_silero_vad_of_several_streams(tmp_path: Path) -> None:
    """They are at different places of the sound, and one begins again."""
    needs("silero_vad")
    path = tmp_path / "vad.ff"
    example("silero_vad").save(str(path))
    frames, expected = frames_of(speech(16000), 512).squeeze(1), probabilities(16000)
    stream, places = fourfold.load(path).stream(), torch.zeros(9, dtype=torch.long)
    for step in range(60):
        if step % 10 == 9:
            restarts = torch.arange(9) == step // 10
            places[restarts] = 0
            stream.reset(restarts)
        torch.testing.assert_close(stream(frames[places]), expected[places], rtol=0, atol=1e-5)
        places += 1


def test_silero_vad_as_a_program(tmp_path: Path) -> None:
    needs("silero_vad")
    example("silero_vad").save(str(tmp_path / "vad.ff"))
    sound = (speech(16000) * 32767).short().numpy().tobytes()
    command = [program("silero_vad", tmp_path), tmp_path / "vad.ff"]
    found = subprocess.run(command, input=sound, capture_output=True, check=True)
    lines = [[float(word) for word in line.split(" to ")] for line in found.stdout.decode().splitlines()]
    assert len(lines) == len(WORDS)
    for got, expected in zip(lines, WORDS, strict=True):
        assert got == pytest.approx(expected, abs=0.15)
