"""Loop nests of rows that are side by side in memory: a vector holds one column of many rows."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
from compiled import compiled, programs_of
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir import reading
from fourfold.compiler.nest.ir.layout import SIDE_BY_SIDE, Layout
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nest.print import c
from fourfold.compiler.pipeline.calling import Program
from fourfold.compiler.pipeline.record import Record
from nests import OF_CHANNELS, drawn, expect_the_interpreters_bits, needs_nests
from programs import HEAD

pytestmark = needs_nests

INTEGERS = (
    f"{HEAD}axes r=x.1 | c=x.0\nx: int64 = input int64 [c r]\ny: int32 = input uint8 [c r]\ns: int64 = sum x\n"
    "m: int32 = amax y\nt: int64 = to_int64 m\nq: int64 = mul x t\np: int64 = sub q s\noutput p int64 [c r]\n"
    "output s int64 [r]\n"
)
SHAPES = [(3, 2, 16), (1, 17, 70), (2, 64, 33), (2, 65, 16), (1, 300, 40), (2, 5000, 17), (40, 33, 129)]


def layouts_of(text: str, inputs: tuple[object, ...]) -> list[str]:
    """The layouts for which nests are built."""
    found = []
    own = build.build
    with mock.patch.object(
        build, "build", lambda program, layout, lanes: found.append(layout) or own(program, layout, lanes)
    ):
        Program(text + "\n", "layouts", service.number("llvm"))(*inputs)
    return [layout.split for layout in found]


def inputs_of(shape: tuple[int, int, int], special: bool = False) -> tuple[object, ...]:
    n, c, r = shape
    x, y = drawn(shape, torch.float32, special), drawn(shape, torch.bfloat16, special)
    return x, y, drawn((c, 1), torch.float32, special), drawn((n, 1, r), torch.float16, special), 0.5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_give_the_interpreters_bits(shape: tuple[int, int, int], threads: int) -> None:
    torch.set_num_threads(threads)
    expect_the_interpreters_bits(OF_CHANNELS, inputs_of(shape))
    expect_the_interpreters_bits(OF_CHANNELS, inputs_of(shape, special=True))
    x, *others = inputs_of(shape)
    expect_the_interpreters_bits(OF_CHANNELS, (x[:, :1].expand(shape), *others))
    expect_the_interpreters_bits(OF_CHANNELS, (x[..., :1].expand(shape), *others))
    n, c, r = shape
    expect_the_interpreters_bits(OF_CHANNELS, (torch.randn(n, c, r + 3)[..., 3:], *others))
    expect_the_interpreters_bits(OF_CHANNELS, (torch.randn(n, 2 * c, r)[:, ::2], *others))
    expect_the_interpreters_bits(INTEGERS, (drawn((c, r), torch.int64, False), drawn((c, r), torch.uint8, False)))


WIDE = (
    f"{HEAD}axes a=x.0 c=x.2 | b=x.1\nx: float32 = input float32 [a b c]\nw: float32 = input float32 [b]\n"
    "y: float32 = mul x w\nx64: float64 = to_float64 x\ns: float64 = sum_float64 y\nq: float32 = to_float32 s\n"
    "z: float32 = sub x q\nz64: float64 = to_float64 z\np: float64 = div z64 x64\nv: float64 = mul z64 p\n"
    "t: float64 = sum v\nu: float64 = mul z64 t\noutput u float64 [a b c]\noutput s float64 [a c]\n"
)


@pytest.mark.parametrize("columns", [2, 15, 16, 17, 63, 64, 65, 100, 128, 129, 1025])
def test_wide_sums_of_few_and_of_many_columns(columns: int) -> None:
    for rows in (16, 33, 81):
        x, w = drawn((2, columns, rows), torch.float32, False), drawn((columns,), torch.float32, False)
        expect_the_interpreters_bits(WIDE, (x, w))
        expect_the_interpreters_bits(WIDE, (torch.randn(2, 2 * columns, rows)[:, ::2], w))


def test_wide_sums_of_few_columns_are_in_registers() -> None:
    """Without the loop that clears places in memory."""

    def lanes(few: str) -> str:
        return c.print_nest(build.build(reading.read(WIDE), Layout.of(f"b2{few}:n1n,00n,n1n,n10"), 8))

    assert "lane < " in lanes("f")
    assert "lane < " not in lanes("")


def test_which_rows_are_computed_so() -> None:
    torch.set_num_threads(1)
    x, *others = inputs_of((3, 40, 50))
    assert layouts_of(OF_CHANNELS, (x, *others)) == [SIDE_BY_SIDE]
    assert SIDE_BY_SIDE not in layouts_of(
        OF_CHANNELS + "\n\n", (x.transpose(1, 2).contiguous().transpose(1, 2), *others)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True) + 1e-5) * w,
        lambda x, w: F.cosine_similarity(x, x * 2 + 1, dim=1),
        lambda x, w: F.normalize(x * w, dim=1),
        lambda x, w: torch.softmax(x * 2, 1),
        lambda x, w: (x - x.mean(0)) / (x.std(0) + 1e-3),
        lambda x, w: torch.logsumexp(x + w, 1),
        lambda x, w: (x * x).sum((0, 1)) * x.amax(1, keepdim=True),
    ],
)
def test_functions_of_channels(function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.randn(5, 24, 6, 7, dtype=torch.float64).to(dtype)
    w = torch.randn(24, 1, 1, dtype=torch.float64).to(dtype)

    def both(call: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        own = x.clone().requires_grad_(), w.clone().requires_grad_()
        result = call(*own)
        ones = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(dtype)
        return result.detach(), *torch.autograd.grad(result, own, ones, allow_unused=True)

    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-4)
    compiled = torch.compile(function, backend="fourfold", options={"generator": "llvm"})
    for got, expected in zip(both(compiled), both(function), strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert not service.service.failures


def test_a_norm_over_channels_is_one_program() -> None:
    def norm(x: Tensor) -> Tensor:
        return torch.relu((x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True) + 1e-5))

    (graph,) = fourfold.explain(norm, torch.randn(5, 24, 6, 7)).graphs
    assert len(graph.forward.programs) == 1 and not graph.forward.outside


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "programs"),
    [
        (lambda x: torch.softmax(x, 1), (3, 64, 8, 8), torch.float32, 1),
        (lambda x: torch.softmax(x, 1), (3, 63, 8, 8), torch.float32, 0),
        (lambda x: torch.softmax(x, 1), (3, 64, 7, 9), torch.bfloat16, 0),
        (lambda x: x.amax(0), (64, 64), torch.float32, 0),
        (lambda x: x.amax(0), (64, 64), torch.bfloat16, 1),
        (lambda x: x.var(0), (17, 17), torch.float32, 1),
    ],
)
def test_reductions_that_are_programs_alone(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype, programs: int
) -> None:
    """Some only if there are many rows and columns."""
    (graph,) = fourfold.explain(function, torch.randn(shape, dtype=dtype)).graphs
    assert len(graph.forward.programs) == programs


def test_the_reason_why_torch_computes_a_sum_over_rows() -> None:
    (graph,) = fourfold.explain(lambda x: x.sum(0) * 2, torch.randn(300, 400)).graphs
    (of_sum, of_product) = graph.forward.outside
    assert of_sum.reason == "torch's kernel is as fast for a sum over the outermost dimensions"
    assert of_product.reason == "torch's kernel is as fast for mul alone"


def test_the_sums_for_a_norms_parameters_belong_to_its_backwards_program() -> None:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.layer_norm(x, (40,), w, b))

    drawn_now = torch.randn(30, 40), torch.randn(40), torch.randn(40)
    (graph,) = fourfold.explain(norm, *(x.requires_grad_() for x in drawn_now)).graphs
    assert len(graph.backward.programs) == 1 and not graph.backward.outside


def test_sums_of_columns_that_have_a_mean_are_in_its_program() -> None:
    def correlation(x: Tensor, y: Tensor) -> Tensor:
        x, y = x - x.mean(0), y - y.mean(0)
        return (x * y).sum(0) / ((x * x).sum(0) * (y * y).sum(0)).sqrt()

    x, y = drawn((200, 50), torch.float32, False), drawn((200, 50), torch.float32, False)
    record = Record()
    call = compiled(correlation, record, options={"generator": "llvm"})
    with torch.no_grad():
        torch.testing.assert_close(call(x, y), correlation(x, y))
    (captured,) = record.captured
    assert programs_of(record) == 1
    assert not any(
        node.target is torch.ops.aten.sum.dim_IntList for node in captured.forward.compiled.module.graph.nodes
    )
