"""Checks before calls of operators whose torch kernels would read out of bounds, those of cpp/model/guards.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Given = dict[str, Any]  # the arguments by name, defaults included
Guard = Callable[[Given], str | None]  # says what is wrong


def batch_norm(given: Given) -> str | None:
    x = given["input"]
    if x.dim() < 2:
        return f"expected input to have a dimension of channels, but got {x.dim()} dimensions"
    names = ("weight", "bias", "running_mean", "running_var")
    return next(filter(None, (elements(given, name, x.size(1)) for name in names)), None)


def elements(given: Given, name: str, expected: int) -> str | None:
    tensor = given.get(name)
    if tensor is None or tensor.numel() == expected:
        return None
    return f"expected {name} to have {expected} elements, but got {tensor.numel()}"


def weight_norm(given: Given) -> str | None:
    v, dim = given["v"], given["dim"]
    if not v.dim() or dim not in (0, v.dim() - 1):
        return f"expected dim to be the first or the last of v, but got {dim}"
    for name in ("v", "g"):
        if not given[name].is_contiguous():
            return f"expected {name} to be contiguous, but got the strides {list(given[name].stride())}"
    return elements(given, "g", v.size(dim))


def scales(given: Given) -> str | None:
    """Without output_size the scales determine the result's size; with one they must be consistent with it."""
    sizes = given.get("output_size")
    if sizes is None:
        return None
    x = given["input"] if given.get("self") is None else given["self"]
    found = given.get("scale_factors") or [given.get(f"scales_{axis}") for axis in "dhw"]
    if given.get("scales") is not None:
        found = [given["scales"]]
    for k in range(1, min(len(sizes), len(found), x.dim()) + 1):
        scale = found[-k]
        if scale is not None and (not math.isfinite(scale) or math.floor(scale * x.size(-k)) != sizes[-k]):
            return f"expected scales of {sizes[-k]} elements, but got {scale:g} for {x.size(-k)} elements"
    return None


def segments(given: Given) -> str | None:
    if given["unsafe"]:
        return "expected unsafe to be False"
    return None if given["offsets"] is None else "expected lengths rather than offsets"


def repeats(given: Given) -> str | None:
    """Their sum is the result's size."""
    total = given["repeats"].sum(dtype=torch.float64).item()
    return None if total < 2**53 else f"expected repeats with a sum below 2^53, but got {total:g}"


def samples(given: Given) -> str | None:
    """They are positions of windows, relative to the range of valid positions."""
    x = given["random_samples"]
    is_inside = bool((x.ge(0) & x.lt(1)).all())
    return None if is_inside else "expected random_samples of at least 0 and below 1"


def attention(given: Given) -> str | None:
    key, value = given["key"], given["value"]
    if key.dim() >= 2 and value.dim() >= 2 and key.size(-2) == value.size(-2):
        return None
    shapes = f"{list(key.shape)} and {list(value.shape)}"
    return f"expected key and value of the same length, but got the shapes {shapes}"


def transform(given: Given) -> str | None:
    count, dims = given["self"].dim(), given["dim"]
    for dim in dims:
        if not 0 <= dim < count:
            return f"expected dims of a tensor of {count} dimensions, but got {dim}"
    return None if len(set(dims)) == len(dims) else f"expected each dim once, but got {list(dims)}"


def sampler(given: Given) -> str | None:
    interpolation, padding = given["interpolation_mode"], given["padding_mode"]
    if 0 <= interpolation <= (1 if given["input"].dim() == 5 else 2) and 0 <= padding <= 2:
        return None
    return f"expected modes that torch has, but got interpolation_mode {interpolation} and padding_mode {padding}"


def quotient(given: Given) -> str | None:
    """The smallest integer divided by -1 overflows, which traps on x86."""
    x, divisor = given["self"], given["other"]
    if x.dtype not in (torch.int32, torch.int64) or given["rounding_mode"] != "trunc":
        return None
    is_tensor = isinstance(divisor, torch.Tensor)
    if isinstance(divisor, float) or is_tensor and (divisor.is_floating_point() or divisor.is_complex()):
        return None
    least = torch.iinfo(x.dtype).min
    overflows = x.eq(least) & (divisor.eq(-1) if is_tensor else divisor == -1)
    kind = "Int" if x.dtype == torch.int32 else "Long"
    return f"expected quotients that {kind} holds, but got {least} / -1" if bool(overflows.any()) else None


def packed(given: Given) -> str | None:
    """Packed sequences: batch_sizes must be positive, not increase, and sum to the number of rows."""
    data, sizes = given["data"], given["batch_sizes"]
    fits = sizes.dtype == torch.int64 and sizes.dim() == 1 and sizes.numel() and sizes.is_contiguous()
    if not fits or data.dim() != 2 or not sizes.is_cpu:
        return "expected batch_sizes of one contiguous dimension of int64 on the CPU"
    own = sizes.tolist()
    if own[0] > data.size(0) or own[-1] <= 0 or own != sorted(own, reverse=True):
        return f"expected batch_sizes that are positive and don't increase, but got {own}"
    return None if sum(own) == data.size(0) else f"expected batch_sizes with the sum {data.size(0)}, but got {sum(own)}"


def lstm(given: Given) -> str | None:
    """The sizes of each layer's weights, which oneDNN's kernels don't check."""
    x, states, weights = given["input"], given["hx"], given["params"]
    layers, directions = given["num_layers"], 2 if given["bidirectional"] else 1
    if len(states) != 2 or layers <= 0 or x.dim() != 3:
        return "expected 3 dimensions of input, two states and a layer"
    batch = x.size(0 if given["batch_first"] else 1)
    for state in states:
        if state.dim() != 3 or list(state.shape[:2]) != [layers * directions, batch]:
            wanted = f"({layers * directions}, {batch}, size)"
            return f"expected states of shape {wanted}, but got {list(state.shape)}"
    outputs, hidden = states[0].size(2), states[1].size(2)
    biases = [[4 * hidden]] * 2 if given["has_biases"] else []
    projection = [[outputs, hidden]] if outputs != hidden else []
    first, other = (
        [[4 * hidden, inputs], [4 * hidden, outputs], *biases, *projection]
        for inputs in (x.size(2), directions * outputs)
    )
    if len(weights) != len(first) * layers * directions:
        return f"expected {len(first)} weights for each layer and direction, but got {len(weights)}"
    for k, weight in enumerate(weights):
        expected = (first if k // len(first) < directions else other)[k % len(first)]
        if list(weight.shape) != expected:
            return f"expected weight {k} of shape {expected}, but got {list(weight.shape)}"
    return None


WITHIN = {
    "native_batch_norm": batch_norm,
    "upsample_": scales,
    "fractional_max_pool": samples,
    "grid_sampler": sampler,
}
NAMED = {
    "_weight_norm_interface": weight_norm,
    "segment_reduce": segments,
    "scaled_dot_product_attention": attention,
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), transform),
}


def guard_of(operator: torch._ops.OpOverload) -> Guard | None:
    """None if torch checks everything."""
    space, _, name = operator._schema.name.partition("::")
    overload = operator._schema.overload_name
    if space != "aten":
        return None
    if name == "repeat_interleave" and overload != "self_int":
        return repeats
    if name in ("div", "divide"):
        return quotient if any(each.name == "rounding_mode" for each in operator._schema.arguments) else None
    if name == "lstm" and overload == "input":
        return lstm
    if overload == "data" and (name in ("lstm", "gru") or "rnn_" in name):
        return packed
    return NAMED.get(name) or next((guard for part, guard in WITHIN.items() if part in name), None)


@dataclass(eq=False, repr=False)
class Guarded:
    """An operator with its check. Raises ValueError."""

    operator: torch._ops.OpOverload
    guard: Guard
    __name__: str = "guarded"

    def __call__(self, /, **given: Any) -> Any:
        every = {each.name: each.default_value for each in self.operator._schema.arguments} | given
        if wrong := self.guard(every):
            raise ValueError(f"{self.operator._schema.name}: {wrong}")
        return self.operator(**given)
