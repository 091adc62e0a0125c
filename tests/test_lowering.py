"""Lowering formulas: which arguments they get, and whether as values or constants."""

from __future__ import annotations

import pytest
import torch

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32
from fourfold.compiler.ir.values import Axis, Number, Program, Value
from fourfold.compiler.lowering import POINTWISE, ROWS, Call, Operand
from fourfold.compiler.lowering.call import Argument, Rounded, Truth, lowered

aten = torch.ops.aten


def operand(program: Program, name: str, dtype: torch.dtype) -> Operand:
    return Operand(program.input(name, dtype, ((0,),)), torch.empty(3, dtype=dtype))


@pytest.fixture
def call() -> Call:
    return Call(Program(axes=[Axis("a", "3")]), torch.float32)


def test_values_are_of_the_results_dtype_and_so_is_the_result(call: Call) -> None:
    seen: list[object] = []

    def formula(x: Value, y: Value, alpha: Number) -> Value:
        seen.extend((x, y, alpha))
        return x < y

    n, x = operand(call.program, "n", torch.int32), operand(call.program, "x", torch.float32)
    result = lowered(formula, aten.add.Tensor, "Value")(call, n, x)
    assert seen == [n.value.to(FLOAT32), x.value, 1]  # alpha's default comes from the schema
    assert result is (seen[0] < seen[1]).to(FLOAT32)


def test_a_number_is_a_constant_of_the_results_type_or_stays_as_it_is(call: Call) -> None:
    x = operand(call.program, "x", torch.float32)
    scaled = lowered(lambda x, alpha: x * alpha, aten.add.Tensor, "Value")
    assert scaled(call, x, x, alpha=2) is x.value * 2
    given = Operand(call.program.number("s", "float64"), 0.5)
    taken: list[object] = []

    def formula(x: Value, alpha: Number) -> Value:
        taken.append(alpha)
        return x * alpha

    assert lowered(formula, aten.add.Tensor, "Value")(call, x, x, alpha=given) is x.value * given.value.to(FLOAT32)
    assert taken == [given.value.to(FLOAT32)]  # an argument given at each call is a value


def test_rounded_truth_and_arguments_as_they_are() -> None:
    call = Call(Program(axes=[Axis("a", "3")]), torch.bfloat16)
    x = operand(call.program, "x", torch.bfloat16)
    computed = Operand(x.value * 3, x.fake)
    seen: list[object] = []

    def formula(call: Call, a: Rounded, b: Truth, c: Argument) -> Value:
        seen.extend((a, b, c))
        return a

    lowered(formula, aten.lerp.Tensor, "Value")(call, computed, computed, x)
    assert [seen[0].op, seen[1].op, seen[1].type] == ["to_bfloat16", "to_boolean", BOOLEAN]
    assert seen[2] is x
    lowered(formula, aten.lerp.Tensor, "Value")(call, x, x, x)
    assert seen[3] is x.value  # inputs are already rounded


def test_an_argument_is_found_by_its_name_or_else_by_its_position(call: Call) -> None:
    x, low = operand(call.program, "x", torch.float32), operand(call.program, "low", torch.float32)
    assert POINTWISE[aten.clamp_max.Tensor](call, x, low).op == "minimum"
    assert POINTWISE[aten.clamp_min.Tensor](call, x, low).op == "maximum"
    with pytest.raises(TypeError, match="expected an argument weight of aten.neg.default, but got \\['self'\\]"):
        lowered(lambda x, weight: x * weight, aten.neg.default, "Value")


def test_reduced_dimensions_and_results_follow_from_the_schema() -> None:
    x = object()
    assert ROWS[aten.sum.default].dims(x) is None
    assert ROWS[aten.sum.dim_IntList].dims(x, [1], True) == [1]
    assert ROWS[aten.sum.dim_IntList].results(x, [1], True) == ("keep",)
    assert ROWS[aten.var_mean.correction].results(x, [1], correction=0) == ("row", "row")
    assert list(ROWS[aten.native_layer_norm.default].dims(x, [4, 5], None, None, 1e-5)) == [-2, -1]
    assert ROWS[aten._softmax.default].results == ("element",)
