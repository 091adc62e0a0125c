"""Functions from many fields. LOST: once slower than Inductor's. MORE: chosen without knowing how they perform. JOINED:
concatenations of tensors of different sizes."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from benchmarks.functions import GRID, Draw, Function, draw_normal, draw_rows, longest, rows, width

CHANNELS, GROUPS, SIDE = 32, 8, 8  # of images with few elements; larger images for more
HEADS, HEAD = 4, 64
POINTS = 250  # each of the other points is compared with these
MIXTURE = 8
CAUSAL = 64  # queries and keys

A, B, C, D = 10.0, 28.0, 8 / 3, 0.01  # the Lorenz system's parameters, and a step size


def lennard_jones(a: Tensor, b: Tensor) -> Tensor:
    """The potential of particles at a and b, softened at small distances."""
    distance = a - b
    inverse = 1 / (distance * distance + 0.5)
    sixth = inverse**3
    return 4 * (sixth * sixth - sixth)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embeddings of halves, as in Llama."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, GROUPS, weight, bias))


def huber(x: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(x, target, reduction="none")


def polynomial(x: Tensor) -> Tensor:
    return 1 + x * (0.5 + x * (0.3 + x * (0.2 + x * (0.1 + x * 0.05))))


def powers(x: Tensor) -> Tensor:
    return x**3 + 2 * x**4


def cosine_similarity(x: Tensor, y: Tensor) -> Tensor:
    return F.cosine_similarity(x, y, dim=-1)


def mish(x: Tensor) -> Tensor:
    return F.mish(x)


def focal_loss(x: Tensor, target: Tensor) -> Tensor:
    p = torch.sigmoid(x)
    loss = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    right = p * target + (1 - p) * (1 - target)
    return loss * (1 - right) ** 2


def lif(potential: Tensor, current: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A leaky integrate-and-fire neuron's step; exact in float32 for multiples of 1/64."""
    current = current + 0.25 * (x - current)
    potential = potential + 0.125 * (current - potential)
    spike = (potential > 1).float()
    return potential * (1 - spike), current


def lion(p: Tensor, gradient: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """A step of the optimizer Lion: new parameter and momentum. The sign is exact for multiples of 1/64."""
    update = torch.sign(0.875 * m + 0.125 * gradient)
    return p * (1 - 1e-4) - 1e-3 * update, 0.99 * m + 0.01 * gradient


def batch_norm(x: Tensor) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The divergence of a normal distribution from the standard one, as in a variational autoencoder."""
    return -0.5 * (1 + log_variance - mean * mean - log_variance.exp()).sum(-1)


def rbf_kernel(a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-0.5 * (a[:, None] - b) ** 2)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embeddings of adjacent pairs, as in GPT-J."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def gaussian_mixture(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """The log density, at each of many points, of a mixture with equal weights."""
    z = (x[:, None] - mean) * torch.exp(-log_scale)
    return torch.logsumexp(-0.5 * z * z - log_scale, dim=-1)


def instance_norm_leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(F.instance_norm(x), 0.2)


def rgb_to_yuv(x: Tensor) -> Tensor:
    r, g, b = x.unbind(1)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return torch.stack((y, 0.492 * (b - y), 0.877 * (r - y)), dim=1)


def total_variation(x: Tensor) -> Tensor:
    return (x[:, 1:] - x[:, :-1]).abs().mean(-1)


def lorenz_step(state: Tensor) -> Tensor:
    x, y, z = state.unbind(-1)
    return state + D * torch.stack((A * (y - x), x * (B - z) - y, x * y - C * z), dim=-1)


def quaternion_product(p: Tensor, q: Tensor) -> Tensor:
    a, b, c, d = p.unbind(-1)
    e, f, g, h = q.unbind(-1)
    i, j = a * f + b * e + c * h - d * g, a * g - b * h + c * e + d * f
    return torch.stack((a * e - b * f - c * g - d * h, i, j, a * h + b * g - c * f + d * e), dim=-1)


def fake_quantize(x: Tensor, scale: Tensor) -> Tensor:
    """Quantise to 8 bits with a scale for each column, and back. The gradient is passed through unchanged where nothing
    is clipped."""
    scaled = x / scale
    kept = scaled.clamp(-128, 127)
    return (kept + (kept.round() - kept).detach()) * scale


def causal_alibi(scores: Tensor, slopes: Tensor) -> Tensor:
    """Attention weights under a causal mask, with ALiBi's biases."""
    position = torch.arange(scores.shape[-1], device=scores.device)
    distance = position[None, :] - position[:, None]
    biased = scores + slopes[:, None, None] * distance
    return torch.softmax(biased.masked_fill(distance > 0, -torch.inf), dim=-1)


def token_shift(x: Tensor, mix: Tensor) -> Tensor:
    """Each token mixed with the one before it, as in RWKV."""
    before = F.pad(x, (0, 0, 1, -1))
    return x * mix + before * (1 - mix)


def side_by_side(x: Tensor, y: Tensor) -> Tensor:
    """Concatenates row features of three widths."""
    part = x.shape[-1] // 3
    return torch.cat((torch.relu(x), (x * y)[:, :part], x.sum(-1, keepdim=True)), dim=-1)


def first_differences(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x[:1] * y[:1], x[1:] - x[:-1] * y[1:]))


def draw_images(count: int, generator: Generator, channels: int = CHANNELS) -> Tensor:
    """At least one image; more elements first make the images larger."""
    side = SIDE if count < 10**6 else 4 * SIDE
    images = max(1, count // (channels * side * side))
    return torch.randn(images, channels, side, side, generator=generator)


def draw_image(count: int, generator: Generator, channels: int = CHANNELS) -> tuple[Tensor]:
    return (draw_images(count, generator, channels),)


def draw_groups(count: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    weight, bias = (torch.randn(CHANNELS, generator=generator) for _ in range(2))
    return draw_images(count, generator), weight, bias


def draw_heads(count: int, generator: Generator, width: int = HEAD) -> tuple[Tensor, Tensor, Tensor]:
    steps = max(1, count // (HEADS * HEAD))
    angles = torch.rand(steps, width, generator=generator)
    return torch.randn(HEADS, steps, HEAD, generator=generator), torch.cos(angles), torch.sin(angles)


def draw_grid(tensors: int) -> Draw:
    """Multiples of 1/64."""
    return lambda count, generator: tuple(
        (torch.randn(count, generator=generator) * GRID).round() / GRID for _ in range(tensors)
    )


def draw_rows_of(tensors: int) -> Draw:
    return lambda count, generator: tuple(draw_rows(count, generator) for _ in range(tensors))


def draw_focal(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(count, generator=generator), (torch.rand(count, generator=generator) > 0.5).float()


def draw_points(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    each = min(POINTS, count // 10)
    return torch.randn(count // each, generator=generator), torch.randn(each, generator=generator)


def draw_mixture(count: int, generator: Generator) -> tuple[Tensor, ...]:
    mean, log_scale = torch.randn(MIXTURE, generator=generator), 0.3 * torch.randn(MIXTURE, generator=generator)
    return torch.randn(count // MIXTURE, generator=generator), mean, log_scale


def draw_vectors(tensors: int, width: int) -> Draw:
    return lambda count, generator: tuple(
        torch.randn(count // width, width, generator=generator) for _ in range(tensors)
    )


def draw_quantized(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Some values are clipped. None lies near a boundary between two integers or near the clipping limit."""
    shape = count // width(count), width(count)
    scale = 0.01 + 0.02 * torch.rand(width(count), generator=generator)
    offset = 0.1 + 0.3 * torch.rand(shape, generator=generator)
    return (torch.randint(-150, 150, shape, generator=generator) + offset) * scale, scale


def draw_scores(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    length = CAUSAL if count > CAUSAL**2 else 16
    heads = max(1, count // length**2)
    return torch.randn(heads, length, length, generator=generator), torch.rand(heads, generator=generator)


def image_terms(count: int) -> int:
    return max(count // CHANNELS, CHANNELS * 16 * SIDE * SIDE)


LOST = (
    Function("lennard_jones", lennard_jones, draw_normal(2), 2),
    Function("rotary", rotary, draw_heads, 1),
    Function("group_norm_silu", group_norm_silu, draw_groups, 3, image_terms),
    Function("huber", huber, draw_normal(2), 2),
    Function("polynomial", polynomial, draw_normal(1), 1),
    Function("powers", powers, draw_normal(1), 1),
    Function("cosine_similarity", cosine_similarity, draw_rows_of(2), 2, longest),
    Function("mish", mish, draw_normal(1), 1),
    Function("focal_loss", focal_loss, draw_focal, 1),
    Function("lif", lif, draw_grid(3), 3),
    Function("lion", lion, draw_grid(3), 0),
    Function("batch_norm", batch_norm, draw_image, 1, image_terms),
    Function("kl_divergence", kl_divergence, draw_rows_of(2), 2, longest),
)
MORE = (
    Function("rbf_kernel", rbf_kernel, draw_points, 2, lambda count: max(POINTS, count // POINTS)),
    Function("rotate_pairs", rotate_pairs, lambda *drawn: draw_heads(*drawn, HEAD // 2), 1),
    Function("gaussian_mixture", gaussian_mixture, draw_mixture, 3, lambda count: count // MIXTURE),
    Function("instance_norm_leaky_relu", instance_norm_leaky_relu, draw_image, 1, image_terms),
    Function("rgb_to_yuv", rgb_to_yuv, lambda *drawn: draw_image(*drawn, 3), 1),
    Function("total_variation", total_variation, draw_rows_of(1), 1, longest),
    Function("lorenz_step", lorenz_step, draw_vectors(1, 3), 1),
    Function("quaternion_product", quaternion_product, draw_vectors(2, 4), 2),
    Function("fake_quantize", fake_quantize, draw_quantized, 1, rows),
    Function("causal_alibi", causal_alibi, draw_scores, 1, lambda count: CAUSAL),
)
JOINED = (
    Function("token_shift", token_shift, draw_rows_of(2), 2),
    Function("side_by_side", side_by_side, draw_rows_of(2), 2, longest),
    Function("first_differences", first_differences, draw_rows_of(2), 2),
)

OTHERS = {function.name: function for function in (*LOST, *MORE, *JOINED)}
