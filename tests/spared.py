"""Turns off work of torch at each compilation and seed that no test needs and that takes a third of many tests'
time."""

from __future__ import annotations

import gc
import logging

import torch


def spare_torch_its_diagnostics() -> None:
    # torch.compile writes each graph as JSON if this logger has a handler, and pytest adds one to every logger that
    # does not propagate.
    logging.getLogger("torch.__trace").propagate = True
    if not torch.cuda.is_available():
        # Without devices to seed, torch saves the stack of each call that seeds them.
        torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = lambda seed: None


def spare_dynamo_its_clock() -> None:
    """Dynamo flushes the CPU's caches at each compilation, to measure how long the guards take."""
    from torch._dynamo import guards

    guards.profile_guard_manager = lambda *_: 0.0


def spare_the_collector() -> None:
    """Excludes everything that is alive now from later garbage collections."""
    gc.collect()
    gc.freeze()
