"""The operators that a call runs, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.profiler import profile


def events(call: Callable, *arguments: Tensor, memory: bool = False) -> list[str]:
    """torch's operators in the second run of a call; with `memory` also the number of memory allocations."""
    call(*arguments)
    with profile(profile_memory=memory) as profiled:
        call(*arguments)
    return [event.name for event in profiled.events() if event.name.startswith(("aten::", "[memory]"))]
