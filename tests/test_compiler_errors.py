"""Calls for which torch's operators raise an error: compiled functions raise the same error instead of computing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from compiled import compiled

pytestmark = pytest.mark.usefixtures("strict")

# torch traces these for any dim; its kernels check it.
UNCHECKED: dict[str, Callable] = {
    "softmax": lambda x, dim: F.softmax(x * 2, dim) * 3,
    "softmin": lambda x, dim: F.softmin(x * 2, dim) * 3,
    "log_softmax": lambda x, dim: F.log_softmax(x * 2, dim) * 3,
    "gumbel_softmax": lambda x, dim: F.gumbel_softmax(x, dim=dim),
    "safe_softmax": lambda x, dim: torch.ops.aten._safe_softmax(x * 2, dim),
    "module": lambda x, dim: nn.Softmax(dim)(x),
    "with a dtype": lambda x, dim: torch.softmax(x, dim, dtype=torch.float64),
}


@pytest.mark.usefixtures("in_programs")
@pytest.mark.parametrize("dim", [5, -3])
@pytest.mark.parametrize("name", UNCHECKED)
def test_a_dimension_out_of_range(name: str, dim: int) -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        compiled(UNCHECKED[name])(torch.randn(3, 4), dim)


@pytest.mark.parametrize("dim", [0, -1])
def test_a_softmax_of_one_number(dim: int) -> None:
    for function in (F.softmax, F.log_softmax):
        x = torch.tensor(3.0)
        assert compiled(function)(x, dim).equal(function(x, dim))
