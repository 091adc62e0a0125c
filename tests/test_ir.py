"""The compiler's IR: values written by Python's operators, shared, folded, and printed."""

from __future__ import annotations

import math

import pytest
import torch

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64, INT32
from fourfold.compiler.ir.values import (
    Axis,
    Output,
    Program,
    Value,
    amax,
    is_nan,
    maximum,
    minimum,
    operation,
    sqrt,
    where,
)

DIMS = ((0,),)


@pytest.fixture
def program() -> Program:
    return Program(axes=[Axis("a", "3")])


def test_two_values_that_compute_the_same_are_one(program: Program) -> None:
    x, y = program.input("x", torch.float32, DIMS), program.input("y", torch.float32, DIMS)
    assert x * y is x * y
    assert 2 + x is x + 2  # commutative: the constant comes last
    assert x - y is not y - x
    assert x + 0.0 is not x + -0.0


def test_a_number_is_a_constant_of_the_values_type(program: Program) -> None:
    x, n = program.input("x", torch.float32, DIMS), program.input("n", torch.int32, DIMS)
    assert (x * 0.1).operands[1].attribute != 0.1  # rounded to float32
    assert (1 - x).operands[0].type == FLOAT32
    assert (n + 2**32 + 3).operands[1].attribute == 3
    assert where(x < 0, 0, x).operands[1].type == FLOAT32
    assert (x < 1).type == BOOLEAN


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(lambda x: x * 1, id="times one"),
        pytest.param(lambda x: operation("neg")(-x), id="negated twice"),
        pytest.param(lambda x: x - 0, id="less nothing"),
        pytest.param(lambda x: x**1, id="first power"),
        pytest.param(lambda x: where(x < 0, x, x), id="either way"),
        pytest.param(lambda x: x.to(FLOAT32), id="own type"),
    ],
)
def test_what_changes_no_bit_is_folded(program: Program, same) -> None:
    x = program.input("x", torch.float32, DIMS)
    assert same(x) is x


def test_constants_are_computed_in_their_type(program: Program) -> None:
    a, b = program.constant(FLOAT32, 0.1), program.constant(FLOAT32, 0.2)
    assert (a * b).attribute == (torch.tensor(0.1) * torch.tensor(0.2)).item()
    assert (program.constant(FLOAT64, 0.1) * 0.2).attribute == 0.1 * 0.2
    assert sqrt(program.constant(FLOAT64, 2)).attribute == math.sqrt(2)
    assert (program.constant(INT32, 2**31 - 1) + 1).attribute == -(2**31)


def test_powers_and_divisions_become_products(program: Program) -> None:
    x = program.input("x", torch.float32, DIMS)
    assert x**2 is x * x
    assert x / 4 is x * 0.25
    assert (x / 3).op == "div"


def test_operations_of_booleans_and_of_integers_have_their_own_names(program: Program) -> None:
    p, q, n = program.input("p", torch.bool, DIMS), program.input("q", torch.bool, DIMS), program.constant(INT32, 7)
    k = program.input("k", torch.int32, DIMS)
    assert [v.op for v in (p + q, p * q, maximum(p, q), minimum(p, q), amax(p))] == [
        *("bitwise_or", "bitwise_and", "bitwise_or", "bitwise_and", "any")
    ]
    assert p * 1 is p
    assert operation("fmod")(k, n).op == "integer_fmod"
    assert operation("floor")(k) is k
    assert operation("sign")(p) is p


def test_the_text_has_each_value_once_and_no_dead_code(program: Program) -> None:
    x = program.input("x", torch.float32, DIMS)
    _ = x * 5
    value: Value = (x + 1) * (x + 1)
    program.outputs.append(Output([where(is_nan(x), 0, value)], "float32", DIMS, [0]))
    assert program.text().splitlines() == [
        "fourfold program 1",
        "axes a=3",
        "x: float32 = input float32 [a]",
        "v1: boolean = ne x x",
        "v2: float32 = constant 0.0",
        "v3: float32 = constant 1.0",
        "v4: float32 = add x v3",
        "v5: float32 = mul v4 v4",
        "v6: float32 = where v1 v2 v5",
        "output v6 float32 [a]",
    ]
