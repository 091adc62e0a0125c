"""english_g2, a text recogniser: a short line, a long line, and several lines at once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import SCRIPT, Case, Way, example, over, ways_of

PACKAGES = ("easyocr_en_models", "PIL")
SHORT, LONG = "Hello, world", "The quick brown fox jumps over the lazy dog, 1234567890 times."
LINES = 8
INT8 = "dynamic int8"  # easyocr's own way on CPUs


def drawn(text: str, height: int = 64) -> Tensor:
    """A line of text in Pillow's own font: pixels of -1 (black) to 1, (1, 1, height, width)."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(0.6 * height)
    image = Image.new("L", (int(font.getlength(text)) + height // 2, height), 255)
    ImageDraw.Draw(image).text((height // 4, height // 8), text, fill=0, font=font)
    return torch.from_numpy(numpy.array(image)).view(1, 1, *image.size[::-1]) / 127.5 - 1


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    english, path = example("english_g2"), folder / "english_g2.ff"
    english.save(str(path))
    short, long = drawn(SHORT), drawn(LONG)
    title = "english_g2, a short line"
    yield Case(title, ways(english, path, short), INT8, unit="line")
    if quick:
        return
    yield Case("english_g2, a long line", ways(english, path, long), INT8, unit="line")
    lines = short.repeat(LINES, 1, 1, 1)
    yield Case(f"{title} of {LINES}", ways(english, path, lines), INT8, LINES, unit="line")


def ways(english: ModuleType, path: Path, x: Tensor) -> dict[str, Way]:
    """Their results are the texts, as codes of characters: probabilities of int8 differ."""
    model = english.pretrained()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates both
        steps = {
            INT8: torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), dtype=torch.qint8),
            SCRIPT: torch.jit.trace(model, x),
        }

    def read(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.tensor([ord(character) for line in english.text(step(x)) for character in line])

    return {name: over(read(step), [x]) for name, step in (steps | ways_of(model, fourfold.load(path))).items()}
