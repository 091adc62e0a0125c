"""Programs that read parts of tensors: an axis from an index on, or one index of a dimension."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fourfold
from compiled import compiled
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit import service
from fourfold.compiler.pipeline.calling import Program
from nests import GENERATORS, compiled_so_far, needs_nests, without_sizes
from operator_events import events
from programs import HEAD, PATHS

STENCIL = (
    f"{HEAD}axes a=4 b=5\nx: float32 = input float32 [a+1 b+2 @3]\ny: float32 = input float32 [b+0 a+6]\n"
    "z: float32 = input float32 [@1 b]\nn: float32 = input float32 [@2]\nd: float32 = sub x y\ne: float32 = mul d z\n"
    "f: float32 = add e n\noutput f float32 [a b]\n"
)
ROWS = (
    f"{HEAD}axes a=9 | b=6\nx: float32 = input float32 [a+2 b+3]\nw: float32 = input float32 [@4 b+1]\n"
    "r: float32 = input float32 [a+1 @5]\nm: float32 = amax x\nd: float32 = sub x m\nk: float32 = mul d w\n"
    "s: float32 = sum k\nt: float32 = mul s r\noutput t float32 [a]\noutput k float32 [a b]\ncolumn_sum d float32 [b]\n"
)
LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    lambda x: x.repeat_interleave(2, -1)[..., ::2],
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_elements(layout: Callable[[Tensor], Tensor]) -> None:
    x, y, z, n = map(layout, (torch.randn(5, 7, 4), torch.randn(5, 11), torch.randn(2, 5), torch.randn(3)))
    expected = (x[1:, 2:, 3] - y[:, 6:10].t()) * z[1] + n[2]
    for path in PATHS:
        program = path(STENCIL)
        for _ in range(3):
            torch.testing.assert_close(program(x, y, z, n), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_rows(layout: Callable[[Tensor], Tensor]) -> None:
    x, w, r = map(layout, (torch.randn(12, 9), torch.randn(5, 8), torch.randn(10, 6)))
    part = x[2:11, 3:]
    d = part - part.amax(1, keepdim=True)
    k = d * w[4, 1:7]
    for path in PATHS:
        program = path(ROWS)
        for _ in range(3):
            found = program(x, w, r)
            for mine, expected in zip(found, (k.sum(1) * r[1:, 5], k, d.sum(0)), strict=True):
                torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 7, 4), "expected dimension 0 of x to have at least size 5, but got 4"),
        ((5, 6, 4), "expected dimension 1 of x to have at least size 7, but got 6"),
        ((5, 7, 3), "expected dimension 2 of x to have at least size 4, but got 3"),
    ],
)
def test_parts_that_a_tensor_lacks(shape: tuple[int, ...], message: str) -> None:
    given = torch.randn(shape), torch.randn(5, 11), torch.randn(2, 5), torch.randn(3)
    for path in PATHS:
        with pytest.raises(ValueError, match=f"program: {message}"):
            path(STENCIL)(*given)


def test_a_text_is_read_as_it_is_written() -> None:
    for text in (STENCIL, ROWS):
        assert [each.starts for each in read(text).inputs] == [each.starts for each in read(read(text).text()).inputs]
    assert read(STENCIL).inputs[0].starts == (1, 2, 3) and read(ROWS).inputs[1].starts == (4, 1)


@needs_nests
def test_a_nest_serves_every_part() -> None:
    """Steps of a loop that read x[:, 0], x[:, 1], … share one."""
    x, before = torch.randn(400, 9), compiled_so_far()
    for k in range(9):
        text = f"{HEAD}axes a=400\nx: float32 = input float32 [a @{k}]\ny: float32 = exp x\noutput y float32 [a]\n"
        program = Program(text, "part", service.number("llvm"))
        assert torch.equal(program(x), program(x)) and fourfold.wait_for_nests(60)
        torch.testing.assert_close(program(x), x[:, k].exp())
        assert without_sizes(text).splitlines()[2] == "x: float32 = input float32 [a 1]"
    assert compiled_so_far() == before + 1


def neighbours(x: Tensor) -> Tensor:
    return (x[:, 1:-1, 2:] - x[:, 1:-1, :-2]).abs() + x[:, 2:, 1:-1] * x[:, 1:-1, 1:-1]


def gates(x: Tensor) -> Tensor:
    a, b, c = x.chunk(3, 1)
    first, second, *_ = x.unbind(1)
    return a.sigmoid() * b.tanh() + c * (first.sin() * second)[:, None]


def of_views(x: Tensor) -> Tensor:
    return x.permute(2, 0, 1)[1:, :, 2].exp() * x[..., 0, :, None][:, 1:].squeeze(-1).t()


def of_rows_apart(x: Tensor) -> Tensor:
    return torch.softmax(x[..., 3:7] * 2, -1) + x[..., 1:2]


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("function", [neighbours, gates, of_views, of_rows_apart])
def test_slices_of_a_functions_inputs(function: Callable[[Tensor], Tensor], generator: str) -> None:
    """No operator slices or selects. Also of tensors in other layouts, and with gradients."""
    call = compiled(function, options={"generator": generator})
    assert not {"aten::slice", "aten::select", "aten::unbind", "aten::split"} & set(events(call, torch.randn(6, 9, 12)))
    for x in (torch.randn(6, 9, 12), torch.randn(12, 9, 6).permute(2, 1, 0), torch.randn(6, 18, 12)[:, ::2]):
        torch.testing.assert_close(call(x), function(x))
        given, own = x.clone().requires_grad_(), x.clone().requires_grad_()
        call(given).square().sum().backward()
        function(own).square().sum().backward()
        torch.testing.assert_close(given.grad, own.grad)


def test_sizes_that_change() -> None:
    call = compiled(gates, dynamic=True)
    for rows, steps in ((5, 9), (7, 9), (1, 3), (4, 6)):
        x = torch.randn(rows, steps, 10)
        torch.testing.assert_close(call(x), gates(x))


def test_a_tensor_is_not_overwritten_while_its_parts_are_read() -> None:
    def shift(x: Tensor) -> None:
        x.copy_(torch.cat([x[1:] * 2, x[:1] + 1]))

    x, expected = torch.randn(300, 7), None
    expected = x.clone()
    call = compiled(shift)
    for _ in range(3):
        call(x)
        shift(expected)
        torch.testing.assert_close(x, expected)


def test_what_explain_shows() -> None:
    """The program reads parts of its input, and their bytes are counted, at most those of the whole."""
    x = torch.randn(6, 9, 12)
    half = fourfold.explain(of_rows_apart, x).graphs[0].forward
    (program,) = half.programs
    assert " [a b c+3]" in program.text and " [a b @1]" in program.text
    assert program.bytes == half.bytes_after == 4 * 6 * 9 * (4 + 1 + 4)
    half = fourfold.explain(neighbours, x).graphs[0].forward
    assert half.bytes_after == 4 * (6 * 9 * 12 + 6 * 7 * 10)
