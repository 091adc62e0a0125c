"""Measuring: what the demo and the benchmarks share."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

NOISY_LOAD = 0.3


def with_float64(tensor_or_module: Any) -> Any:
    """Converts to float64; from Apple's GPUs, which don't have it, on the CPU."""
    tensors = [tensor_or_module] if isinstance(tensor_or_module, torch.Tensor) else tensor_or_module.parameters()
    if any(tensor.device.type == "mps" for tensor in tensors):
        tensor_or_module = tensor_or_module.cpu()  # first: Metal can't convert either
    return tensor_or_module.double()


def synchronize(device: torch.device) -> None:
    """Waits for a device's work; on the CPU calls are synchronous."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextlib.contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Runs with this many intra-op threads, then restores the previous number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_average() -> float | None:
    """The machine's load average of the last minute; None on a system without one."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def is_noisy(load: float | None) -> bool:
    return load is not None and load > NOISY_LOAD
