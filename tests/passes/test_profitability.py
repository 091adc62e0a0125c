"""Operators that torch's kernels compute faster alone stay with torch; beside other work they join programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiled import assert_same, compiled, draw
from fourfold.compiler.analysis import profitability
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.passes.decompose import late
from fourfold.compiler.pipeline.record import CapturedGraph, Record
from nests import GENERATORS


def captured(function: Callable[..., Tensor], *arguments: Tensor, **options: object) -> CapturedGraph:
    record = Record()
    torch.testing.assert_close(compiled(function, record, **options)(*arguments), function(*arguments))
    return record.captured[0]


def programs(function: Callable[..., Tensor], *arguments: Tensor, **options: object) -> int:
    return len(captured(function, *arguments, **options).forward.compiled.programs)


X = draw(4, 8, gradient=False)


@pytest.mark.parametrize("function", [torch.relu, torch.neg, lambda x: x + 1, lambda x: x.sum(-1), lambda x: x.half()])
def test_slower_operators_fall_back_alone(function: Callable[[Tensor], Tensor]) -> None:
    assert programs(function, X) == 0
    assert programs(lambda x: function(x).sin(), X) == 1


SQUARE = draw(8, 8, gradient=False)
ROW = draw(1, 8, gradient=False)


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [
        (X, X, 0),
        (X.t(), X.t(), 0),
        (SQUARE, SQUARE.t(), 1),
        (SQUARE.double(), SQUARE.t().double(), 0),
        (SQUARE.int(), SQUARE.int().t(), 1),
        (SQUARE, ROW, 0),
        (SQUARE, ROW.t(), 0),
        (X[:1], X[:, :1].t().repeat(1, 2), 0),  # one row, whose order is that of a column
        (draw(2, 3, 4, gradient=False), draw(2, 4, 3, gradient=False).mT, 1),
        (draw(2, 3, 4, gradient=False), draw(3, 4, gradient=False).expand(2, 3, 4), 0),
    ],
)
def test_tensors_that_lie_in_different_orders_are_read_by_programs(left: Tensor, right: Tensor, count: int) -> None:
    for function, first, second in ((torch.add, left, right), (torch.maximum, right, left)):
        found = [programs(function, first, second, options={"generator": name}) for name in ("interpreter", "llvm")]
        assert found == [0, count]
        assert programs(function, first, second, dynamic=True) == count


MANY = draw(profitability.FEW // 4, 40, gradient=False)


@pytest.mark.parametrize(
    ("x", "count"),
    [
        (MANY[:, ::2], 1),
        (MANY[:, 1:16], 1),
        (MANY[:, 1:17], 0),
        (MANY[:, 1:17].bfloat16(), 0),  # dense
        (MANY.bfloat16()[:, 1:32], 1),
        (MANY.to(torch.uint8)[:, 1:40], 1),
        (MANY.double()[:, 1:5], 0),
        (MANY[:100, ::2], 0),  # few elements
        (MANY.view(-1, 8), 0),
        (MANY[:, :1].expand(-1, 8), 0),
    ],
)
def test_tensors_with_gaps_after_few_elements_are_read_by_programs(x: Tensor, count: int) -> None:
    found = [programs(torch.neg, x, options={"generator": name}) for name in ("interpreter", "llvm")]
    assert found == [0, count]
    assert programs(torch.neg, x, dynamic=True) == count


@pytest.mark.parametrize("function", [torch.exp, torch.sin, torch.tanh, torch.isinf, lambda x: x.std(-1), torch.trunc])
def test_operators_as_fast_as_torch_are_programs_alone(function: Callable[[Tensor], Tensor]) -> None:
    assert programs(function, X) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_products_are_in_programs(dtype: torch.dtype) -> None:
    found = captured(lambda x: ((x * 2 + 1).prod(-1) + 3) * x[:, 0], X.to(dtype))
    members = [node.target for built in found.forward.compiled.programs for node in built.members]
    assert torch.ops.aten.prod.dim_int in members and len(members) >= 4


@pytest.mark.parametrize("function", [torch.exp, torch.sin, torch.sigmoid, lambda x: torch.softmax(x, -1)])
def test_functions_of_float64_are_in_programs(function: Callable[[Tensor], Tensor]) -> None:
    found = captured(lambda x: (function(x * 2 + 1) + 3) * x, X.double())
    assert len(found.forward.compiled.programs) == 1


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fmod(x, 3.0),
        lambda x: torch.remainder(x, 3.0),
        lambda x: torch.floor_divide(x, 3.0),
        lambda x: torch.softmax(x, -1),
        lambda x: F.glu(x),
        lambda x: F.huber_loss(x, x[:1].expand_as(x)),
    ],
)
def test_the_choice_does_not_depend_on_what_runs_programs(function: Callable[[Tensor], Tensor], generator: str) -> None:
    assert programs(function, torch.randn(64, 512), options={"generator": generator}) == 1


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (lambda x: x.abs().amax(0), False),
        (lambda x: torch.softmax(x * 2, 0), False),
        (lambda x: (x * 2).var(0), True),
        (lambda x: (x * 2).sum(0), True),
        (lambda x: x.abs().amax(1), True),
    ],
)
def test_rows_along_other_dimensions_need_loop_nests(function: Callable[[Tensor], Tensor], stays: bool) -> None:
    found = [programs(function, torch.randn(64, 512), options={"generator": name}) for name in ("interpreter", "llvm")]
    assert found == [stays, 1]


def test_losses_of_each_element_fall_back() -> None:
    assert programs(lambda x: F.huber_loss(x, x.new_ones(x.shape), reduction="none"), X) == 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (0, 1, 2)])
def test_a_constant_that_torch_reads_has_its_layout(order: tuple[int, ...], dynamic: bool) -> None:
    x = torch.randn(4, 6, 5).permute(order)
    for function in (lambda x: torch.zeros_like(x) + x, lambda x: torch.full_like(x, 3.0) * 2):
        torch._dynamo.reset()
        assert_same([compiled(function, dynamic=dynamic)(x)], [function(x)])


def test_bytes() -> None:
    x = torch.arange(12, dtype=torch.uint8)
    assert programs(lambda x: x == 3, x) == 0
    assert programs(lambda x: x.float() == 3, x) == 1
    assert programs(lambda x: x == 3, X) == 1


def test_independent_operators() -> None:
    """They read the same tensor, and neither reads the other's result."""
    record = Record()
    two = compiled(lambda x, y: (x * y, x + y), record)(X, X + 1)
    torch.testing.assert_close(two, (X * (X + 1), X + (X + 1)))
    assert not record.captured[0].forward.compiled.programs
    reasons = set(record.captured[0].forward.compiled.refusals.values())
    assert reasons == {"torch's kernel is as fast for mul, add alone"}


def test_of_two_that_read_one_tensor_a_program_stays_for_the_one_that_it_computes_faster() -> None:
    assert programs(lambda x: (x.sin(), x + 1), X) == 1


def test_gelu_of_few_elements_is_a_program() -> None:
    assert programs(torch.nn.functional.gelu, X) == 1
    assert programs(torch.nn.functional.gelu, draw(1, profitability.FEW, gradient=False)) == 0
    assert programs(torch.nn.functional.gelu, X.bfloat16()) == 0


def test_names_in_the_tables_are_operators_that_programs_compute() -> None:
    """With a misspelled name the operator would stay with torch."""
    computed = *POINTWISE, *ROWS, *late()
    targets = [target._schema.name.partition("::")[2] for target in computed]
    overloads = {f"{target._schema.name.partition('::')[2]}.{target._overloadname}" for target in computed}
    formulas = {f"{name}.{way}" for name in ("gelu", "gelu_backward") for way in ("none", "tanh")}
    formulas |= {"pow.products", "huber_loss.reduced", "smooth_l1_loss.reduced"}
    known = {*targets, *overloads, *formulas}
    tables = *profitability.AS_FAST_AS_TORCH.values(), *profitability.SLOW.values()
    assert not set().union(profitability.OF_FEW, *tables) - known
