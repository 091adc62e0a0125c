"""The dtypes that programs read and write, and the types that they compute in (cpp/ops/kind.h)."""

from __future__ import annotations

import torch

BOOLEAN, INT32, INT64, FLOAT32, FLOAT64 = "boolean", "int32", "int64", "float32", "float64"
FLOATING, INTEGERS = (FLOAT32, FLOAT64), (INT32, INT64)

# Of each dtype, its name in a program and the type that its values are computed in.
DTYPES = {
    torch.bool: (BOOLEAN, BOOLEAN),
    torch.uint8: ("uint8", INT32),
    torch.int8: ("int8", INT32),
    torch.int16: ("int16", INT32),
    torch.int32: (INT32, INT32),
    torch.int64: (INT64, INT64),
    torch.float16: ("float16", FLOAT32),
    torch.bfloat16: ("bfloat16", FLOAT32),
    torch.float32: (FLOAT32, FLOAT32),
    torch.float64: (FLOAT64, FLOAT64),
}
KINDS = {dtype: kind for dtype, (kind, _) in DTYPES.items()}
TYPES = {dtype: type for dtype, (_, type) in DTYPES.items()}
# Operations that bring a value of the computed type into the range, or the precision, of the dtype.
NARROW = {dtype: f"to_{kind}" for dtype, (kind, type) in DTYPES.items() if type == INT32 != kind}
ROUNDED = {dtype: f"to_{kind}" for dtype, (kind, type) in DTYPES.items() if type == FLOAT32 != kind}
