"""Recurrences from publications and packages, each as one step for ``fourfold.scan``. The suite ``scan`` times them and
the tests compare them with a Python loop. This file has gated cells; other_recurrences.py has neurons, filters and the
rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

Weights = tuple[Tensor, ...]
Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Sizes:
    steps: int
    batch: int
    inputs: int
    hidden: int

    @property
    def heads(self) -> int:
        """The number of blocks into which the hidden units are divided."""
        return next(n for n in (4, 3, 5, 1) if self.hidden % n == 0)


@dataclass(frozen=True)
class Draw:
    """Draws random tensors of one dtype. ``sequence`` puts the steps and the batch before the given shape."""

    sizes: Sizes
    dtype: torch.dtype
    generator: Generator

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)).to(self.dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * drawn).to(self.dtype)

    def matrix(self, rows: int, columns: int) -> Tensor:
        return self(rows, columns, scale=columns**-0.5)

    def state(self, count: int = 1) -> Any:
        states = tuple(self(self.sizes.batch, self.sizes.hidden, scale=0.5) for _ in range(count))
        return states if count > 1 else states[0]

    def sequence(self, *shape: int) -> Tensor:
        return self(self.sizes.steps, self.sizes.batch, *(shape or (self.sizes.inputs,)))


@dataclass(frozen=True)
class Scan:
    """The arguments of a scan, and the weights in its step's closure."""

    step: Step
    init: Any
    xs: Any
    weights: Weights
    reverse: bool


@dataclass(frozen=True)
class Recurrence:
    """step: takes the weights, a carry and an element of the sequence; returns the new carry and a result. draw:
    returns the weights, the first carry and the sequence. source: the publication, or the function of a package."""

    name: str
    source: str
    step: Callable[[Weights, Any, Any], tuple[Any, Any]]
    draw: Callable[[Draw], tuple[Weights, Any, Any]]
    reverse: bool = False

    def of(self, weights: Weights) -> Step:
        step = self.step
        return lambda carry, x: step(weights, carry, x)

    def make(
        self, steps: int, batch: int, inputs: int, hidden: int, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> Scan:
        draw = Draw(Sizes(steps, batch, inputs, hidden), dtype, Generator().manual_seed(seed))
        weights, init, xs = self.draw(draw)
        return Scan(self.of(weights), init, xs, weights, self.reverse)


def loop(step: Step, init: Any, xs: Any, reverse: bool = False, by_index: bool = False) -> tuple[Any, Any]:
    """Computes a scan as a Python loop. It uses ``unbind``, because the gradient of ``x[t]`` is as large as x.
    by_index: loop over ``x[t]``, as most code does."""
    leaves, spec = pytree.tree_flatten(xs)
    elements = list(
        zip(*([leaf[t] for t in range(len(leaf))] if by_index else leaf.unbind(0) for leaf in leaves), strict=True)
    )
    carry, ys = init, []
    for element in reversed(elements) if reverse else elements:
        carry, y = step(carry, pytree.tree_unflatten(element, spec))
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, pytree.tree_map(lambda *rows: torch.stack(rows), *ys)


def lltm(weights: Weights, carry: Any, x: Tensor) -> Any:
    matrix, bias = weights
    h, c = carry
    i, o, g = F.linear(torch.cat((h, x), 1), matrix, bias).chunk(3, 1)
    c = c + torch.sigmoid(i) * F.elu(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), h


def draw_lltm(draw: Draw) -> Any:
    hidden, inputs = draw.sizes.hidden, draw.sizes.inputs
    return (draw.matrix(3 * hidden, hidden + inputs), draw(3 * hidden)), draw.state(2), draw.sequence()


def lstm(weights: Weights, carry: Any, x: Tensor) -> Any:
    w_ih, w_hh, b_ih, b_hh = weights
    h, c = carry
    i, f, g, o = (F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), h


def gru(weights: Weights, h: Tensor, x: Tensor) -> Any:
    w_ih, w_hh, b_ih, b_hh = weights
    x_r, x_z, x_n = F.linear(x, w_ih, b_ih).chunk(3, 1)
    h_r, h_z, h_n = F.linear(h, w_hh, b_hh).chunk(3, 1)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    h = (1 - z) * n + z * h
    return h, h


def draw_torchs(gates: int, states: int) -> Callable[[Draw], Any]:
    """Weights in torch.nn's layout."""

    def drawn(draw: Draw) -> Any:
        rows, hidden = gates * draw.sizes.hidden, draw.sizes.hidden
        weights = draw.matrix(rows, draw.sizes.inputs), draw.matrix(rows, hidden), draw(rows), draw(rows)
        return weights, draw.state(states), draw.sequence()

    return drawn


def peephole_lstm(weights: Weights, carry: Any, x: Tensor) -> Any:
    w, u, bias, p_i, p_f, p_o = weights
    h, c = carry
    i, f, g, o = (F.linear(x, w, bias) + F.linear(h, u)).chunk(4, 1)
    c = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
    h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
    return (h, c), h


def coupled_lstm(weights: Weights, carry: Any, x: Tensor) -> Any:
    w, u, bias = weights
    h, c = carry
    i, g, o = (F.linear(x, w, bias) + F.linear(h, u)).chunk(3, 1)
    i = torch.sigmoid(i)
    c = (1 - i) * c + i * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), h


def draw_gates(gates: int, states: int, *vectors: int) -> Callable[[Draw], Any]:
    """Weights for x and h, a bias, and vectors of the given multiples of the hidden size."""

    def drawn(draw: Draw) -> Any:
        rows, hidden = gates * draw.sizes.hidden, draw.sizes.hidden
        others = (draw(times * hidden, scale=0.5) for times in vectors)
        weights = draw.matrix(rows, draw.sizes.inputs), draw.matrix(rows, hidden), draw(rows), *others
        return weights, draw.state(states), draw.sequence()

    return drawn


def minimal_gated(weights: Weights, h: Tensor, x: Tensor) -> Any:
    w, u_f, u_h, bias = weights
    x_f, x_h = F.linear(x, w, bias).chunk(2, 1)
    f = torch.sigmoid(x_f + h @ u_f)
    h = (1 - f) * h + f * torch.tanh(x_h + (f * h) @ u_h)
    return h, h


def draw_minimal_gated(draw: Draw) -> Any:
    hidden = draw.sizes.hidden
    square = draw.matrix(hidden, hidden), draw.matrix(hidden, hidden)
    return (draw.matrix(2 * hidden, draw.sizes.inputs), *square, draw(2 * hidden)), draw.state(), draw.sequence()


def indrnn(weights: Weights, h: Tensor, x: Tensor) -> Any:
    w, bias, u = weights
    h = F.relu(F.linear(x, w, bias) + u * h)
    return h, h


def sru(weights: Weights, c: Tensor, x: Tensor) -> Any:
    w, bias, v_f, v_r = weights
    candidate, skip, f, r = F.linear(x, w, bias).chunk(4, 1)
    f, r = torch.sigmoid(f + v_f * c), torch.sigmoid(r + v_r * c)
    c = f * c + (1 - f) * candidate
    return c, r * c + (1 - r) * skip


def min_gru(weights: Weights, h: Tensor, x: Tensor) -> Any:
    w, bias = weights
    z, candidate = F.linear(x, w, bias).chunk(2, 1)
    z = torch.sigmoid(z)
    h = (1 - z) * h + z * candidate
    return h, h


def draw_of_input(parts: int, vectors: int) -> Callable[[Draw], Any]:
    """Weights for x, and vectors that scale the state."""

    def drawn(draw: Draw) -> Any:
        rows, hidden = parts * draw.sizes.hidden, draw.sizes.hidden
        others = (draw.uniform(hidden, low=-1.0) for _ in range(vectors))
        return (draw.matrix(rows, draw.sizes.inputs), draw(rows), *others), draw.state(), draw.sequence()

    return drawn


def li_gru(weights: Weights, h: Tensor, x: Tensor) -> Any:
    """The last two of the four weights are the layer norm's."""
    w, u, *norm = weights
    projected = F.linear(x, w)
    if norm:
        projected = F.layer_norm(projected, norm[0].shape, *norm)
    candidate, z = (projected + F.linear(h, u)).chunk(2, 1)
    z = torch.sigmoid(z)
    h = z * h + (1 - z) * F.relu(candidate)
    return h, h


def draw_li_gru(norm: bool) -> Callable[[Draw], Any]:
    def drawn(draw: Draw) -> Any:
        rows = 2 * draw.sizes.hidden
        weights = draw.matrix(rows, draw.sizes.inputs), draw.matrix(rows, draw.sizes.hidden)
        return weights + ((draw(rows), draw(rows)) if norm else ()), draw.state(), draw.sequence()

    return drawn


def slstm(weights: Weights, carry: Any, x: Tensor) -> Any:
    """The recurrent weights have shape (4H, H), or (heads, H / heads, 4H / heads)."""
    w, r, bias = weights
    h, c, n, m = carry
    recurrent = F.linear(h, r) if r.dim() == 2 else by_blocks(h, r, 4)
    i, f, z, o = (F.linear(x, w, bias) + recurrent).chunk(4, 1)
    log_f = F.logsigmoid(f) + m
    m = torch.maximum(log_f, i)
    i, f = torch.exp(i - m), torch.exp(log_f - m)
    c = f * c + i * torch.tanh(z)
    n = f * n + i
    h = torch.sigmoid(o) * c / n
    return (h, c, n, m), h


def by_blocks(h: Tensor, weights: Tensor, parts: int) -> Tensor:
    """A product with block-diagonal weights (heads, width, parts * width); each of the parts covers all heads."""
    heads, width, _ = weights.shape
    products = torch.einsum("bhi,hio->bho", h.view(-1, heads, width), weights)
    return products.view(-1, heads, parts, width).transpose(1, 2).reshape(-1, parts * heads * width)


def draw_slstm(blocks: bool) -> Callable[[Draw], Any]:
    def drawn(draw: Draw) -> Any:
        hidden, heads = draw.sizes.hidden, draw.sizes.heads
        width = hidden // heads
        r = draw(heads, width, 4 * width, scale=width**-0.5) if blocks else draw.matrix(4 * hidden, hidden)
        h, c, m = draw.state(3)
        n = 1 + draw.uniform(draw.sizes.batch, hidden)
        return (draw.matrix(4 * hidden, draw.sizes.inputs), r, draw(4 * hidden)), (h, c, n, m), draw.sequence()

    return drawn


def block_gru(weights: Weights, h: Tensor, x: Tensor) -> Any:
    """Both parts of the input are normalised: a block-diagonal layer with RMS norm, then block-diagonal gates."""
    w_h, w_x, scale_h, scale_x, inner, bias, scale, gates, gate_bias = weights
    heads, width, _ = gates.shape
    part_h, part_x = normalised(h @ w_h, scale_h), normalised(x @ w_x, scale_x)
    given = torch.cat((part_h, part_x), 1).unsqueeze(1).expand(-1, heads, -1)
    given = torch.cat((h.view(-1, heads, width), given), 2)
    hidden = normalised(torch.einsum("bhi,hio->bho", given, inner).flatten(1) + bias, scale)
    reset, candidate, update = (by_blocks(hidden, gates, 3) + gate_bias).chunk(3, 1)
    candidate = torch.tanh(torch.sigmoid(reset) * candidate)
    update = torch.sigmoid(update - 1)
    h = update * candidate + (1 - update) * h
    return h, h


def normalised(x: Tensor, scale: Tensor) -> Tensor:
    return F.silu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-4) * scale)


def draw_block_gru(draw: Draw) -> Any:
    hidden, heads = draw.sizes.hidden, draw.sizes.heads
    width, units = hidden // heads, hidden // heads + 2
    inner = draw(heads, width + 2 * units, width, scale=(width + 2 * units) ** -0.5)
    gates = draw(heads, width, 3 * width, scale=width**-0.5)
    inputs = draw.matrix(hidden, units), draw.matrix(draw.sizes.inputs, units), draw(units), draw(units)
    return (*inputs, inner, draw(hidden), draw(hidden), gates, draw(3 * hidden)), draw.state(), draw.sequence()


RECURRENCES = {
    recurrence.name: recurrence
    for recurrence in (
        Recurrence("LLTM", "PyTorch's C++ extension tutorial", lltm, draw_lltm),
        Recurrence("LSTM", "torch.nn.LSTM's definition", lstm, draw_torchs(4, 2)),
        Recurrence("GRU", "torch.nn.GRU's definition", gru, draw_torchs(3, 1)),
        Recurrence("peephole LSTM", "Graves 2013, equations 7 to 11", peephole_lstm, draw_gates(4, 2, 1, 1, 1)),
        Recurrence("coupled LSTM", "Greff et al. 2017, variant CIFG", coupled_lstm, draw_gates(3, 2)),
        Recurrence("minimal gated unit", "Zhou et al. 2016, equation 7", minimal_gated, draw_minimal_gated),
        Recurrence("IndRNN", "Li et al. 2018, equation 2", indrnn, draw_of_input(1, 1)),
        Recurrence("SRU", "Lei et al. 2018, equations 1 to 4, the skip connection projected", sru, draw_of_input(4, 2)),
        Recurrence("minGRU", "Feng et al. 2024, section 3.1", min_gru, draw_of_input(2, 0)),
        Recurrence("liGRU", "speechbrain.nnet.RNN.LiGRU without normalisation", li_gru, draw_li_gru(False)),
        Recurrence("liGRU with layer norm", "speechbrain.nnet.RNN.LiGRU", li_gru, draw_li_gru(True)),
        Recurrence("sLSTM", "Beck et al. 2024, equations 8 to 17", slstm, draw_slstm(False)),
        Recurrence("sLSTM with blocks", "xlstm's slstm_forward_pointwise with heads", slstm, draw_slstm(True)),
        Recurrence("block GRU", "Hafner et al. 2023, DreamerV3's sequence model", block_gru, draw_block_gru),
    )
}
