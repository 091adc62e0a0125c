"""The voice encoder of Resemblyzer as a PyTorch module, with the weights of the package.

python model.py resemblyzer.ff
"""

import importlib.util
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fourfold

RATE, WINDOW, HOP, MELS = 16000, 400, 160, 40


def mel_frames(sound: Tensor) -> Tensor:
    """The power in MELS channels every 10 ms, (samples) -> (frames, MELS), as librosa.feature.melspectrogram."""
    step = math.log(6.4) / 27  # Slaney's scale: linear up to 1 kHz, which is mel 15, logarithmic above
    mels = torch.linspace(0, 15 + math.log(RATE / 2000) / step, MELS + 2, dtype=torch.float64)
    edges = torch.where(mels < 15, mels * 200 / 3, 1000 * (step * (mels - 15)).exp()).unsqueeze(1)
    distances = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64) - edges
    rising, falling = distances[:-2] / edges.diff(dim=0)[:-1], -distances[2:] / edges.diff(dim=0)[1:]
    filters = torch.minimum(rising, falling).clamp(min=0) * 2 / (edges[2:] - edges[:-2])  # triangles of area 1
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(sound, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)
    return (filters.float() @ spectrum.abs().square()).t()


class VoiceEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(MELS, 256, 3, batch_first=True), nn.Linear(256, 256)
        self.eval().requires_grad_(False)

    def forward(self, mels: Tensor) -> Tensor:
        """Frames of each sound, (batch, frames, MELS) -> the embedding of its voice, of length 1, (batch, 256)."""
        _, (h, _) = self.lstm(mels)
        x = self.linear(h[-1]).relu()
        return x / x.norm(dim=1, keepdim=True)


def pretrained() -> VoiceEncoder:
    (folder,) = importlib.util.find_spec("resemblyzer").submodule_search_locations
    weights = torch.load(Path(folder, "pretrained.pt"), map_location="cpu", weights_only=True)["model_state"]
    model = VoiceEncoder()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


def save(path: str) -> None:
    model, sizes = pretrained(), {k: torch.export.Dim(n, min=1, max=65536) for k, n in enumerate(("batch", "frames"))}
    fourfold.optimize(model)  # torch.export takes torch's LSTM with any number of steps for one with a constant number
    fourfold.save(torch.export.export(model, (torch.zeros(2, 160, MELS),), dynamic_shapes=(sizes,)), path)


if __name__ == "__main__":
    save(sys.argv[1])
