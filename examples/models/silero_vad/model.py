"""Silero VAD as a PyTorch module, with the weights of the package silero-vad.

python model.py silero_vad.ff [8000]
"""

import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fourfold


class SileroVAD(nn.Module):
    """The probability of speech in a frame of 32 ms. rate: 16000 or 8000 samples a second."""

    def __init__(self, rate: int = 16000):
        super().__init__()
        self.samples, self.context, self.window = rate * 4 // 125, rate // 250, rate * 2 // 125
        self.stft = nn.Conv1d(1, self.window + 2, self.window, stride=self.window // 2, bias=False)
        sizes = ((self.window // 2 + 1, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        self.encoder = nn.ModuleList(nn.Conv1d(a, b, 3, stride=stride, padding=1) for a, b, stride in sizes)
        self.cell, self.out = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)
        self.eval().requires_grad_(False)

    def features(self, x: Tensor) -> Tensor:
        """Frames behind their context, (frames, context + samples) -> (frames, 128)."""
        x = self.stft(nn.functional.pad(x.unsqueeze(1), (0, self.context), "reflect"))
        real, imaginary = x.chunk(2, 1)
        x = torch.sqrt(real**2 + imaginary**2)
        for layer in self.encoder:
            x = layer(x).relu()
        return x.squeeze(-1)

    def forward(self, frame: Tensor, context: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A frame of each stream, (streams, samples), and the state -> the probabilities and the next state."""
        x = torch.cat([context, frame], 1)
        h, c = self.cell(self.features(x), (h, c))
        return self.out(h.relu().unsqueeze(-1)).sigmoid().flatten(), x[:, -self.context :], h, c


def pretrained(rate: int = 16000) -> SileroVAD:
    (folder,) = importlib.util.find_spec("silero_vad").submodule_search_locations
    package = torch.jit.load(Path(folder, "data", "silero_vad.jit"))
    weights = (package._model if rate == 16000 else package._model_8k).state_dict()
    model = SileroVAD(rate)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model


def save(path: str, rate: int = 16000) -> None:
    model, streams = pretrained(rate), torch.export.Dim("streams", min=1, max=4096)
    arguments = tuple(torch.zeros(2, size) for size in (model.samples, model.context, 128, 128))
    program = torch.export.export(model, arguments, dynamic_shapes=({0: streams},) * 4)
    fourfold.save(program, path, state={"context": 1, "h": 2, "c": 3})


if __name__ == "__main__":
    save(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 16000)
