"""Silero VAD: a frame of one or several streams, and a whole sound at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.published.case import (
    LOADED,
    ONNX,
    SCRIPT,
    Case,
    Way,
    example,
    exported,
    over,
    package_file,
    session,
    ways_of,
    with_state,
)  # fmt: skip
from benchmarks.published.speech import speech

PACKAGES = ("silero_vad", "onnxruntime")
RATE, SAMPLES, FRAMES = 16000, 512, 600
STREAMS = (1, 8, 64)


class Whole(nn.Module):
    """The probabilities of all frames of a sound, (frames, context + samples) -> (frames)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.lstm = model, nn.LSTM(128, 128)
        with torch.no_grad():
            for name, weight in model.cell.named_parameters():
                getattr(self.lstm, f"{name}_l0").copy_(weight)

    def forward(self, frames: Tensor) -> Tensor:
        h, _ = self.lstm(self.model.features(frames))
        return self.model.out(h.relu().unsqueeze(-1)).sigmoid().flatten()


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    silero, path = example("silero_vad"), folder / "vad.ff"
    silero.save(str(path))
    model = silero.pretrained()
    sound = speech(RATE, seconds=20)[: FRAMES * SAMPLES].view(FRAMES, 1, SAMPLES)
    title = "Silero VAD, a frame"
    for streams in STREAMS[:1] if quick else STREAMS:
        ways = frame_by_frame(model, path, sound.expand(-1, streams, -1))
        words = f"{title} of {streams} streams" if streams > 1 else title
        yield Case(words, ways, ONNX, per=streams, batch_of=title if streams == 64 else "")
    yield Case(f"Silero VAD, {FRAMES} frames at once", at_once(model, sound, folder), ONNX, per=FRAMES)


def frame_by_frame(model: nn.Module, path: Path, sound: Tensor) -> dict[str, Way]:
    """Each call takes the next frame of every stream."""
    streams = sound.shape[1]
    script = torch.jit.load(package_file("silero_vad", "data", "silero_vad.jit"))
    onnx = session(package_file("silero_vad", "data", "silero_vad.onnx"))
    of_onnx: dict[str, Any] = {
        "state": torch.zeros(2, streams, 128).numpy(), "context": torch.zeros(streams, model.context)
    }  # fmt: skip

    def of_runtime(frame: Tensor) -> Tensor:
        x = torch.cat([of_onnx["context"], frame], 1)
        rate = torch.tensor(RATE).numpy()
        found, of_onnx["state"] = onnx.run(None, {"input": x.numpy(), "state": of_onnx["state"], "sr": rate})
        of_onnx["context"] = x[:, -model.context :]
        return torch.from_numpy(found).flatten()

    state = [torch.zeros(streams, size) for size in (model.context, 128, 128)]
    ours = ways_of(model, fourfold.load(path).stream())
    steps = {name: step if name == LOADED else with_state(step, state) for name, step in ours.items()}
    steps = {SCRIPT: lambda frame: script(frame, RATE).flatten(), ONNX: of_runtime, **steps}
    return {name: over(step, sound) for name, step in steps.items()}


def at_once(model: nn.Module, sound: Tensor, folder: Path) -> dict[str, Way]:
    frames = sound.squeeze(1)
    context = torch.cat([torch.zeros(1, model.context), frames[:-1, -model.context :]])
    x = torch.cat([context, frames], 1)
    onnx = session(package_file("silero_vad", "data", "silero_vad_16k_sequence.onnx"))
    zeros = torch.zeros(1, 1, 128).numpy()
    given = {"input": x.numpy(), "h": zeros, "c": zeros}
    whole, path = Whole(model).eval().requires_grad_(False), folder / "whole.ff"
    fourfold.save(exported(whole, (x,)), path)
    steps = {ONNX: lambda x: torch.from_numpy(onnx.run(None, given)[0]).flatten()}
    return {name: over(step, [x]) for name, step in (steps | ways_of(whole, fourfold.load(path))).items()}
