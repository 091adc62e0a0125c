"""Late decompositions of depthwise convolutions and average pools over few places: sums of shifted slices.

torch's kernels for CPUs are slow for few channels, and for pools. With AVX2 and one thread, of a million elements, the
sum of 3 to 11 places is 1.2 to 34 times as fast for up to 8 channels, trained or not, and 1.0 to 3.6 times for 16 to
256 channels where it is along one dimension, and either without padding or over at most 4 places; pools are 7 to 28
times as fast. Of more channels with padding it takes up to 1.8 times as long (3 x 3), and over 25 places up to 2.5."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from fourfold.compiler.lowering.decompositions import CONTIGUOUS, LATE, computed, decomposes, is_empty, is_real

aten = torch.ops.aten
# Only loop nests are faster than torch's kernels.
STENCILS = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
)
MOST_PLACES = 11
MOST_CHANNELS = 15  # of more, which torch's kernels take side by side, only some windows are decomposed
MOST_PADDED = 4  # places
FEWEST = 2**14  # elements: of fewer, torch's kernel takes no longer than a call


def suits(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> bool:
    is_plain = is_real(x) and not is_empty(x) and suggest_memory_format(x) == CONTIGUOUS and x.is_contiguous()
    are_known = all(isinstance(size, int) for size in (*x.shape, *kernel, *stride))
    if not is_plain or not are_known or x.numel() < FEWEST:
        return False
    return 1 < math.prod(kernel) <= MOST_PLACES and all(step == 1 for step in stride)


def slices(x: Tensor, kernel: Sequence[int], dilation: Sequence[int]) -> list[Tensor]:
    """The elements at each place of a window over the last dimensions, in order."""
    first = x.dim() - len(kernel)
    found = []
    for places in itertools.product(*map(range, kernel)):
        part = x
        for k, place in enumerate(places):
            length = x.shape[first + k] - dilation[k] * (kernel[k] - 1)
            part = part.narrow(first + k, dilation[k] * place, length)
        found.append(part)
    return found


def padded(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """With so many zeros on both sides of each of the last dimensions; negative sizes cut off elements."""
    pairs = [size for each in reversed(sizes) for size in (each, each)]
    return aten.constant_pad_nd(x, pairs, 0) if any(pairs) else x


def weighted(x: Tensor, weight: Tensor, dilation: Sequence[int], bias: Tensor | None = None) -> Tensor:
    """The sum of a window's places times a channel's weights, (channels, 1, *window), rounded once."""
    kernel = weight.shape[2:]
    of_places = computed(weight).reshape(weight.shape[0], -1, *(1 for _ in kernel)).unbind(1)
    products = [part * each for part, each in zip(slices(computed(x), kernel, dilation), of_places, strict=True)]
    if bias is not None:
        products.append(computed(bias).reshape(-1, *(1 for _ in kernel)))
    return sum(products[1:], products[0]).to(x.dtype)


def is_depthwise(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], transposed: bool, groups: int
) -> bool:
    shapes, kernel = (x.shape[1], weight.shape[0], weight.shape[1]), weight.shape[2:]
    is_one_each = shapes == (groups, groups, 1) and x.dtype == weight.dtype
    if not is_one_each or transposed or x.dim() not in (3, 4) or not suits(x, kernel, stride):
        return False
    is_line = sum(size > 1 for size in kernel) == 1
    is_fast = is_line and (not any(padding) or math.prod(kernel) <= MOST_PADDED)
    return groups <= MOST_CHANNELS or is_fast


@decomposes(aten.convolution.default, LATE)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> object:
    if not is_depthwise(x, weight, stride, padding, transposed, groups):
        return NotImplemented
    padding, dilation = (spread(each, x.dim() - 2) for each in (padding, dilation))
    return weighted(padded(x, padding), weight, dilation, bias)


@decomposes(aten.convolution_backward.default, LATE)
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> object:
    """The input's gradient is the same sum of the padded gradient, by flipped weights."""
    if not mask[0] or not is_depthwise(x, weight, stride, padding, transposed, groups) or not grad.is_contiguous():
        return NotImplemented
    kernel, settings = weight.shape[2:], (bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    padding, dilation = (spread(each, x.dim() - 2) for each in (padding, dilation))
    around = [step * (size - 1) - each for step, size, each in zip(dilation, kernel, padding, strict=True)]
    flipped = weight.flip(list(range(2, weight.dim())))
    own = weighted(padded(grad, around), flipped, dilation)
    if not mask[1]:
        return own, None, grad.sum([0, *range(2, grad.dim())]) if mask[2] else None
    _, of_weight, of_bias = aten.convolution_backward(grad, x, weight, *settings, [False, True, mask[2]])
    return own, of_weight, of_bias


@decomposes(aten.avg_pool2d.default, LATE)
def avg_pool2d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> object:
    kernel = spread(kernel)
    if any(padding) or divisor_override is not None or not suits(x, kernel, spread(stride or kernel)):
        return NotImplemented
    first, *others = slices(computed(x), kernel, (1, 1))
    return (sum(others, first) / math.prod(kernel)).to(x.dtype)


@decomposes(aten.avg_pool2d_backward.default, LATE)
def avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> object:
    kernel = spread(kernel)
    is_plain = not any(padding) and divisor_override is None and grad.is_contiguous()
    if not is_plain or not suits(x, kernel, spread(stride or kernel)):
        return NotImplemented
    first, *others = slices(computed(padded(grad, [size - 1 for size in kernel])), kernel, (1, 1))
    return (sum(others, first) / math.prod(kernel)).to(grad.dtype)


def spread(given: Sequence[int], dims: int = 2) -> Sequence[int]:
    """One number stands for all dimensions."""
    return given if len(given) == dims else [given[0]] * dims
