"""The voice encoder of Resemblyzer: partials of 160 frames, one or several at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import fourfold
from benchmarks.published.case import Case, example, over, ways_of
from benchmarks.published.speech import speech
from benchmarks.targets import PLAIN

PACKAGES = ("resemblyzer",)
FRAMES, PARTIALS = 160, (1, 8)
INT8 = "dynamic int8"
TITLE = f"Resemblyzer, {FRAMES} frames"


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    resemblyzer, path = example("resemblyzer"), folder / "resemblyzer.ff"
    resemblyzer.save(str(path))
    model, loaded = resemblyzer.pretrained(), fourfold.load(path)
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.LSTM, nn.Linear})
    partials = resemblyzer.mel_frames(speech(resemblyzer.RATE)).unfold(0, FRAMES, 20).mT.contiguous()
    for count in PARTIALS[:1] if quick else PARTIALS:
        inputs = partials[: len(partials) // count * count].view(-1, count, FRAMES, resemblyzer.MELS)
        ways = {name: over(way, inputs) for name, way in ({INT8: quantized} | ways_of(model, loaded)).items()}
        title = TITLE if count == 1 else f"{TITLE} of {count} sounds"
        yield Case(title, ways, PLAIN, per=count, unit="sound", approximate=INT8)
