"""Recurrences from publications and packages, besides those in recurrences.py: continuous-time cells, spiking neurons,
returns of reinforcement learning, filters, and linear recurrences with several state values per channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.recurrences import Draw, Recurrence, Weights

STEP = 1e-3  # seconds: norse's default; the inverse time constants too are norse's
MEMBRANE, SYNAPSE, ADAPTATION = 1 / 1e-2, 1 / 5e-3, 1 / 800
SUPER_SPIKE = 100.0
DISCOUNT, LAMBDA = 0.99, 0.95
STATES = 4  # per channel of the selective scan, in cases with few inputs


def cfc(weights: Weights, h: Tensor, xs: Any) -> Any:
    """One hidden layer and four heads on it: two values, and the slope and shift of their interpolation over time."""
    w, bias, heads, head_bias = weights
    x, elapsed = xs
    hidden = 1.7159 * torch.tanh(0.666 * F.linear(torch.cat((x, h), 1), w, bias))
    first, second, slope, shift = F.linear(hidden, heads, head_bias).chunk(4, 1)
    at = torch.sigmoid(slope * elapsed + shift)
    h = torch.tanh(first) * (1 - at) + at * torch.tanh(second)
    return h, h


def draw_cfc(draw: Draw) -> Any:
    sizes, units = draw.sizes, 2 * draw.sizes.hidden
    weights = draw.matrix(units, sizes.inputs + sizes.hidden), draw(units), draw.matrix(4 * sizes.hidden, units)
    times = draw.uniform(sizes.steps, sizes.batch, 1, low=0.1)
    return (*weights, draw(4 * sizes.hidden)), draw.state(), (draw.sequence(), times)


def ltc(weights: Weights, v: Tensor, x: Tensor, unfolds: int = 3) -> Any:
    """Semi-implicit Euler steps of one time unit; synapses from x and between the neurons."""
    sensory, inner, leak, rest, capacity = weights[:4], weights[4:8], *weights[8:]
    drive, conductance = synapses(x, *sensory)
    for _ in range(unfolds):
        current, load = synapses(v, *inner)
        up = capacity * unfolds * v + leak * rest + current + drive
        v = up / (capacity * unfolds + leak + load + conductance + 1e-8)
    return v, v


def synapses(v: Tensor, strength: Tensor, centre: Tensor, slope: Tensor, reversal: Tensor) -> tuple[Tensor, Tensor]:
    active = strength * torch.sigmoid(slope * (v.unsqueeze(-1) - centre))
    return (active * reversal).sum(1), active.sum(1)


def draw_ltc(draw: Draw) -> Any:
    hidden, weights = draw.sizes.hidden, []
    for rows in (draw.sizes.inputs, hidden):
        weights += [draw.uniform(rows, hidden), draw.uniform(rows, hidden, low=0.3, high=0.8)]
        weights += [draw.uniform(rows, hidden, low=3, high=8), draw(rows, hidden).sign()]
    neurons = draw.uniform(hidden), draw.uniform(hidden, low=-0.2, high=0.2), draw.uniform(hidden, low=0.4, high=0.6)
    return (*weights, *neurons), draw.state(), draw.sequence()


class ATan(torch.autograd.Function):
    """1 above zero; the surrogate derivative is that of an arc tangent. snntorch.surrogate.atan, alpha 2."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return gradient / (1 + (math.pi * v) ** 2)


class SuperSpike(torch.autograd.Function):
    """1 above zero; the surrogate derivative is that of a fast sigmoid. Zenke and Ganguli 2018, norse's default."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return gradient / (SUPER_SPIKE * v.abs() + 1) ** 2


def neuron(weights: Weights, carry: Any, x: Tensor) -> Any:
    """A current-driven neuron without learned parameters, with norse's constants."""
    v, i = carry
    i = i + 0.2 * (x - i)
    v = v + 0.1 * (i - v)
    spike = ATan.apply(v - 0.3)
    return (v * (1 - spike), i), spike


def leaky(weights: Weights, mem: Tensor, x: Tensor) -> Any:
    beta, threshold = weights
    reset = (mem > threshold).to(mem.dtype)
    mem = beta.clamp(0, 1) * mem + x - reset * threshold
    return mem, (ATan.apply(mem - threshold), mem)


def synaptic(weights: Weights, carry: Any, x: Tensor) -> Any:
    alpha, beta, threshold = weights
    current, mem = carry
    reset = (mem > threshold).to(mem.dtype)
    current = alpha.clamp(0, 1) * current + x
    mem = beta.clamp(0, 1) * mem + current - reset * threshold
    return (current, mem), (ATan.apply(mem - threshold), mem)


def draw_leaky(decays: int) -> Callable[[Draw], Any]:
    def drawn(draw: Draw) -> Any:
        weights = (
            *(draw.uniform(draw.sizes.hidden, low=0.5, high=0.95) for _ in range(decays)),
            draw.uniform(1, low=0.5),
        )
        return weights, draw.state(decays), draw.sequence(draw.sizes.hidden)

    return drawn


def lif(weights: Weights, carry: Any, x: Tensor) -> Any:
    w_in, w_rec = weights
    z, v, i = carry
    i = i + F.linear(x, w_in) + F.linear(z, w_rec)
    v = v + STEP * MEMBRANE * (i - v)
    i = i - STEP * SYNAPSE * i
    z = SuperSpike.apply(v - 1.0)
    return (z, (1 - z) * v, i), z


def adaptive_lif(weights: Weights, carry: Any, x: Tensor) -> Any:
    """The threshold b adapts; resets have no gradient."""
    w_in, w_rec = weights
    z, v, i, b = carry
    v = v + STEP * MEMBRANE * (i - v)
    decayed = i - STEP * SYNAPSE * i
    b = b + STEP * ADAPTATION * (1.0 - b)
    new = SuperSpike.apply(v - b)
    fixed = new.detach()
    i = decayed + F.linear(x, w_in) + F.linear(z, w_rec)
    return (new, (1 - fixed) * v, i, b + fixed * 1.8), new


def draw_lif(states: int) -> Callable[[Draw], Any]:
    def drawn(draw: Draw) -> Any:
        hidden = draw.sizes.hidden
        spikes = (draw.state() > 0.5).to(draw.dtype)
        others = (draw(draw.sizes.batch, hidden) + 0.5 for _ in range(states - 1))
        weights = 2 * draw.matrix(hidden, draw.sizes.inputs), draw.matrix(hidden, hidden)
        return weights, (spikes, *others), (draw.sequence() > 0).to(draw.dtype)

    return drawn


def spiking_network(weights: Weights, carry: Any, x: Tensor) -> Any:
    """Layers of leaky neurons, each driven by the spikes of the layer below in the same step."""
    states, spikes = [], x
    for mem, matrix in zip(carry, weights, strict=True):
        reset = (mem > 1).to(mem.dtype)
        mem = 0.9 * mem + F.linear(spikes, matrix) - reset
        spikes = ATan.apply(mem - 1)
        states.append(mem)
    return tuple(states), spikes


def draw_spiking_network(draw: Draw) -> Any:
    hidden = draw.sizes.hidden
    weights = *(2 * draw.matrix(hidden, inputs) for inputs in (draw.sizes.inputs, hidden)), 2 * draw.matrix(3, hidden)
    return weights, (*draw.state(2), draw(draw.sizes.batch, 3)), draw.sequence()


def advantages(weights: Weights, advantage: Tensor, xs: Any) -> Any:
    """runs: 0 if the episode ends with this step."""
    reward, value, following, runs = xs
    advantage = reward + DISCOUNT * following * runs - value + DISCOUNT * LAMBDA * runs * advantage
    return advantage, advantage


def v_trace(weights: Weights, carry: Tensor, xs: Any) -> Any:
    """The carry is the target minus the value of the following state."""
    ratio, reward, value, following, runs = xs
    clipped = torch.exp(ratio).clamp(max=1.0)
    delta = clipped * (reward + DISCOUNT * runs * following - value)
    carry = delta + DISCOUNT * runs * clipped * carry
    return carry, carry + value


def draw_returns(series: int) -> Callable[[Draw], Any]:
    """One number per environment, and the mask of the steps after which the episode continues."""

    def drawn(draw: Draw) -> Any:
        batch = draw.sizes.batch
        runs = (draw.uniform(draw.sizes.steps, batch) < 0.9).to(draw.dtype)
        return (), draw(batch), (*(draw(draw.sizes.steps, batch) for _ in range(series)), runs)

    return drawn


def biquad(weights: Weights, carry: Any, x: Tensor) -> Any:
    b0, b1, b2, a1, a2 = weights
    x1, x2, y1, y2 = carry
    y = b0 * x + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2
    return (x, x1, y, y1), y


def draw_biquad(draw: Draw) -> Any:
    """One filter for all channels, with poles at 0.9 of the unit circle."""
    feedback = torch.tensor(-1.2, dtype=draw.dtype), torch.tensor(0.81, dtype=draw.dtype)
    return (
        (*(draw(scale=0.5) for _ in range(3)), *feedback),
        (*draw.state(2), *draw.state(2)),
        draw.sequence(draw.sizes.hidden),
    )


def moving_average(weights: Weights, mean: Tensor, x: Tensor) -> Any:
    (rate,) = weights
    mean = mean + rate * (x - mean)
    return mean, mean


def draw_moving_average(draw: Draw) -> Any:
    return (draw.uniform(draw.sizes.hidden),), draw.state(), draw.sequence(draw.sizes.hidden)


def selective_scan(weights: Weights, h: Tensor, xs: Any) -> Any:
    """h: (batch, channels, states). b and c: (batch, states), shared by the channels."""
    log_a, skip = weights
    x, dt, b, c = xs
    dt = F.softplus(dt).unsqueeze(-1)
    h = torch.exp(-dt * torch.exp(log_a)) * h + dt * b.unsqueeze(1) * x.unsqueeze(-1)
    return h, (h * c.unsqueeze(1)).sum(-1) + skip * x


def draw_selective_scan(draw: Draw, states: int = STATES) -> Any:
    hidden, batch = draw.sizes.hidden, draw.sizes.batch
    log_a = torch.arange(1, states + 1, dtype=draw.dtype).log().repeat(hidden, 1)
    wide, narrow = ((draw.sequence(size), draw.sequence(size)) for size in (hidden, states))
    return (log_a, draw(hidden)), draw(batch, hidden, states), (*wide, *narrow)


def wkv(weights: Weights, carry: Any, xs: Any) -> Any:
    """Numerator and denominator of a weighted mean, both divided by exp(most)."""
    decay, bonus = weights
    key, value = xs
    a, b, most = carry
    now = torch.maximum(most, bonus + key)
    e, g = torch.exp(most - now), torch.exp(bonus + key - now)
    y = (e * a + g * value) / (e * b + g)
    now = torch.maximum(most - torch.exp(decay), key)
    e, g = torch.exp(most - torch.exp(decay) - now), torch.exp(key - now)
    return (e * a + g * value, e * b + g, now), y


def draw_wkv(draw: Draw) -> Any:
    hidden = draw.sizes.hidden
    a, most = draw.state(2)
    b = 1 + draw.uniform(draw.sizes.batch, hidden)
    return (draw(hidden), draw(hidden)), (a, b, most), (draw.sequence(hidden), draw.sequence(hidden))


def gated_linear_attention(weights: Weights, state: Tensor, xs: Any) -> Any:
    """The state has shape (batch, keys, values); gates scale its rows."""
    query, key, value, gate = xs
    state = torch.sigmoid(gate).unsqueeze(-1) * state + key.unsqueeze(-1) * value.unsqueeze(1)
    return state, (query.unsqueeze(1) @ state).squeeze(1)


def delta_net(weights: Weights, state: Tensor, xs: Any) -> Any:
    """The value that the key finds is replaced by a mixture of itself and the new one."""
    query, key, value, rate = xs
    key = F.normalize(key, dim=-1)
    found = torch.einsum("bkv,bk->bv", state, key)
    state = state + torch.einsum("bk,bv->bkv", key, torch.sigmoid(rate) * (value - found))
    return state, torch.einsum("bkv,bk->bv", state, query)


def draw_attention(scalar_gate: bool) -> Callable[[Draw], Any]:
    def drawn(draw: Draw) -> Any:
        keys, values = draw.sizes.inputs, draw.sizes.hidden
        series = (draw.sequence(size) for size in (keys, keys, values, 1 if scalar_gate else keys))
        return (), draw(draw.sizes.batch, keys, values), tuple(series)

    return drawn


OTHERS = {
    recurrence.name: recurrence
    for recurrence in (
        Recurrence("CfC", "ncps.torch.CfCCell; Hasani et al. 2022, equation 2", cfc, draw_cfc),
        Recurrence("LTC", "ncps.torch.LTCCell, fully connected; Hasani et al. 2021, equation 3", ltc, draw_ltc),
        Recurrence(
            "spiking neuron",
            "norse.torch.lif_feed_forward_step with an arc tangent's gradient",
            neuron,
            lambda draw: ((), draw.state(2), draw.sequence(draw.sizes.hidden)),
        ),
        Recurrence("leaky neuron", "snntorch.Leaky, reset by subtraction", leaky, draw_leaky(1)),
        Recurrence("synaptic neuron", "snntorch.Synaptic, reset by subtraction", synaptic, draw_leaky(2)),
        Recurrence("LIF", "norse.torch.functional.lif.lif_step", lif, draw_lif(3)),
        Recurrence("adaptive LIF", "norse.torch.functional.lsnn.lsnn_step", adaptive_lif, draw_lif(4)),
        Recurrence(
            "spiking network",
            "three layers of snntorch.Leaky, Eshraghian et al. 2023",
            spiking_network,
            draw_spiking_network,
        ),
        Recurrence("advantages", "Schulman et al. 2016, equation 16", advantages, draw_returns(3), reverse=True),
        Recurrence("V-trace", "Espeholt et al. 2018, remark 1", v_trace, draw_returns(4), reverse=True),
        Recurrence("biquad", "torchaudio.functional.lfilter of order 2, direct form I", biquad, draw_biquad),
        Recurrence("moving average", "Brown's exponential smoothing", moving_average, draw_moving_average),
        Recurrence("selective scan", "Gu and Dao 2023, algorithm 2", selective_scan, draw_selective_scan),
        Recurrence("wkv", "Peng et al. 2023, RWKV-4, appendix D", wkv, draw_wkv),
        Recurrence(
            "gated linear attention", "Yang et al. 2024, equation 3", gated_linear_attention, draw_attention(False)
        ),
        Recurrence("DeltaNet", "Yang et al. 2024, the delta rule's recurrence", delta_net, draw_attention(True)),
    )
}
