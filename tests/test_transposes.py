"""The transposes that loop nests call for tensors whose dimensions lie in another order."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch

from fourfold import _C

ARGUMENTS = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 3)
COUNTS = (*range(1, 35), 100)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_size_and_nothing_beside_it(dtype: torch.dtype) -> None:
    """Squares in registers overlap at the ends of rows and columns; other elements stay."""
    transpose = ctypes.CFUNCTYPE(None, *ARGUMENTS)(_C.transpose_tile())
    size = torch.empty(0, dtype=dtype).element_size()
    for rows, columns in itertools.product(COUNTS, COUNTS):
        for from_step, to_step in ((rows, columns), (rows + 3, columns + 5)):
            given = torch.randint(100, (columns * from_step,)).to(dtype)
            found = torch.full((rows * to_step + 64,), 111).to(dtype)
            expected = found.clone()
            source = torch.as_strided(given, (rows, columns), (1, from_step))
            torch.as_strided(expected, (rows, columns), (to_step, 1)).copy_(source)
            transpose(size, given.data_ptr(), from_step, found.data_ptr(), to_step, rows, columns)
            assert torch.equal(found, expected), (rows, columns)
