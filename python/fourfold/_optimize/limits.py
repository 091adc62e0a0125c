"""Up to which sizes fourfold's layers are meant to be faster than torch.nn's: what fourfold.optimize goes by."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Limits(NamedTuple):
    hidden_size: int  # of an LSTM, a GRU or their cells
    stack_weights: int  # of all layers of a stack together: above, products take the time, and they are the vendor's


# float16 is computed in float32 on a CPU: right, but no faster than torch.
LIMITS = {
    torch.float32: Limits(hidden_size=1024, stack_weights=1 << 16),
    torch.float64: Limits(hidden_size=512, stack_weights=1 << 15),
    torch.bfloat16: Limits(hidden_size=1024, stack_weights=1 << 14),
    torch.float16: Limits(hidden_size=0, stack_weights=0),
}
