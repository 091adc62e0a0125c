"""Late decompositions of max pools over few places whose indices nothing reads: maxima of strided slices.

torch's kernels for CPUs take contiguous elements one by one, and write indices. With AVX2 and one thread, of 2e4 to a
million elements, the maxima are 1.1 to 95 times as fast in loop nests and in the interpreter. Channels that are
innermost in memory torch takes side by side: loop nests are 1.1 to 9 times as fast from 2^16 elements on, but with
padding, which is a copy, only if the stride is 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import suggest_memory_format
from torch.fx import Node

from fourfold.compiler.analysis.views import Size, has_hints, hint
from fourfold.compiler.lowering.stencils import spread

aten = torch.ops.aten
# Smaller integers torch pools only if their type holds the number of elements; for others it raises an error.
POOLED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
MOST_PLACES = 9
FEWEST = 2**14  # elements: of fewer, torch's kernel takes no longer than a call
FEWEST_SIDE_BY_SIDE = 2**16  # if channels are innermost in memory
FEWEST_PADDED = 2**16  # in the interpreter, with padding

# In the meta of pools, and of the slices that replace them, if cheap operators are to move before the slices.
WINDOWS = "windows"
# How often they may compute each element on average, in loop nests and in the interpreter.
MOST_COMPUTED, MOST_INTERPRETED = 2.5, 1.0

# In loop nests, and in the interpreter.
MAX_POOLS: dict[object, Callable[..., object]] = {}
INTERPRETED: dict[object, Callable[..., object]] = {}


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    dims: int,
    as_nests: bool = True,
) -> object:
    """The maxima, and None for the indices. Of equal zeros the first, and of several NaN the last, as torch's kernels:
    of equal numbers ``maximum`` returns its second operand, and of two NaN its first."""
    given = (kernel, stride or kernel, padding, dilation)
    kernel, stride, padding, dilation = (spread(each, dims) for each in given)
    if not suits(x, kernel, stride, padding, as_nests):
        return NotImplemented
    first, pairs, counts = x.dim() - dims, [], []
    for size, *own in zip(x.shape[first:], kernel, stride, padding, dilation, strict=True):
        if not isinstance(size, int) and ceil_mode:
            return NotImplemented
        count, after = places(size, *own, ceil_mode)
        counts.append(count)
        pairs[:0] = own[2], after
    if any(pairs):
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        with enable_python_dispatcher():  # torch's C++ code for it makes symbolic sizes constant
            x = aten.constant_pad_nd(x, pairs, lowest)
    parts = [x]
    for k in range(dims):
        own = first + k, kernel[k], stride[k], dilation[k]
        parts = [each for part in parts for each in along(part, counts[k], *own)]
    if len(parts) == 2:  # one maximum alone would stay torch's, which of equal zeros returns either
        found, part = parts
        return torch.where((part > found) | part.isnan(), part, found), None
    return functools.reduce(lambda found, part: torch.maximum(part, found), parts), None


for _name, _dims in (("max_pool2d_with_indices", 2), ("max_pool3d_with_indices", 3)):
    _operator = getattr(aten, _name).default
    MAX_POOLS[_operator] = functools.partial(max_pool, dims=_dims)
    INTERPRETED[_operator] = functools.partial(max_pool, dims=_dims, as_nests=False)


def suits(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], as_nests: bool) -> bool:
    is_known = x.device.type == "cpu" and x.dtype in POOLED and has_hints(x)
    if not is_known or not 1 < math.prod(kernel) <= MOST_PLACES:
        return False
    count = math.prod(map(hint, x.shape))
    if x.is_contiguous():
        return count >= (FEWEST if as_nests or not any(padding) else FEWEST_PADDED)
    if not as_nests or not x.is_contiguous(memory_format=suggest_memory_format(x)):
        return False
    is_copied = any(padding) and any(step > 1 for step in stride)
    return count >= FEWEST_SIDE_BY_SIDE and not is_copied


def places(
    size: Size, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> tuple[Size | None, int]:
    """The number of windows along a dimension, None if it is symbolic, and how many elements are added behind it."""
    if not isinstance(size, int):
        return None, padding
    window = dilation * (kernel - 1) + 1
    left = size + 2 * padding - window
    count = (left + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:  # it would start behind the elements
        count -= 1
    return count, max(0, (count - 1) * stride + window - size - padding)


def along(x: Tensor, count: int | None, dim: int, kernel: int, stride: int, dilation: int) -> list[Tensor]:
    """The elements at each place of the windows along a dimension. Windows of a symbolic number are a view, whose sizes
    no node has to compute."""
    if kernel == stride == 1:
        return [x]
    if count is None:
        windows = x.unfold(dim, dilation * (kernel - 1) + 1, stride)
        return [windows.select(-1, dilation * place) for place in range(kernel)]
    starts = (dilation * place for place in range(kernel))
    return [aten.slice.Tensor(x, dim, start, start + (count - 1) * stride + 1, stride) for start in starts]


def computes_few(node: Node, as_nests: bool) -> bool:
    """Whether what computes the operand of a pool may compute it at each place of the windows instead."""
    kernel, x, result = node.args[1], node.args[0].meta["val"], node.meta["val"][0]
    if not all(has_hints(each) for each in (x, result)):
        return False
    dims = MAX_POOLS[node.target].keywords["dims"]
    read, own = (math.prod(map(hint, each.shape)) for each in (result, x))
    return read * math.prod(spread(kernel, dims)) <= own * (MOST_COMPUTED if as_nests else MOST_INTERPRETED)
