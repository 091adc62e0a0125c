"""The text side of Kokoro-82M in PyTorch, with random weights: python model.py kokoro_text.ff"""

import sys
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fourfold

SYMBOLS = 178  # phonemes and punctuation


class KokoroText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.positions, self.norm = nn.Embedding(SYMBOLS, 128), nn.Embedding(512, 128), nn.LayerNorm(128)
        gelu = partial(F.gelu, approximate="tanh")
        self.mapping, self.albert = nn.Linear(128, 768), nn.TransformerEncoderLayer(768, 12, 2048, 0, gelu, 1e-12, True)
        self.bert_encoder, self.duration = nn.Linear(768, 512), nn.Linear(512, 50)
        self.lstms = nn.ModuleList(nn.LSTM(640, 256, batch_first=True, bidirectional=True) for _ in range(4))
        self.styles = nn.ModuleList(nn.Linear(128, 2 * 512) for _ in range(3))
        self.embedding, self.lstm = nn.Embedding(SYMBOLS, 512), nn.LSTM(512, 256, batch_first=True, bidirectional=True)
        self.convs = nn.ModuleList(nn.Conv1d(512, 512, 5, padding=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(3))

    def forward(self, tokens: Tensor, style: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Phonemes and a voice, (1, n), (1, 128) -> durations, (1, n), and features, (1, n, 640) and (1, n, 512)."""
        x = self.mapping(self.norm(self.symbols(tokens) + self.positions.weight[: tokens.shape[1]]))
        for _ in range(12):  # ALBERT's layers share their weights
            x = self.albert(x)
        s = style.unsqueeze(1).expand(-1, tokens.shape[1], -1)
        x = torch.cat([self.bert_encoder(x), s], -1)
        for lstm, adaptive in zip(self.lstms[:3], self.styles, strict=True):
            gain, bias = adaptive(style).unsqueeze(1).chunk(2, -1)
            x = torch.cat([(1 + gain) * F.layer_norm(lstm(x)[0], (512,)) + bias, s], -1)
        y = self.embedding(tokens)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = F.leaky_relu(norm(conv(y.mT).mT), 0.2)
        return self.duration(self.lstms[3](x)[0]).sigmoid().sum(-1), x, self.lstm(y)[0]


def pretrained() -> KokoroText:
    """The architecture alone: its weights are random, the same in every call."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return KokoroText().eval().requires_grad_(False)


def save(path: str) -> None:
    model, sizes = pretrained(), {1: torch.export.Dim("phonemes", min=1, max=512)}
    fourfold.optimize(model)  # torch.export takes torch's LSTM with any number of steps for one with a constant number
    example = torch.zeros(1, 20, dtype=torch.long), torch.zeros(1, 128)
    fourfold.save(torch.export.export(model, example, dynamic_shapes=(sizes, None)), path)


if __name__ == "__main__":
    save(sys.argv[1])
