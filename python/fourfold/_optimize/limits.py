"""The sizes up to which fourfold's layers should be faster than torch.nn's, for fourfold.optimize."""

from typing import NamedTuple

import torch

from fourfold.operators._check import has_kernel


class Limits(NamedTuple):
    hidden_size: int  # of an LSTM, a GRU or their cells
    stack_weights: int  # of all layers of a stack; above it the vendor's products take most of the time


# On a CPU float16 is computed in float32: correct, but no faster than torch.
LIMITS = {
    torch.float32: Limits(hidden_size=1024, stack_weights=1 << 16),
    torch.float64: Limits(hidden_size=512, stack_weights=1 << 15),
    torch.bfloat16: Limits(hidden_size=1024, stack_weights=1 << 14),
    torch.float16: Limits(hidden_size=0, stack_weights=0),
}


def over_limits(dtype: torch.dtype, what: str, size: int) -> str | None:
    """Why a layer's hidden_size, or a stack's number of weights, is not faster; None if it is."""
    if dtype not in LIMITS:
        return f"its parameters are of dtype {dtype}"
    limits = LIMITS[dtype]
    most = limits.hidden_size if what == "hidden_size" else limits.stack_weights
    if size <= most:
        return None
    if most == 0:
        return f"fourfold is no faster in {dtype}"
    return f"{what} {size} is above {most}, the largest that is faster in {dtype}"


def why_no_kernel(op: str, weight: torch.Tensor) -> str | None:
    if has_kernel(op, weight.device):
        return None
    return f"this build of fourfold has no kernel for device {weight.device.type}"
