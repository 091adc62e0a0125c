"""The models that the suite ``files`` saves: four models with random weights, with example inputs for export and for
calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import fourfold
from fourfold.demo.training import CharacterModel


class TransformerLayer(nn.Module):
    """Pre-norm attention and perceptron, as in ViT and GPT-2."""

    def __init__(self, width: int, heads: int, gelu: str):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """cache: keys and values, (2, batch, heads, tokens, head dimension)."""
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        if cache is not None:
            cache = torch.cat([cache, torch.stack([k, v])], -2)
            k, v = cache.unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x)), approximate=self.gelu)), cache


class ViT(nn.Module):
    """ViT-B/16: 224 x 224 pixels, 86 million parameters."""

    def __init__(self, width: int = 768, layers: int = 12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 197, width))
        self.layers = nn.ModuleList(TransformerLayer(width, width // 64, "none") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(self.norm(x[:, 0]))


class GPT2(nn.Module):
    """GPT-2 with 124 million parameters: computes one more token from a cache of the earlier ones."""

    def __init__(self, width: int = 768, layers: int = 12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(TransformerLayer(width, width // 64, "tanh") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, token: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """cache: (layers, 2, batch, heads, tokens, head dimension)."""
        x = self.tokens(token) + self.positions(torch.arange(cache.shape[-2], cache.shape[-2] + 1))
        caches = []
        for layer, own in zip(self.layers, cache.unbind(0), strict=True):
            x, own = layer(x, own)
            caches.append(own)
        return self.head(self.norm(x)), torch.stack(caches)


class Stream(nn.Module):
    """A two-layer LSTM that takes a few steps per call; the caller keeps its state."""

    def __init__(self, size: int = 128):
        super().__init__()
        self.lstm, self.out = fourfold.nn.LSTM(40, size, num_layers=2), nn.Linear(size, 10)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(x, state)
        return self.out(y), state


@dataclass(frozen=True)
class FileModel:
    name: str
    title: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    dynamic: Any


def demo() -> nn.Module:
    return CharacterModel(96, 32, 128, fourfold.nn.LLTM(32, 128))


def states(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(shape), torch.zeros(shape)


MODELS = {
    model.name: model
    for model in (
        FileModel(
            "ViT-B/16",
            "ViT-B/16, one image",
            ViT,
            lambda: (torch.randn(1, 3, 224, 224),),
            ({0: Dim("batch", min=1, max=64)},),
        ),
        FileModel(
            "GPT-2",
            "GPT-2, one token after 64",
            GPT2,
            lambda: (torch.tensor([[5]]), torch.randn(12, 2, 1, 12, 64, 64)),
            (None, {4: Dim("past", min=1, max=1022)}),
        ),
        FileModel(
            "LSTM",
            "LSTM stream, 16 steps",
            Stream,
            lambda: (torch.randn(16, 1, 40), states(2, 1, 128)),
            ({0: Dim("steps", min=1, max=4096)}, (None, None)),
        ),
        FileModel(
            "demo",
            "the demo's model, 16 characters",
            demo,
            lambda: (torch.randint(96, (16, 1)), states(1, 1, 128)),
            ({0: Dim("steps", min=1, max=4096)}, (None, None)),
        ),
    )
}


def exported(name: str) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    model = MODELS[name].make().eval()
    args = MODELS[name].inputs()
    batch = 2 if name.startswith("ViT") else None  # torch.export specialises a size of 1
    if batch:
        args = (args[0].repeat(batch, 1, 1, 1),)
    with torch.no_grad():
        return torch.export.export(model, args, dynamic_shapes=MODELS[name].dynamic)
