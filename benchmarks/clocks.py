"""What takes the time of a row's calls: events, and on a GPU a cache that is overwritten before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import fourfold
from fourfold.cli.timing import synchronize

MANY_BYTES = 2**28  # more than caches hold, and long enough to write that the host meanwhile queues a whole call


class Clock:
    """Takes marks before and after work, on the device that does it; what lies between them is read at the end. Nothing
    is flushed on the CPU: rows there are warm."""

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self.graphs = self.device.type == "cuda"  # whether the device's work can be captured in CUDA graphs
        self.scratch = None if self.device.type == "cpu" else scratch(self.device)
        self.events: list[fourfold.Event] = []  # made once: making one takes longer than recording it
        self.marks = 0

    def mark(self) -> fourfold.Event:
        """Good until the next settle()."""
        if self.marks == len(self.events):
            self.events.append(fourfold.Event(self.device))
        event = self.events[self.marks]
        self.marks += 1
        event.record()
        return event

    def seconds(self, pairs: Sequence[tuple[fourfold.Event, fourfold.Event]]) -> float:
        """The sum over all pairs of marks."""
        synchronize(self.device)
        return sum(start.elapsed_time(end) for start, end in pairs) * 1e-3

    def flush(self) -> None:
        """Leave nothing of the contenders' data in the device's cache."""
        if self.scratch is not None:
            self.scratch.zero_()

    def settle(self) -> None:
        """Let every contender start alike: nothing in flight, nothing in the device's cache."""
        self.marks = 0
        self.flush()
        synchronize(self.device)


def scratch(device: torch.device) -> torch.Tensor:
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return torch.empty(max(4 * cache, MANY_BYTES), dtype=torch.uint8, device=device)


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
