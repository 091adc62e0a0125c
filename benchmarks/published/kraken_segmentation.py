"""blla, kraken's segmentation of pages: a small page and a whole one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import Case, example, over, ways_of
from benchmarks.targets import PLAIN

PACKAGES = ("kraken", "coremltools", "google", "PIL")
HEIGHTS = (600, 1800)  # pixels; kraken scales pages to 1800
TEXT = "The quick brown fox jumps over the lazy dog."


def drawn(height: int, lines: int = 12) -> Tensor:
    """A page of lines of text in Pillow's own font: inverted colours of 0 to 1, (1, 3, height, width)."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    step, width = height // (lines + 2), height * 5 // 7
    image = Image.new("RGB", (width, height), "white")
    font = ImageFont.load_default(0.5 * step)
    for line in range(lines):
        ImageDraw.Draw(image).text((width // 10, step * (line + 1)), TEXT, fill="black", font=font)
    return 1 - torch.from_numpy(numpy.array(image)).permute(2, 0, 1).unsqueeze(0) / 255


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    kraken, path = example("kraken_segmentation"), folder / "blla.ff"
    kraken.save(str(path))
    for height in HEIGHTS[:1] if quick else HEIGHTS:
        x, ways = drawn(height), ways_of(kraken.pretrained(), fourfold.load(path))
        title = f"blla, a page of {x.shape[3]} by {height} pixels"
        yield Case(title, {name: over(way, [x]) for name, way in ways.items()}, PLAIN, unit="page")
