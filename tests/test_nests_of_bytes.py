"""Loop nests whose tensors are all of bytes have twice as many lanes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiled import compiled
from fourfold.compiler.nest.cpu.build import build
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.reading import read
from nests import needs_nests

pytestmark = needs_nests
OF_BYTES = """fourfold program 1
axes a=100
x: int32 = input uint8 [a]
v1: int32 = constant 10
v2: int32 = add x v1
v3: int32 = to_uint8 v2
output v3 uint8 [a]
"""
FUNCTIONS = {
    "wraps": lambda x: (x + 200) & 127,
    "compares": lambda x: torch.maximum(x * 3, x + 1) >> 1,
    "to bool": lambda x: (x > 10) & (x < 100),
}


@pytest.mark.parametrize(
    ("text", "layout", "lanes"),
    [
        (OF_BYTES, "e0:1,1", 16),
        (OF_BYTES, "e0:n1,n1", 8),
        (OF_BYTES.replace("output v3 uint8", "output v3 int32"), "e0:1,1", 8),
    ],
    ids=["bytes", "two axes", "one of 32 bits"],
)
def test_lanes(text: str, layout: str, lanes: int) -> None:
    assert build(read(text), Layout.of(layout), 8).lanes == lanes


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_any_number_of_elements(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    ours = compiled(function, options={"generator": "llvm"}, dynamic=True)
    for count in (*range(2, 70, 7), 1000, 5001):
        x = (torch.arange(count) * 37 % 256).to(dtype)
        assert torch.equal(ours(x), function(x))
