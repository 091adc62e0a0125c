"""A step of a causal transformer with rings of keys and values, of random weights: python model.py transformer.ff"""

import sys

import torch
from torch import Tensor, nn

import fourfold

LAYERS, WIDTH, HEADS, SIZE, HIDDEN, RING = 6, 512, 8, 64, 1536, 250


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        sizes = (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * HIDDEN), (HIDDEN, WIDTH)
        self.heads, self.out, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in sizes)

    def attention(self, x: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qk, v = self.heads(self.norm(x)).unflatten(-1, (3, HEADS, SIZE)).split((2, 1), -3)
        (a, b), cos, sin = qk.chunk(2, -1), angle.cos(), angle.sin()
        q, k = torch.cat([a * cos - b * sin, a * sin + b * cos], -1).unbind(-3)
        return q, k, v.squeeze(-3)  # (..., heads, size)

    def forward(self, x: Tensor, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        y = nn.functional.scaled_dot_product_attention(q, keys, values, mask)  # (..., heads, positions, size)
        x = x + self.out(y.transpose(-2, -3).reshape(x.shape))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class CausalTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.RMSNorm(WIDTH, eps=1e-5)
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, SIZE, 2) / SIZE))

    def forward(self, x: Tensor, place: Tensor, keys: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
        """(streams, width), (streams), and each layer's rings (streams, heads, ring, size), which change in place."""
        angle, mask = place.view(-1, 1, 1, 1) * self.frequencies, torch.arange(RING) <= place.view(-1, 1, 1, 1)
        at = torch.arange(x.shape[0]), slice(None), place % RING
        for layer, k, v in zip(self.layers, keys, values, strict=True):
            q, k[at], v[at] = layer.attention(x, angle)
            x = layer(x, q.unsqueeze(-2), k, v, mask)
        return self.norm(x), place + 1


def save(path: str) -> None:
    streams = {0: torch.export.Dim("streams", min=1, max=64)}
    rings = ([torch.zeros(2, HEADS, RING, SIZE) for _ in range(LAYERS)] for _ in range(2))
    arguments = torch.zeros(2, WIDTH), torch.zeros(2, dtype=torch.long), *rings
    shapes = streams, streams, *2 * ([streams] * LAYERS,)
    program = torch.export.export(CausalTransformer(), arguments, dynamic_shapes=shapes)
    fourfold.save(program, path, state={"place": 1, "keys": None, "values": None})


if __name__ == "__main__":
    save(sys.argv[1])
