"""The arguments of operators' cases, drawn from a fixed seed for any dtype and device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Draw:
    """Draws tensors of one dtype from one seed, the same for every device."""

    def __init__(self, dtype: torch.dtype, seed: int = 0, device: str = "cpu"):
        self.dtype = dtype
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        if not self.dtype.is_floating_point:
            high = 2 if self.dtype == torch.bool else 100
            return torch.randint(0, high, shape, generator=self.generator).to(self.dtype).to(self.device)
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale
        return drawn.to(self.dtype).to(self.device)  # in this order: Apple's GPUs have no float64

    def mask(self, *shape: int) -> Tensor:
        """True for about a quarter of the elements."""
        return (torch.rand(shape, generator=self.generator) < 0.25).to(self.device)

    def special(self) -> Tensor:
        """Special values: signed zeros, infinities, NaN, the smallest and the largest numbers."""
        if not self.dtype.is_floating_point:
            return self(10)
        info = torch.finfo(self.dtype)
        values = [0.0, -0.0, 0.5, -0.5, float("inf"), -float("inf"), float("nan"), info.tiny, info.max, -info.max]
        values += [info.tiny / 4, 1e-3, -20.0, 20.0]
        return torch.tensor(values, dtype=self.dtype, device=self.device)


def lltm_cell(batch: int, input_size: int, hidden_size: int, bias: int = 1) -> Callable[[Draw], tuple]:
    def make(draw: Draw) -> tuple:
        state = draw(batch, hidden_size), draw(batch, hidden_size)
        return (draw(batch, input_size), *state, *lltm_parameters(draw, input_size, hidden_size, bias))

    return make


def lltm_parameters(draw: Draw, input_size: int, hidden_size: int, bias: int) -> tuple:
    scale = max(hidden_size, 1) ** -0.5
    weights = draw(3 * hidden_size, hidden_size + input_size, scale=scale)
    shapes = {0: None, 1: (3 * hidden_size,), 2: (1, 3 * hidden_size)}
    return weights, None if bias == 0 else draw(*shapes[bias], scale=scale)


def lltm(
    time: int, batch: int, input_size: int, hidden_size: int, bias: int = 1, reverse: bool = False
) -> Callable[[Draw], tuple]:
    def make(draw: Draw) -> tuple:
        state = draw(batch, hidden_size), draw(batch, hidden_size)
        parameters = lltm_parameters(draw, input_size, hidden_size, bias)
        return (draw(time, batch, input_size), *state, *parameters, reverse)

    return make


def lltm_packed(sizes: list[int], input_size: int, hidden_size: int, reverse: bool) -> Callable[[Draw], tuple]:
    def make(draw: Draw) -> tuple:
        state = draw(sizes[0], hidden_size), draw(sizes[0], hidden_size)
        parameters = lltm_parameters(draw, input_size, hidden_size, 1)
        return (draw(sum(sizes), input_size), *state, *parameters, reverse, torch.tensor(sizes))

    return make


GATES = {"lstm": 4, "gru": 3}


def torch_layer(
    op: str,
    time: int,
    batch: int,
    input_size: int,
    hidden_size: int,
    bias: str = "both",
    reverse: bool = False,
    sizes: list[int] | None = None,
    reset: bool = False,
) -> Callable[[Draw], tuple]:
    """lstm or gru; packed if `sizes` is given. `bias`: which biases exist: both, ih, hh or none."""

    def make(draw: Draw) -> tuple:
        rows, scale = GATES[op] * hidden_size, max(hidden_size, 1) ** -0.5
        state = [draw(batch, hidden_size) for _ in range(2 if op == "lstm" else 1)]
        weights = draw(rows, input_size, scale=scale), draw(rows, hidden_size, scale=scale)
        biases = (draw(rows, scale=scale) if bias in ("both", side) else None for side in ("ih", "hh"))
        steps = (time, batch) if sizes is None else (sum(sizes),)
        packed = None if sizes is None else torch.tensor(sizes)
        arguments = (draw(*steps, input_size), *state, *weights, *biases, reverse, packed)
        return (*arguments, draw.mask(*steps)) if reset else arguments

    return make


def with_reset(make: Callable[[Draw], tuple], packed: bool = False) -> Callable[[Draw], tuple]:
    """An LLTM's case with restarts."""

    def made(draw: Draw) -> tuple:
        arguments = make(draw)
        shape = arguments[0].shape[:1] if packed else arguments[0].shape[:2]
        return (*arguments, *[None] * (7 - len(arguments)), draw.mask(*shape))

    return made
