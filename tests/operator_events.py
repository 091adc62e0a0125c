"""What a call runs, as torch's profiler tells it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.profiler import profile


def events(call: Callable, *arguments: Tensor, memory: bool = False) -> list[str]:
    """torch's operators that a call runs the second time; with `memory` also how often memory is allocated."""
    call(*arguments)
    with profile(profile_memory=memory) as profiled:
        call(*arguments)
    return [event.name for event in profiled.events() if event.name.startswith(("aten::", "[memory]"))]
