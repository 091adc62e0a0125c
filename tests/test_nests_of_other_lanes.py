"""Nests for vectors of other lengths than this processor's, which LLVM splits or joins: rows in groups and across the
lanes have the bits of rows one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from fourfold import _C
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit.engine import Engine
from fourfold.compiler.nest.jit.service import service
from fourfold.compiler.nest.print.llvm import print_nest
from nests import needs_nests
from program_cases import assert_same_bits
from programs import HEAD

pytestmark = needs_nests

ROWS, GAP = 37, 3
# Without functions of the library, which take this processor's vectors.
TEXT = (
    f"{HEAD}axes a | b\nx: float32 = input {{kind}} [a b]\ny: float32 = input bfloat16 [a 1]\n"
    "w: float32 = input float16 [b]\nt: boolean = input boolean [a 1]\nu: float32 = mul x y\nv: float32 = add u w\n"
    "m: float32 = amax v\nd: float32 = sub v m\ns: float32 = sum d\nf: float64 = sum_float64 d\n"
    "f32: float32 = to_float32 f\nz: float32 = where t f32 s\no: float32 = sub d z\nl: float32 = mul o o\n"
    "r: float32 = sqrt l\np: float32 = div r m\ng: boolean = gt p s\nh: boolean = any g\ni: float32 = prod p\n"
    "j: float32 = where h i z\n"
    "output p {kind} [a b]\noutput d float16 [a b]\noutput j float32 [a]\noutput h boolean [a]\noutput f float64 [a]\n"
    "output g boolean [a b]\n"
)
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def arguments_of(tensors: Sequence[Tensor], strides: Sequence[tuple[int, int]], columns: int) -> ctypes.Array:
    """As cpp/cpu/program/loops.cpp passes them, for one axis of rows."""
    head = [columns if name == "columns" else 0 for name in _C.nest_arguments()]
    numbers = [
        *head,
        *(x.data_ptr() for x in tensors),
        ROWS,
        columns,
        *(s[0] for s in strides),
        *(s[1] for s in strides),
    ]
    return (ctypes.c_int64 * len(numbers))(*numbers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_byte_masks", [False, True])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_rows_of_few_columns(lanes: int, has_byte_masks: bool, kind: str) -> None:
    level, engine = replace(service.level, lanes=lanes, has_byte_masks=has_byte_masks), Engine(service.level)
    program, scratch = read(TEXT.format(kind=kind)), torch.empty(2**20, dtype=torch.uint8)

    def results(layout: str, x: Tensor, others: Sequence[Tensor], columns: int) -> tuple[Tensor, ...]:
        whole, rows = torch.zeros(ROWS, columns), torch.zeros(ROWS)
        made = (whole.to(x.dtype), whole.half(), rows, rows.bool(), rows.double(), whole.bool())
        strides = [(x.stride(0), 1), (1, 0), (0, 1), (1, 0)] + [(y.stride(0), y.dim() - 1) for y in made]
        arguments = arguments_of((x, *others, *made), strides, columns)
        with patch.object(build, "lie_across", lambda *given: True):
            nest = build.build(program, Layout.of(layout), lanes)
        (address,) = engine.load(engine.code(print_nest(nest, level)), [nest.functions[-1].name])
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address)
        for begin, end in ((0, 20), (20, ROWS)):
            call(begin, end, arguments, -(-scratch.data_ptr() // 64) * 64)
        return made

    for columns in (3, 8, 12, 17, 33, 256):
        x = torch.randn(ROWS, columns + GAP).to(KINDS[kind])
        others = (torch.randn(ROWS).bfloat16(), torch.randn(columns).half(), torch.rand(ROWS) > 0.5)
        dense = x[:, :columns].contiguous()
        of_rows = "1,10,01,10,n1,n1,10,10,10,n1"
        expected = results(f"r1:n{of_rows}", dense, others, columns)
        for given in (dense, x):
            assert_same_bits(results(f"r1x{columns}:n{of_rows}", given, others, columns), expected)
            if columns <= 24:
                of_row = "c" if given is dense else "n"
                across = f"s1x{columns}:{of_row}{of_rows.replace('n', 'c')}"
                assert_same_bits(results(across, given, others, columns), expected)
