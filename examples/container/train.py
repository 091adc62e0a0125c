"""Trains a model through torch.compile in a container without a compiler, and writes nothing to disk.

A perceptron predicts the next byte of Python's standard library from the 16 bytes before (Bengio et al. 2003, with
layer norm and GELU). torch.compile(backend="fourfold") fuses its normalisation, activation, loss and Adam's update.
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

BYTES, CONTEXT, SEEN, UNSEEN = 256, 16, 500_000, 16_384


class NextByte(nn.Sequential):
    """Logits (batch, 256) of the bytes behind (batch, 16) others."""

    def __init__(self, embedding_size: int = 24, hidden_size: int = 256):
        super().__init__(
            nn.Embedding(BYTES, embedding_size),
            nn.Flatten(),
            nn.Linear(CONTEXT * embedding_size, hidden_size),
            nn.LayerNorm(hidden_size),
            nn.GELU(),
            nn.Linear(hidden_size, BYTES),
        )


def windows() -> tuple[Tensor, Tensor]:
    """(count, 17) each: 16 bytes and the next one, to train on and unseen."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in modules)[: SEEN + UNSEEN]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return tuple(part.unfold(0, CONTEXT + 1, 1) for part in tokens.split([SEEN, UNSEEN]))


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of training (1000)")
    parser.add_argument("--batch-size", type=int, default=256, help="windows a step (256)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    seen, unseen = windows()
    model = NextByte()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    @torch.compile(backend="fourfold")
    def loss_of(batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(batch[:, :-1]), batch[:, -1])

    update = torch.compile(optimizer.step, backend="fourfold")
    print(f"user id {os.getuid()}, home {os.environ.get('HOME')}, root writable: {os.access('/', os.W_OK)}")
    for step in range(1, options.steps + 1):
        loss = loss_of(seen[torch.randint(len(seen), (options.batch_size,))])
        optimizer.zero_grad()
        loss.backward()
        update()
        if step % max(1, options.steps // 5) == 0:
            print(f"step {step:>5}: {loss.item() / math.log(2):.2f} bits per byte", flush=True)
    with torch.no_grad():
        bits = torch.stack([loss_of(part) for part in unseen.split(2048)[:-1]]).mean().item() / math.log(2)
    print(f"unseen text: {bits:.2f} bits per byte")
    return bits


if __name__ == "__main__":
    main()
