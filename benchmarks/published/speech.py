"""Synthetic speech: five vowels, whose formants shape the harmonics of a moving pitch, in two words."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FORMANTS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))  # Hz
GAINS, WIDTHS = (1.0, 0.5, 0.25), (80, 100, 140)
WORDS = ((0.8, 2.2), (2.8, 3.5))  # seconds


def speech(rate: int, seconds: int = 4) -> Tensor:
    """float32 (samples), at most 0.3. rate: samples a second."""
    t = torch.arange(rate * seconds, dtype=torch.float64) / rate
    pitch = 110 + 25 * torch.sin(2 * math.pi * 0.9 * t) + 8 * torch.sin(2 * math.pi * 2.3 * t)
    phase = torch.cumsum(pitch / rate, 0)
    vowels = torch.tensor(FORMANTS, dtype=torch.float64)[(4 * t).long() % len(FORMANTS)]
    length = rate // 12 // 2 * 2 + 1  # over which one vowel becomes the next
    padded = torch.nn.functional.pad(vowels.t().unsqueeze(0), (length // 2, length // 2), "replicate")
    formants = torch.nn.functional.avg_pool1d(padded, length, 1).squeeze(0)
    y = torch.zeros_like(t)
    for harmonic in range(1, rate // 2 // 80):
        f = harmonic * pitch
        gain = sum(g / (1 + ((f - own) / w) ** 2) for own, g, w in zip(formants, GAINS, WIDTHS, strict=True))
        y += torch.where(f < rate / 2, gain * torch.sin(2 * math.pi * harmonic * phase), 0)
    syllables = (0.5 - 0.5 * torch.cos(8 * math.pi * t)).clamp(min=0).sqrt()
    y *= syllables * sum((t > begin) & (t < end) for begin, end in WORDS)
    noise = torch.randn(len(t), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (0.3 * y / y.abs().max() + 0.002 * noise).float()
