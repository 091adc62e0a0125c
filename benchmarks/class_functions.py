"""Random functions by class, as ``classes`` measures them: written with torch's operators, as users write them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Call = Callable[..., "Tensor | tuple[Tensor, ...]"]
Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Drawn:
    """arguments(elements, generator): about as many elements in the largest tensor. The first ``gradients`` of them
    require a gradient."""

    words: str
    call: Call
    arguments: Callable[[int, Generator], tuple[Tensor, ...]]
    gradients: int


LIGHT: dict[str, Step] = {
    "relu": torch.relu,
    "abs": torch.abs,
    "square": torch.square,
    "affine": lambda y: 0.5 * y + 0.25,
    "clamp": lambda y: y.clamp(-1.5, 1.5),
    "leaky_relu": lambda y: F.leaky_relu(y, 0.1),
    "divide": lambda y: y / (1 + y * y),
}
HEAVY: dict[str, Step] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "exp": lambda y: torch.exp(-y * y),
    "log": lambda y: torch.log(1 + y * y),
    "sqrt": lambda y: torch.sqrt(1 + y * y),
}
OF_ROWS: dict[str, Step] = {
    "layer_norm": lambda y: F.layer_norm(y, y.shape[-1:]),
    "softmax": lambda y: torch.softmax(y, -1),
    "log_softmax": lambda y: torch.log_softmax(y, -1),
    "normalize": lambda y: F.normalize(y, dim=-1),
    "centred": lambda y: y - y.mean(-1, keepdim=True),
    "rms": lambda y: y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6),
    "of largest": lambda y: y / (1 + y.abs().amax(-1, keepdim=True)),
}
ENDS: dict[str, Step] = {
    "sum": lambda y: y.sum(-1),
    "logsumexp": lambda y: torch.logsumexp(y, -1),
    "mean square": lambda y: y.square().mean(-1),
    "norm": lambda y: torch.sqrt(y.square().sum(-1) + 1e-6),
}


def chain(y: Tensor, steps: Sequence[Step]) -> Tensor:
    for step in steps:
        y = step(y)
    return y


def some(draw: random.Random, table: dict[str, Step], count: int) -> list[tuple[str, Step]]:
    return [(name, table[name]) for name in draw.choices(list(table), k=count)]


def words_of(steps: Sequence[tuple[str, Step]]) -> str:
    return " ".join(name for name, _ in steps)


# Rows.


def rows(draw: random.Random, columns: Sequence[int]) -> Drawn:
    """One to three reductions with light or heavy steps between, on rows of one or two tensors with, perhaps, a weight
    for each column or row; of two leading axes, perhaps."""
    width, reductions = draw.choice(columns), draw.randint(1, 3)
    steps: list[tuple[str, Step]] = []
    for _ in range(reductions):
        steps += some(draw, draw.choice((LIGHT, HEAVY)), draw.randint(0, 2)) + some(draw, OF_ROWS, 1)
    steps += some(draw, draw.choice((LIGHT, HEAVY)), draw.randint(0, 1))
    if draw.random() < 0.3:
        steps[-1:] = some(draw, ENDS, 1)
    made = [step for _, step in steps]
    form, short = draw.choice(("x", "x w", "x w b", "x y", "x r")), draw.choice((0, 0, 0, 3, 12))

    def call(x: Tensor, *others: Tensor) -> Tensor:
        if form == "x w b":
            return chain(x * others[0] + others[1], made)
        return chain(x * others[0] if others else x, made)

    def arguments(elements: int, generator: Generator) -> tuple[Tensor, ...]:
        count = max(1, elements // width)
        leading = (max(1, count // short), short) if short else (count,)
        shapes = {"w": (width,), "b": (width,), "y": (*leading, width), "r": (*leading[1:], 1) if short else (count, 1)}
        of_x = torch.randn(*leading, width, generator=generator)
        return (of_x, *(torch.randn(shapes[name], generator=generator) for name in form.split()[1:]))

    shape = f"(n, {short}, {width})" if short else f"(n, {width})"
    return Drawn(f"{form}: {words_of(steps)} of {shape}", call, arguments, len(form.split()))


# Images and permutes.


def images(draw: random.Random) -> Drawn:
    kind = draw.choice(("to planes", "to bytes", "gray", "permute", "transposed sum", "to channels last"))
    side = draw.choice((24, 32, 56, 100))
    channels = draw.choice((3, 3, 4)) if kind in ("to planes", "to bytes", "gray") else draw.choice((8, 16, 24, 64))
    steps = some(draw, LIGHT, draw.randint(0, 2))
    made = [step for _, step in steps]

    def of_channels(like: Tensor, last: bool) -> Tensor:
        numbers = torch.linspace(0.3, 0.6, channels, dtype=like.dtype)
        return numbers if last else numbers[:, None, None]

    def call(x: Tensor) -> Tensor:
        if kind == "to planes":
            planes = x.permute(0, 3, 1, 2).float() / 255
            return chain((planes - of_channels(planes, False)) / 0.25, made).contiguous()
        if kind == "to bytes":
            y = chain(x, made) * 0.25 + of_channels(x, False)
            return (y.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        if kind == "gray":
            return chain((x.float() * of_channels(x.float(), True)).sum(-1) / 255, made)
        if kind == "permute":
            return chain(x.permute(0, 2, 3, 1), made).contiguous()
        if kind == "transposed sum":
            return chain(x + x.transpose(-1, -2), made)
        return chain(x, made).to(memory_format=torch.channels_last)

    def arguments(elements: int, generator: Generator) -> tuple[Tensor, ...]:
        count = max(1, elements // (side * side * channels))
        if kind in ("to planes", "gray"):
            return (torch.randint(256, (count, side, side, channels), generator=generator, dtype=torch.uint8),)
        return (torch.randn(count, channels, side, side, generator=generator),)

    trained = int(kind in ("permute", "transposed sum", "to channels last"))
    return Drawn(f"{kind} {words_of(steps)} of {channels} channels of {side}²", call, arguments, trained)


# Stencils, scatters and pads.


def stencils(draw: random.Random) -> Drawn:
    kinds = ("difference", "laplacian", "box", "sobel", "pad", "scatter", "slices", "roll", "written", "cross")
    kind, side = draw.choice(kinds), draw.choice((30, 64, 100, 256))
    steps = some(draw, draw.choice((LIGHT, HEAVY)), draw.randint(0, 2))
    made = [step for _, step in steps]

    def call(x: Tensor) -> Tensor:
        y = chain(x, made)
        if kind == "difference":
            return (y[:, 1:, :-1] - y[:, :-1, :-1]).abs() + (y[:, :-1, 1:] - y[:, :-1, :-1]).abs()
        if kind == "laplacian":
            return y[:, 1:-1, 2:] + y[:, 1:-1, :-2] + y[:, 2:, 1:-1] + y[:, :-2, 1:-1] - 4 * y[:, 1:-1, 1:-1]
        if kind == "box":
            across = y[..., :-2] + y[..., 1:-1] + y[..., 2:]
            return (across[:, :-2] + across[:, 1:-1] + across[:, 2:]) / 9
        if kind == "sobel":
            smooth = y[:, :-2] + 2 * y[:, 1:-1] + y[:, 2:]
            return (smooth[..., 2:] - smooth[..., :-2]).square()
        if kind == "pad":
            return F.pad(y, (1, 2, 2, 1)) * 2
        if kind == "scatter":
            return torch.slice_scatter(y, y[:, 1:-1] * 0.5, 1, 1, -1) + 1
        if kind == "slices":
            return torch.cat((y[:, :1], y[:, 1:] - 0.9 * y[:, :-1]), 1)
        if kind == "roll":
            return y - 0.5 * (torch.roll(y, 1, -1) + torch.roll(y, -1, -1))
        if kind == "written":
            out = torch.empty_like(y)
            out[:, 0], out[:, 1:] = y[:, 0] * 2, y[:, 1:] + y[:, :-1]
            return out
        a, b = y[..., : side // 3 * 3].unflatten(-1, (-1, 3)), y[..., -(side // 3 * 3) :].unflatten(-1, (-1, 3))
        return torch.linalg.cross(a, b)

    def arguments(elements: int, generator: Generator) -> tuple[Tensor, ...]:
        return (torch.randn(max(1, elements // side**2), side, side, generator=generator),)

    return Drawn(f"{kind} {words_of(steps)} of (n, {side}, {side})", call, arguments, 1)


# Sums within sums.


def sums_within_sums(draw: random.Random) -> Drawn:
    inner, others = draw.choice((2, 3, 4, 8, 16)), draw.choice((8, 32, 100))
    within = draw.choice(("distance", "product", "difference"))
    end = draw.choice(("softmax", "logsumexp", "sum", "amin"))
    (name, heavy), *_ = some(draw, HEAVY, 1)

    def call(a: Tensor, b: Tensor) -> Tensor:
        a, b = a[:, None], b[None]
        d = {"distance": lambda: (a - b).square(), "product": lambda: a * b, "difference": lambda: (a - b).abs()}
        found = heavy(d[within]().sum(-1))
        if end == "softmax":
            return torch.softmax(-found, -1)
        return {"logsumexp": torch.logsumexp, "sum": torch.sum, "amin": torch.amin}[end](found, -1)

    def arguments(elements: int, generator: Generator) -> tuple[Tensor, ...]:
        count = max(1, elements // (others * inner))
        return tuple(torch.randn(n, inner, generator=generator) / math.sqrt(inner) for n in (count, others))

    return Drawn(f"{within} {name} {end} of {others} x {inner}", call, arguments, 2)


# Elementwise chains, and lists.


def chains(draw: random.Random) -> Drawn:
    inputs, integers = draw.randint(1, 4), draw.random() < 0.2
    whole: dict[str, Step] = {
        "add": lambda y: y + 3,
        "shift": lambda y: y >> 1,
        "and": lambda y: y & 255,
        "mul": lambda y: y * 3,
        "larger": lambda y: torch.where(y > 10, y, 10 - y),
    }
    tables = (whole,) if integers else (LIGHT, HEAVY)
    parts = [some(draw, draw.choice(tables), draw.randint(1, 5)) for _ in range(inputs)]
    last = some(draw, draw.choice(tables), draw.randint(1, 4))
    made, after = [[step for _, step in part] for part in parts], [step for _, step in last]

    def call(*given: Tensor) -> Tensor:
        found = [chain(x, steps) for x, steps in zip(given, made, strict=True)]
        total = found[0]
        for k, y in enumerate(found[1:]):
            total = total * y if k % 2 else total + y
        return chain(total, after)

    def arguments(elements: int, generator: Generator) -> tuple[Tensor, ...]:
        if integers:
            return tuple(torch.randint(1000, (elements,), generator=generator, dtype=torch.int32) for _ in parts)
        return tuple(torch.randn(elements, generator=generator) for _ in parts)

    words = " + ".join(map(words_of, parts))
    return Drawn(f"({words}) {words_of(last)}" + " of integers" * integers, call, arguments, 0 if integers else inputs)


def lists(draw: random.Random) -> Drawn:
    """A function of fifty tensors of 100 to 10,000 elements, each alone. Elements are all of them together."""
    sizes = [round(10 ** draw.uniform(2, 4)) for _ in range(50)]
    kind, steps = draw.choice(("momentum", "chain")), some(draw, draw.choice((LIGHT, HEAVY)), draw.randint(1, 4))
    made = [step for _, step in steps]

    def call(*given: Tensor) -> tuple[Tensor, ...]:
        if kind == "chain":
            return tuple(chain(x, made) for x in given)
        moved = [0.9 * m + g for m, g in zip(given[50:100], given[100:], strict=True)]
        return (*(p - 0.01 * m for p, m in zip(given[:50], moved, strict=True)), *moved)

    def arguments(elements: int, generator: Generator) -> tuple[Tensor, ...]:
        lists = 1 if kind == "chain" else 3
        return tuple(torch.randn(size, generator=generator) for _ in range(lists) for size in sizes)

    return Drawn(f"{kind} {words_of(steps) if kind == 'chain' else ''} of 50 tensors", call, arguments, 0)


CLASSES: dict[str, Callable[[random.Random], Drawn]] = {
    "rows of 2 to 8 columns": lambda draw: rows(draw, (2, 3, 4, 5, 7, 8)),
    "rows of 9 to 24 columns": lambda draw: rows(draw, (12, 16, 17, 20, 24)),
    "rows of 25 to 128 columns": lambda draw: rows(draw, (25, 31, 32, 33, 40, 48, 64, 65, 96, 100, 127, 128)),
    "rows of more columns": lambda draw: rows(draw, (200, 256, 1000, 1025)),
    "images and permutes": images,
    "stencils, scatters and pads": stencils,
    "sums within sums": sums_within_sums,
    "elementwise chains": chains,
    "lists of small tensors": lists,
}
