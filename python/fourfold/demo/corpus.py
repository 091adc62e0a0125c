"""The demo's text: sources of Python's standard library, which every machine that runs this has."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fourfold.cli.usage import UsageError

LENGTH = 1_000_000


@dataclass(frozen=True)
class Corpus:
    """A text as indices into its own alphabet, the bytes that occur in it."""

    tokens: Tensor  # (length,), int64
    alphabet: bytes

    def encode(self, text: bytes) -> Tensor:
        return torch.tensor([self.alphabet.index(byte) for byte in text])

    def decode(self, tokens: list[int]) -> str:
        return bytes(self.alphabet[token] for token in tokens).decode("utf-8", errors="replace")

    def batch(self, batch_size: int, sequence_length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random pieces (sequence_length, batch_size) of the text, and the same pieces one character further on."""
        starts = torch.randint(len(self.tokens) - sequence_length, (batch_size,), generator=generator)
        pieces = self.tokens[starts + torch.arange(sequence_length + 1).unsqueeze(1)]
        return pieces[:-1], pieces[1:]


def read(length: int = LENGTH, directory: Path | None = None) -> Corpus:
    """The first characters of the top-level modules in order of their file names: the same on every run of one Python.

    Raises UsageError if the directory (by default the standard library's) holds less than that.
    """
    directory = directory or Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for path in sorted(directory.glob("*.py"), key=lambda path: path.name):
        text += path.read_bytes()
        if len(text) >= length:
            break
    if len(text) < length:
        raise UsageError(f"demo: expected {length} characters of Python source in {directory}, but found {len(text)}")
    alphabet, tokens = torch.frombuffer(bytearray(text[:length]), dtype=torch.uint8).unique(return_inverse=True)
    return Corpus(tokens, bytes(alphabet.tolist()))
