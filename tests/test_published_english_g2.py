"""examples/models/english_g2, against easyocr's own modules and decoding, in float32."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock, patch

import pytest
import torch
from torch import Tensor

import fourfold
from benchmarks.published.case import example
from published import has, large, program

LINES = "Hello, world", "Invoice No. 2024/117", "a", "The quick brown fox jumps over the lazy dog, 1234567890 times."
EXACT = LINES[:2]  # those that the model reads without an error
Read = Callable[[Tensor], tuple[Tensor, list[str]]]


def drawn(text: str, height: int = 64) -> Tensor:
    from benchmarks.published.english_g2 import drawn

    return drawn(text, height)


@pytest.fixture(scope="module")
def package() -> Read:
    """The probabilities and texts of images, by easyocr's model and greedy decoding."""
    folder, models = large("easyocr", "PIL"), large("easyocr_en_models")
    easyocr = ModuleType("easyocr")  # without the imports of its __init__.py
    easyocr.__path__ = [str(folder)]
    stubs = {name: MagicMock() for name in ("cv2", "scipy", "skimage", "torchvision") if not has(name)}
    with patch.dict(sys.modules, stubs | {"easyocr": easyocr}), patch.dict(os.environ):
        vgg_model, config = (importlib.import_module(f"easyocr.{name}") for name in ("model.vgg_model", "config"))
        utils = importlib.import_module("easyocr.utils")
    characters = config.recognition_models["gen2"]["english_g2"]["characters"]
    converter = utils.CTCLabelConverter(characters)
    model = vgg_model.Model(1, 256, 256, num_class=len(converter.character)).eval()
    weights = torch.load(models / "models/english_g2.pth", map_location="cpu", weights_only=True)
    model.load_state_dict({name.removeprefix("module."): weight for name, weight in weights.items()})

    def read(images: Tensor) -> tuple[Tensor, list[str]]:
        with torch.no_grad():
            found = model(images, None).softmax(2)
        indices = found.max(2)[1].view(-1)
        return found, converter.decode_greedy(indices.numpy(), [found.shape[1]] * len(found))

    return read


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, package: Read) -> Path:
    path = tmp_path_factory.mktemp("english") / "english_g2.ff"
    example("english_g2").save(str(path))
    return path


@pytest.mark.parametrize("line", LINES)
def test_a_line(package: Read, saved: Path, line: str) -> None:
    image = drawn(line)
    got, (expected, texts) = fourfold.load(saved)(image), package(image)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    assert example("english_g2").text(got) == texts
    assert line not in EXACT or texts[0].strip() == line


def test_several_lines(package: Read, saved: Path) -> None:
    images = [drawn(line) for line in LINES]
    width = max(image.shape[3] for image in images)
    batch = torch.cat([torch.nn.functional.pad(image, (0, width - image.shape[3]), value=1) for image in images])
    loaded = fourfold.load(saved)
    for lines in (batch, batch[:3, :, :, :401], batch[1:2, :, :, :203], batch[:, :, :, :16]):
        got, (expected, texts) = loaded(lines), package(lines)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
        assert example("english_g2").text(got) == texts


def test_english_g2_as_a_program(package: Read, saved: Path, tmp_path: Path) -> None:
    """main.cpp reads images of several heights."""
    command = [program("english_g2", tmp_path), saved, tmp_path / "line.pgm"]
    for line, height, comment in ((LINES[3], 64, ""), (EXACT[0], 64, "# a comment\n"), (EXACT[1], 50, "")):
        image = drawn(line, height)
        pixels = (127.5 * (image + 1)).round().byte().numpy().tobytes()
        header = f"P5\n{comment}{image.shape[3]} {height}\n255\n".encode()
        (tmp_path / "line.pgm").write_bytes(header + pixels)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        expected = package(image)[1][0] if height == 64 else line
        assert done.stdout.removesuffix("\n").rstrip() == expected.rstrip()
    (tmp_path / "line.pgm").write_bytes(b"P5 100 64 255 short")
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.endswith("line.pgm: expected a binary PGM file of 8 bits\n")
