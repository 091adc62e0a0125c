"""The dtypes that programs read and write, and the types that they compute in: cpp/ops/kind.h has the list."""

from __future__ import annotations

import torch

from fourfold import _C

BOOLEAN, INT32, INT64, FLOAT32, FLOAT64 = "boolean", "int32", "int64", "float32", "float64"
FLOATING, INTEGERS = (FLOAT32, FLOAT64), (INT32, INT64)

# By dtype: its name in a program, and the type in which its values are computed.
DTYPES = {getattr(torch, name): (kind, type) for name, kind, type, *_ in _C.dtypes()}
KINDS = {dtype: kind for dtype, (kind, _) in DTYPES.items()}
TYPES = {dtype: type for dtype, (_, type) in DTYPES.items()}
# By dtype: the number of torch's ScalarType.
NUMBERS = {getattr(torch, name): number for name, _, _, number, _ in _C.dtypes()}
# By dtype: the operation that wraps or rounds a value of the computed type to the dtype.
NARROW = {dtype: f"to_{kind}" for dtype, (kind, type) in DTYPES.items() if type == INT32 != kind}
ROUNDED = {dtype: f"to_{kind}" for dtype, (kind, type) in DTYPES.items() if type == FLOAT32 != kind}


def rounded(number: float, dtype: torch.dtype) -> float:
    """The nearest number that a dtype of low precision holds."""
    return torch.tensor(number, dtype=torch.float32).to(dtype).item()


def statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """The dtype of the mean and the reciprocal deviation that torch's batch norm of x saves. In traces it is x's
    dtype."""
    is_mixed = any(each is not None and each.dtype != x.dtype for each in parameters)
    return torch.float32 if is_mixed else x.dtype
