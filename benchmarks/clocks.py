"""What takes the time of a row's calls: on the CPU the host's clock, on a GPU events, with its cache overwritten."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes marks before and after work, on the device that does it; what lies between them is read at the end."""

    graphs: bool  # whether the device's work can be captured in CUDA graphs

    def mark(self) -> Any: ...

    def seconds(self, pairs: Sequence[tuple[Any, Any]]) -> float:
        """The sum over all pairs of marks."""

    def flush(self) -> None:
        """Leave nothing of the contenders' data in the device's cache."""

    def settle(self) -> None:
        """Let every contender start alike: nothing in flight, nothing in the device's cache."""


class HostClock:
    """For the CPU, where a call returns when its work is done. Nothing is flushed: rows there are warm."""

    graphs = False
    mark = staticmethod(time.perf_counter)

    def seconds(self, pairs: Sequence[tuple[float, float]]) -> float:
        return sum(end - start for start, end in pairs)

    def flush(self) -> None: ...

    def settle(self) -> None: ...


class EventClock:
    """For a GPU, whose work goes on after a call has returned: events in the current stream."""

    graphs = True

    def __init__(self, device: torch.device):
        # Large enough, too, that the host queues a whole call while the GPU still writes it.
        size = max(4 * torch.cuda.get_device_properties(device).L2_cache_size, 2**28)
        self.scratch = torch.empty(size, dtype=torch.uint8, device=device)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, pairs: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
        torch.cuda.synchronize()
        return sum(start.elapsed_time(end) for start, end in pairs) * 1e-3

    def flush(self) -> None:
        self.scratch.zero_()

    def settle(self) -> None:
        self.flush()
        torch.cuda.synchronize()


def clock_for(device: torch.device) -> Clock:
    return EventClock(device) if device.type == "cuda" else HostClock()


def seconds_per_call(clock: Clock, call: Callable[[], Any], iterations: int, cold: bool = False) -> float:
    """Calls one after the other between two marks, or, cold, each between its own two after a flush."""
    clock.settle()
    if not cold:
        start = clock.mark()
        for _ in range(iterations):
            call()
        return clock.seconds([(start, clock.mark())]) / iterations
    pairs = []
    for _ in range(iterations):
        clock.flush()
        start = clock.mark()
        call()
        pairs.append((start, clock.mark()))
    return clock.seconds(pairs) / iterations
