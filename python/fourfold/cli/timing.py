"""What the demo and the benchmarks need of the machine that they measure."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

NOISY_LOAD = 0.3


def with_float64(tensor_or_module: Any) -> Any:
    """The same in float64, which Apple's GPUs don't have: from there, on the CPU."""
    tensors = [tensor_or_module] if isinstance(tensor_or_module, torch.Tensor) else tensor_or_module.parameters()
    if any(tensor.device.type == "mps" for tensor in tensors):
        tensor_or_module = tensor_or_module.cpu()  # first: Metal can't convert either
    return tensor_or_module.double()


def synchronize(device: torch.device) -> None:
    """Wait for what runs on a device; on the CPU a call returns when its work is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextlib.contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Run with so many intra-op threads, then with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_average() -> float | None:
    """Of the last minute, for the whole machine; None on a system that doesn't keep it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def is_noisy(load: float | None) -> bool:
    return load is not None and load > NOISY_LOAD
