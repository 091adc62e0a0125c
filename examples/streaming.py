"""Streaming inference: a model reads a text piece by piece and carries its state from call to call.

    python examples/streaming.py
    python examples/streaming.py --chunk 1 --model /tmp/characters.pt

An LSTM learns to predict the next byte of Python's standard library, or is loaded from --model, where an earlier run
saved it. It then reads unseen text chunk by chunk. The script compares its predictions with those of one call for the
whole text, and the time that a chunk takes with that of torch.nn.LSTM with the same weights.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

import fourfold

BYTES = 256
SEEN, UNSEEN = 500_000, 16_384  # bytes to train on, and those behind them


class NextByte(nn.Module):
    """Logits (time, batch, 256) of each next byte, from bytes (time, batch). lstm: nn.LSTM's or fourfold.nn.LSTM."""

    def __init__(self, lstm: type[nn.LSTM], hidden_size: int):
        super().__init__()
        self.embedding = nn.Embedding(BYTES, 32)
        self.lstm = lstm(32, hidden_size)
        self.head = nn.Linear(hidden_size, BYTES)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple]:
        output, state = self.lstm(self.embedding(tokens), state)
        return self.head(output), state


@dataclass(frozen=True)
class Result:
    bits: float  # per byte of the unseen text
    bits_of_frequencies: float  # of a model that knows only how often each byte occurs
    difference: float  # the largest, between logits of chunks and of one call
    difference_from_torch: float  # between one call's and torch.nn.LSTM's
    milliseconds: dict[str, float]  # the median of a chunk


def text() -> tuple[Tensor, Tensor]:
    """The first modules of the standard library, in order of their names: bytes to train on, and unseen ones."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    joined = b"".join(path.read_bytes() for path in modules)[: SEEN + UNSEEN]
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).long().split([SEEN, UNSEEN])


def train(model: nn.Module, tokens: Tensor, steps: int, batch_size: int = 32, length: int = 64) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(1, steps + 1):
        starts = torch.randint(len(tokens) - length, (batch_size,))
        pieces = tokens[starts + torch.arange(length + 1)[:, None]]  # (length + 1, batch_size)
        logits, _ = model(pieces[:-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), pieces[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 5) == 0:
            print(f"step {step:>4}: {loss.item() / math.log(2):.2f} bits per byte")


def streamed(model: nn.Module, tokens: Tensor, chunk: int) -> Tensor:
    """The logits of all tokens (time, 1). Nothing but the state passes from one call to the next."""
    logits, state = [], None
    for piece in tokens.split(chunk):
        of_piece, state = model(piece, state)
        logits.append(of_piece)
    return torch.cat(logits)


def latencies(models: dict[str, nn.Module], tokens: Tensor, chunk: int) -> dict[str, float]:
    """The median time of a chunk in milliseconds. The models take turns, so that a busy machine disturbs all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in models}
    states = dict.fromkeys(models)
    for piece in tokens.split(chunk):
        for name, model in models.items():
            begin = perf_counter()
            _, states[name] = model(piece, states[name])
            seconds[name].append(perf_counter() - begin)
    return {name: 1e3 * statistics.median(times) for name, times in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunk", type=int, default=16, help="bytes a call (16)")
    parser.add_argument("--hidden-size", type=int, default=128, help="units of the LSTM (128)")
    parser.add_argument("--steps", type=int, default=400, help="steps of training (400)")
    parser.add_argument("--model", type=Path, help="load the parameters from this file, or save them there")
    parser.add_argument("--quick", action="store_true", help="a small model and little training, for a test")
    options = parser.parse_args(arguments)
    if options.quick:
        options.hidden_size, options.steps = 64, 100
    torch.manual_seed(0)
    seen, unseen = text()
    model = NextByte(fourfold.nn.LSTM, options.hidden_size)
    if options.model is not None and options.model.exists():
        model.load_state_dict(torch.load(options.model))
    else:
        train(model, seen, options.steps)
        if options.model is not None:
            torch.save(model.state_dict(), options.model)

    plain = NextByte(nn.LSTM, options.hidden_size)
    plain.load_state_dict(model.state_dict())  # fourfold.nn.LSTM has torch.nn.LSTM's parameters
    frozen = fourfold.freeze(copy.deepcopy(model))  # its weights don't change: pack them once
    tokens, targets = unseen[:-1, None], unseen[1:]
    with torch.inference_mode():
        whole, chunks = model(tokens)[0], streamed(model, tokens, options.chunk)
        difference, from_torch = ((whole - other).abs().max().item() for other in (chunks, plain(tokens)[0]))
        bits = nn.functional.cross_entropy(chunks[:, 0], targets).item() / math.log(2)
        contenders = {"torch.nn.LSTM": plain, "fourfold.nn.LSTM": model, "fourfold.nn.LSTM, frozen": frozen}
        times = latencies(contenders, tokens, options.chunk)
    shares = (seen.bincount(minlength=BYTES) + 1) / (len(seen) + BYTES)
    result = Result(bits, -shares[targets].log2().mean().item(), difference, from_torch, times)

    print(f"unseen text: {result.bits:.2f} bits per byte; by the bytes' frequencies {result.bits_of_frequencies:.2f}")
    print(f"largest difference of logits: chunks of {options.chunk} and one call {difference:.1e}; ", end="")
    print(f"one call and torch.nn.LSTM {from_torch:.1e}")
    for name, time in times.items():
        print(f"{name:26}{time:8.3f} ms a chunk of {options.chunk}{times['torch.nn.LSTM'] / time:8.2f}×")
    return result


if __name__ == "__main__":
    main()
