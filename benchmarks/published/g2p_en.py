"""The grapheme-to-phoneme model of g2p-en: one word, and several words at once."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.published.case import Case, example, over, package_file, ways_of

PACKAGES = ("g2p_en",)
COUNTS = (1, 8, 64)
NUMPY, SCAN = "NumPy", "fourfold.scan"
LENGTH, COMPARED = 8, 5  # letters of a word, and phonemes that every word has


def package() -> Any:
    """The package's G2p, whose predict needs neither nltk nor inflect."""
    needed: dict[str, dict[str, Any]] = {
        "nltk": {"pos_tag": None, "data": SimpleNamespace(find=str)},
        "nltk.corpus": {"cmudict": SimpleNamespace(dict=dict)},
        "nltk.tokenize": {"TweetTokenizer": lambda: SimpleNamespace(tokenize=str.split)},
        "inflect": {"engine": dict},
        "package_of_g2p_en": {"__path__": [package_file("g2p_en")]},
    }
    modules = {name: ModuleType(name) for name in needed}
    for name, contents in needed.items():
        vars(modules[name]).update(contents)
    with mock.patch.dict(sys.modules, modules), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own: escapes in strings, and a file that it leaves open
        return importlib.import_module("package_of_g2p_en.g2p").G2p()


class Loop(nn.Module):
    """The model with a loop in Python."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, letters: Tensor) -> tuple[Tensor, Tensor]:
        model = self.model
        ends = torch.arange(letters.shape[0]), (letters == 2).int().argmax(1)
        state, found = (model.enc(model.enc_emb(letters))[0][ends], torch.full_like(letters[:, 0], 2)), []
        for _ in range(20):
            state, result = model.step(state, letters)
            found.append(result)
        phonemes, probabilities = zip(*found, strict=True)
        return torch.stack(phonemes, 1), torch.stack(probabilities, 1)


def plain() -> nn.Module:
    return Loop(example("g2p_en").pretrained()).eval()


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    g2p_en, path = example("g2p_en"), folder / "g2p_en.ff"
    g2p_en.save(str(path))
    model, loaded, of_package = g2p_en.pretrained(), fourfold.load(path), package()
    words = [word for word in of_package.homograph2features if len(word) == LENGTH and word.isalpha()]

    def of_numpy(words: list[str]) -> Tensor:
        found = [of_package.predict(word)[:COMPARED] for word in words]
        return torch.tensor([[g2p_en.PHONEMES.index(name) for name in row] for row in found])

    for count in COUNTS[:1] if quick else COUNTS:
        groups = [(words * 2)[k : k + count] for k in range(0, len(words), count)]
        inputs = [g2p_en.letters(group) for group in groups]
        ours = ways_of(plain(), loaded) | {SCAN: model}
        ways = {NUMPY: over(of_numpy, groups)} | {
            name: over(lambda x, call=call: call(x)[0][:, :COMPARED], inputs) for name, call in ours.items()
        }
        title = "g2p-en, a word" if count == 1 else f"g2p-en, a word of {count}"
        yield Case(title, ways, NUMPY, per=count, unit="word")
