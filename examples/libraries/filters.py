"""Recursive audio filters with gradients: torchaudio's lfilter, torchlpc's filters that vary, and a compressor.

python examples/libraries/filters.py                          # finds a filter from a sound that went through it
python examples/libraries/filters.py --picture filtered.png
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold


def all_pole(x: Tensor, a: Tensor) -> Tensor:
    """As torchlpc.sample_wise_lpc: y[t] = x[t] - a[t, 0] y[t-1] - a[t, 1] y[t-2] - ...

    x: (batch, time). a: (batch, time, order)."""

    def step(past: list[Tensor], now: tuple[Tensor, ...]) -> tuple[list[Tensor], Tensor]:
        y, *weights = now
        for weight, before in zip(weights, past, strict=True):
            y = y - weight * before
        return [y, *past[:-1]], y

    start = [torch.zeros_like(x[:, 0]) for _ in range(a.shape[-1])]
    return fourfold.scan(step, start, (x, *a.unbind(-1)), dim=-1)[1]


def lfilter(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """As torchaudio.functional.lfilter without clamp: the transposed direct form II. x: (..., time). a, b: (order + 1),
    which may require gradients."""
    (_, *a), b = (a / a[0]).unbind(), (b / a[0]).unbind()

    def step(state: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
        y = b[0] * x + state[0]
        return [bk * x - ak * y + later for ak, bk, later in zip(a, b[1:], [*state[1:], 0.0], strict=True)], y

    return fourfold.scan(step, [torch.zeros_like(x[..., 0]) for _ in a], x, dim=-1)[1]


def lowpass(frequency: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of a biquad; Bristow-Johnson, Cookbook formulae for audio EQ biquad filter coefficients. frequency: in
    units of the sampling rate."""
    angle = 2 * math.pi * frequency
    cos, alpha = angle.cos(), angle.sin() / (2 * q)
    return torch.stack((1 + alpha, -2 * cos, 1 - alpha)), torch.stack(((1 - cos) / 2, 1 - cos, (1 - cos) / 2))


def compressor(x: Tensor, threshold: Tensor, ratio: Tensor, attack: Tensor, release: Tensor) -> Tensor:
    """Giannoulis, Massberg and Reiss 2012, Digital dynamic range compressor design, equations 4 and 16. x:
    (batch, time). threshold: in decibels. attack, release: the smoothing factors of one step."""
    level = 20 * x.abs().clamp_min(1e-5).log10()
    wanted = (level - threshold).clamp_min(0) * (1 - 1 / ratio)

    def step(gain: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        smoothing = torch.where(wanted > gain, attack, release)
        gain = smoothing * gain + (1 - smoothing) * wanted
        return gain, gain

    reduction = fourfold.scan(step, torch.zeros_like(x[..., 0]), wanted, dim=-1)[1]
    return x * 10 ** (-reduction / 20)


# The filters end here. What follows uses them.
RATE = 16_000


def sound(seconds: float) -> Tensor:
    """(1, time): a falling saw tooth and some noise, a note every quarter second."""
    t = torch.arange(round(seconds * RATE)) / RATE
    saw = 2 * torch.remainder(220 * 2 ** (-(t % 1)) * t, 1) - 1
    return ((0.4 * saw + 0.1 * torch.randn_like(t)) * torch.exp(-6 * (t % 0.25))).unsqueeze(0)


class Found(NamedTuple):
    hertz: float
    q: float
    losses: list[float]
    sounds: dict[str, Tensor]


def fit(x: Tensor, wanted: Tensor, steps: int) -> Found:
    """The cutoff and quality of the lowpass between two sounds, by gradient descent."""
    frequency, q = (torch.tensor(math.log(v), requires_grad=True) for v in (0.2, 0.7))
    optimizer = torch.optim.Adam([frequency, q], lr=0.05)
    losses = []
    for _ in range(steps):
        y = lfilter(x, *lowpass(frequency.exp(), q.exp()))
        loss = F.mse_loss(y, wanted) / wanted.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Found(RATE * frequency.exp().item(), q.exp().item(), losses, {"sound": x, "filtered": y.detach()})


def draw(sounds: dict[str, Tensor], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure((8, 2.6), layout="constrained")
    for axes, (name, x) in zip(figure.subplots(1, len(sounds), sharey=True), sounds.items(), strict=True):
        axes.specgram(x[0].numpy(), NFFT=512, Fs=RATE, noverlap=384, vmin=-130, vmax=-40)
        axes.set(title=name, xlabel="s")
    figure.axes[0].set_ylabel("Hz")
    figure.savefig(path, dpi=80)


def main(arguments: Sequence[str] | None = None) -> Found:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the fit (200)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of sound (2)")
    parser.add_argument("--picture", type=Path, help="write spectrograms there; needs matplotlib")
    options = parser.parse_args(arguments)
    x = sound(options.seconds)
    with torch.no_grad():
        wanted = lfilter(x, *lowpass(torch.tensor(1200 / RATE), torch.tensor(4.0)))
    begin = thread_time()
    found = fit(x, wanted, options.steps)
    took = 1e3 * (thread_time() - begin) / options.steps
    print(f"cutoff {found.hertz:.0f} Hz, quality {found.q:.2f}; the filter had 1200 Hz and 4.00")
    print(f"{took:.1f} ms a step, forward and backward, for {options.seconds:g} s of sound")
    settings = (-30.0, 4.0, math.exp(-1 / (0.002 * RATE)), math.exp(-1 / (0.05 * RATE)))
    found.sounds["compressed"] = compressor(found.sounds["filtered"], *map(torch.tensor, settings))
    if options.picture:
        draw(found.sounds, options.picture)
    return found


if __name__ == "__main__":
    main()
