"""The text side of Kokoro-82M, with random weights: sentences of several lengths."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

import fourfold
from benchmarks.published.case import Case, example, over, ways_of
from benchmarks.targets import PLAIN

PACKAGES: tuple[str, ...] = ()
LENGTHS = (10, 60, 500)
EXPORT = "torch.export"  # of this length only


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    kokoro, path = example("kokoro_text"), folder / "kokoro_text.ff"
    kokoro.save(str(path))
    model, loaded = kokoro.pretrained(), fourfold.load(path)
    generator = torch.Generator().manual_seed(0)
    voice = torch.randn(1, 128, generator=generator)
    for length in LENGTHS[:1] if quick else LENGTHS:
        sentence = torch.randint(kokoro.SYMBOLS, (1, length), generator=generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the LSTMs' own lists of weights
            program = torch.export.export(model, (sentence, voice)).module()
        ours = {EXPORT: program} | ways_of(model, loaded)
        ways = {name: over(lambda x, call=call: call(x, voice)[0], [sentence]) for name, call in ours.items()}
        yield Case(f"Kokoro's text side, {length} phonemes", ways, PLAIN, unit="sentence")
