"""What a benchmark computes in: the dtype of tensors, autocast, whether a GPU may round factors of products to TF32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Precision:
    name: str  # as the command line spells it
    words: str  # as a table's heading does
    dtype: torch.dtype
    tf32: bool = False
    autocast: torch.dtype | None = None  # what the tensors of ``dtype`` are cast to

    @property
    def unit(self) -> float:
        """Half the distance of neighbouring numbers near 1, of the numbers that products are made of: of the 23 bits
        behind the point TF32 keeps 10."""
        return 2.0**-11 if self.tf32 else torch.finfo(self.products).eps / 2

    @property
    def products(self) -> torch.dtype:
        return self.autocast or self.dtype

    def under_autocast(self, call: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        """The call as a training loop makes it: each enters autocast anew, so that no cast weight outlives it."""
        if self.autocast is None:
            return call

        def cast(*inputs: Any) -> Any:
            with torch.autocast(device.type, self.autocast):
                return call(*inputs)

        return cast

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """torch's settings for it, then what they were before.

        By torch's older names: Inductor reads those, and after use of the newer ones reading them is an error.
        """
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = self.tf32
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before


FLOAT32 = Precision("float32", "float32", torch.float32)
PRECISIONS = {
    precision.name: precision
    for precision in (
        FLOAT32,
        Precision("tf32", "float32 with TF32 products", torch.float32, tf32=True),
        Precision("bfloat16", "bfloat16", torch.bfloat16),
        Precision("float16", "float16", torch.float16),
        Precision("autocast", "bfloat16 autocast", torch.float32, autocast=torch.bfloat16),
    )
}

ON_GPU = ("float32", "tf32", "bfloat16", "float16")  # what a GPU is timed in where nothing is asked for
