"""Invalid input is rejected with a one-sentence error of a fitting type, and nothing crashes; function, operator and
torch.compile give the same message."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import fourfold
from fourfold.operators._elementwise import ELEMENTWISE
from op_cases import CASES, case_id
from refusals import T, refusal_id, sentence_of
from test_gradients import backward_arguments


def arguments(case: str, **changes: Any) -> tuple:
    """Valid arguments with some replaced, by position: _0=…, _3=…"""
    args = list(next(c for c in CASES if c.id == case).arguments(torch.float32))
    for place, value in changes.items():
        args[int(place[1:])] = value
    return tuple(args)


CELL, SEQUENCE, PACKED, NETWORK = "lltm_cell-tutorial", "lltm-short", "lltm-packed", "mlp-tutorial"
LSTM, GRU, RESTARTS = "lstm-short", "gru-short", "lltm-reset"

# operator, arguments, type, message without the operator's name
REFUSED: list[tuple[str, tuple, type, str]] = [
    (
        "softshrink",
        (T(3, dtype=torch.complex64),),
        TypeError,
        "expected x to be floating point (float16, bfloat16, float32 or float64), but got torch.complex64",
    ),
    ("softshrink", (T(3), -1.5), ValueError, "expected lambd to be at least 0, but got -1.5"),
    ("softshrink", (T(3), float("nan")), ValueError, "expected lambd to be at least 0, but got nan"),
    (
        "axpby",
        (T(3), T(4)),
        ValueError,
        "expected x and y to broadcast together, but got (3,) and (4,)",
    ),
    (
        "axpby",
        (T(2, 3), T(2, 3, dtype=torch.complex64)),
        TypeError,
        "expected y to be bool, an integer or floating point, but got torch.complex64",
    ),
    (
        "axpby",
        (T(3), T(3), 2, 1, torch.complex64),
        TypeError,
        "expected dtype to be bool, an integer or floating point, but got torch.complex64",
    ),
    (
        "lltm_cell",
        arguments(CELL, _1=T(16, 64)),
        ValueError,
        "expected c to have shape (batch, hidden_size) = (16, 64), but got (16, 128)",
    ),
    (
        "lltm_cell",
        arguments(CELL, _2=T(16, 64)),
        ValueError,
        "expected c to have shape (batch, hidden_size) = (16, 128), but got (16, 64)",
    ),
    (
        "lltm_cell",
        arguments(CELL, _1=T(15, 128)),
        ValueError,
        "expected h to have shape (batch, hidden_size) = (16, any), but got (15, 128)",
    ),
    (
        "lltm_cell",
        arguments(CELL, _0=T(32)),
        ValueError,
        "expected x to have shape (batch, input_size) = (any, any), but got (32,)",
    ),
    (
        "lltm_cell",
        arguments(CELL, _3=T(384, 128)),
        ValueError,
        "expected weights to have shape (3 * hidden_size, hidden_size + input_size) = (384, 160), but got (384, 128)",
    ),
    (
        "lltm_cell",
        arguments(CELL, _4=T(128)),
        ValueError,
        "expected bias to have shape (3 * hidden_size,) or (1, 3 * hidden_size) with 3 * hidden_size = 384, "
        "but got (128,)",
    ),
    (
        "lltm_cell",
        arguments(CELL, _2=T(16, 128, dtype=torch.float64)),
        TypeError,
        "expected c to have dtype torch.float32, but got torch.float64",
    ),
    (
        "lltm",
        arguments(SEQUENCE, _0=T(4, 6)),
        ValueError,
        "expected input to have shape (time, batch, input_size) = (any, any, any), but got (4, 6)",
    ),
    (
        "lltm",
        arguments(SEQUENCE, _1=T(3, 16)),
        ValueError,
        "expected h_0 to have shape (batch, hidden_size) = (4, any), but got (3, 16)",
    ),
    (
        "lltm",
        arguments(PACKED, _6=T(6, dtype=torch.int32)),
        TypeError,
        "expected batch_sizes to have dtype torch.int64, but got torch.int32",
    ),
    (
        "lltm",
        arguments(RESTARTS, _7=T(7, 3, dtype=torch.bool)),
        ValueError,
        "expected reset to have shape (time, batch) = (7, 4), but got (7, 3)",
    ),
    (
        "lstm",
        arguments(LSTM, _2=T(4, 15)),
        ValueError,
        "expected c_0 to have shape (batch, hidden_size) = (4, 16), but got (4, 15)",
    ),
    (
        "lstm",
        arguments(LSTM, _3=T(48, 6)),
        ValueError,
        "expected weight_ih to have shape (4 * hidden_size, input_size) = (64, 6), but got (48, 6)",
    ),
    (
        "lstm",
        arguments(LSTM, _6=T(64, dtype=torch.float64)),
        TypeError,
        "expected bias_hh to have dtype torch.float32, but got torch.float64",
    ),
    (
        "gru",
        arguments(GRU, _3=T(48, 15)),
        ValueError,
        "expected weight_hh to have shape (3 * hidden_size, hidden_size) = (48, 16), but got (48, 15)",
    ),
    (
        "gru",
        arguments(GRU, _4=T(1, 48)),
        ValueError,
        "expected bias_ih to have shape (3 * hidden_size,) = (48,), but got (1, 48)",
    ),
    (
        "mlp",
        arguments(NETWORK, _0=T(32, 6)),
        ValueError,
        "expected hidden_weights to have shape (hidden_size, input_size) = (any, 6), but got (15, 5)",
    ),
    (
        "mlp",
        arguments(NETWORK, _3=T(1, 14)),
        ValueError,
        "expected output_weights to have shape (output_size, hidden_size) = (any, 15), but got (1, 14)",
    ),
    (
        "mlp",
        arguments(NETWORK, _2=T(15, 1)),
        ValueError,
        "expected hidden_bias to have shape (hidden_size,) or (1, hidden_size) with hidden_size = 15, but got (15, 1)",
    ),
    ("mlp", arguments(NETWORK, _0=T(())), ValueError, "expected x to have shape (..., input_size), but got ()"),
    (
        "mlp",
        arguments(NETWORK, _1=T(15, 5, dtype=torch.float16)),
        TypeError,
        "expected hidden_weights to have dtype torch.float32, but got torch.float16",
    ),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3), T(2, 6)], [None, None]),
        ValueError,
        "expected weights[1] to have shape (output_size, input_size) = (any, 7), but got (2, 6)",
    ),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3), T(2, 7)], [T(7), T(3)]),
        ValueError,
        "expected biases[1] to have shape (output_size,) or (1, output_size) with output_size = 2, but got (3,)",
    ),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3, dtype=torch.float64)], [None]),
        TypeError,
        "expected weights[0] to have dtype torch.float32, but got torch.float64",
    ),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3)], [None], "elu"),
        ValueError,
        "expected activation to be relu, tanh, gelu or silu, but got elu",
    ),
    ("mlp_layers", (T(4, 3), [], []), ValueError, "expected weights to have a matrix for each layer, but got none"),
    ("mlp_layers", (T(()), [T(7, 3)], [None]), ValueError, "expected x to have shape (..., input_size), but got ()"),
]
# Rejected before C++: torch's dispatcher can't match the call, or the error depends on the data.
REFUSED_BY_FUNCTION: list[tuple[str, tuple, type, str]] = [
    ("softshrink", ([1.0],), TypeError, "expected x to be a torch.Tensor, but got list"),
    ("softshrink", (T(3), T(())), TypeError, "expected lambd to be a real number, but got Tensor"),
    ("softshrink", (T(3), "half"), TypeError, "expected lambd to be a real number, but got str"),
    ("softshrink", (T(3).to_sparse(),), TypeError, "expected x to be a dense tensor, but got layout torch.sparse_coo"),
    ("axpby", (T(3), 2.0), TypeError, "expected y to be a torch.Tensor, but got float"),
    ("axpby", (T(3), T(3), 1j), TypeError, "expected alpha to be a real number, but got complex"),
    ("axpby", (T(3), T(3), T(())), TypeError, "expected alpha to be a real number, but got Tensor"),
    (
        "axpby",
        (T(3, dtype=torch.int64), T(3, dtype=torch.int64), 2**60),
        ValueError,
        "expected alpha to be a whole number within 2^53 for a result of torch.int64, but got 1.15292e+18; pass a "
        "floating point dtype",
    ),
    (
        "axpby",
        (T(3), T(3, device="meta")),
        ValueError,
        "expected y to be on cpu like x, but got meta; move it with .to('cpu')",
    ),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3), T(2, 7)], [T(7)]),
        ValueError,
        "expected biases to have one for each of the 2 weights, None for a layer without, but got 1",
    ),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3), T(2, 7)], [T(7), T(2), T(2)]),
        ValueError,
        "expected biases to have one for each of the 2 weights, None for a layer without, but got 3",
    ),
    ("mlp_layers", (T(4, 3), [None]), TypeError, "expected weights[0] to be a torch.Tensor, but got NoneType"),
    (
        "mlp_layers",
        (T(4, 3), [T(7, 3)], [T(7, device="meta")]),
        ValueError,
        "expected biases[0] to be on cpu like x, but got meta; move it with .to('cpu')",
    ),
    ("lltm_cell", (T(16, 32), None, None, None), TypeError, "expected h to be a torch.Tensor, but got NoneType"),
    ("lltm", ("text", None, None, None), TypeError, "expected input to be a torch.Tensor, but got str"),
    (
        "lstm",
        (None, T(2, 5), T(2, 5), T(20, 4), T(20, 5)),
        TypeError,
        "expected input to be a torch.Tensor, but got NoneType",
    ),
    ("gru", (None, T(2, 5), T(15, 4), T(15, 5)), TypeError, "expected input to be a torch.Tensor, but got NoneType"),
    (
        "lltm",
        arguments(SEQUENCE, _3=T(48, 22, device="meta")),
        ValueError,
        "expected weights to be on cpu like input, but got meta; move it with .to('cpu')",
    ),
]


# Every elementwise operator; its other arguments have defaults.
INTEGERS = "expected x to be floating point (float16, bfloat16, float32 or float64), but got torch.int64"
REFUSED += [(op, (T(3).long(),), TypeError, INTEGERS) for op in ELEMENTWISE]


def test_every_operator_refuses_something() -> None:
    assert {row[0] for row in REFUSED} == set(fourfold.operator_names())


# The function has no dtype argument.
OF_THE_FUNCTION = [row for row in REFUSED if row[0] != "axpby" or len(row[1]) < 5] + REFUSED_BY_FUNCTION


@pytest.mark.parametrize(("op", "args", "kind", "sentence"), OF_THE_FUNCTION, ids=refusal_id)
def test_function_refuses(op: str, args: tuple, kind: type, sentence: str) -> None:
    function = getattr(fourfold, op)
    assert sentence_of(function, args, kind) == f"{op}: {sentence}"
    with torch.no_grad():
        assert sentence_of(function, args, kind) == f"{op}: {sentence}"


@pytest.mark.parametrize(("op", "args", "kind", "sentence"), REFUSED, ids=refusal_id)
def test_operator_refuses_in_the_same_words(op: str, args: tuple, kind: type, sentence: str) -> None:
    case = next(c for c in CASES if c.op == op)
    args = args if case.has_lists else case.by_schema(args)
    assert sentence_of(getattr(torch.ops.fourfold, op), args, RuntimeError) == f"{op}: {sentence}"


@pytest.mark.parametrize(
    ("op", "args", "kind", "sentence"),
    [row for row in REFUSED if len(row[1]) != 5 or row[0] != "axpby"][::3],
    ids=refusal_id,
)
def test_compiled_call_refuses_in_the_same_words(op: str, args: tuple, kind: type, sentence: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(getattr(fourfold, op), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=op) as raised:
        function(*args)
    assert f"{op}: {sentence}" in str(raised.value)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ([5, 5, 3, 2, 1], "expected batch_sizes to add up to input's 17 rows, but they add up to 16"),
        (
            [5, 5, 3, 2, 2, -1, 1],
            "expected batch_sizes to begin with batch = 5 and never to increase or reach 0, but got -1",
        ),
        (
            [5, 3, 5, 2, 1, 1],
            "expected batch_sizes to begin with batch = 5 and never to increase or reach 0, but got 5",
        ),
        (
            [4, 4, 4, 3, 1, 1],
            "expected batch_sizes to begin with batch = 5 and never to increase or reach 0, but got 4",
        ),
        ([5, 2**62, 2**62], "expected batch_sizes to begin with batch = 5 and never to increase or reach 0, but got"),
    ],
)
def test_batch_sizes_that_do_not_fit(sizes: list[int], sentence: str) -> None:
    args = arguments(PACKED, _6=torch.tensor(sizes))
    with pytest.raises(ValueError) as raised:
        fourfold.lltm(*args)
    assert str(raised.value).startswith(f"lltm: {sentence}")


def test_a_refusal_comes_alone_and_keeps_nothing_alive() -> None:
    x = T(3, dtype=torch.int64)
    alive = weakref.ref(x)
    gc.disable()  # it would hide a cycle
    try:
        with pytest.raises(TypeError) as raised:
            fourfold.softshrink(x)
        assert raised.value.__context__ is None
        del raised, x
        assert alive() is None
    finally:
        gc.enable()


def test_a_network_that_is_no_network_is_refused_in_its_operators_names() -> None:
    """The operator of two layers is tried first; it takes no lists and has other argument names."""
    x = T(2, 4).requires_grad_()
    for weights in ([None, T(3, 4)], [T(3, 4), T(2, 4)], ["text", T(3, 4)]):
        with pytest.raises((TypeError, ValueError), match=r"^mlp_layers: expected weights\[\d\] to") as raised:
            fourfold.mlp_layers(x, weights, [None, None])
        assert raised.value.__context__ is None


def test_batch_sizes_on_another_device() -> None:
    with pytest.raises(ValueError, match="lltm: expected batch_sizes to be on the CPU, but got meta"):
        fourfold.lltm(*arguments(PACKED, _6=torch.tensor([5, 5, 3, 2, 1, 1], device="meta")))


def test_an_error_leaves_the_next_call_working() -> None:
    good = arguments(CELL)
    wanted = fourfold.lltm_cell(*good)
    with pytest.raises(ValueError):
        fourfold.lltm_cell(*arguments(CELL, _2=T(16, 64)))
    assert torch.equal(fourfold.lltm_cell(*good)[0], wanted[0])


@pytest.mark.parametrize("case", [c for c in CASES if c.id in (CELL, PACKED, NETWORK)], ids=case_id)
def test_backward_operators_refuse_what_is_not_theirs(case: Any) -> None:
    """A direct call of a backward with any tensor missing or of another shape raises; it never reads out of bounds."""
    backward = getattr(torch.ops.fourfold, f"{case.op}_backward")
    args = backward_arguments(case, case.arguments(torch.float32))
    backward(*args)
    for place, value in enumerate(args):
        if not isinstance(value, torch.Tensor):
            continue
        transposed = value.mT.contiguous() if value.dim() > 1 and value.shape[-1] != value.shape[-2] else None
        integers = value.long() if value.is_floating_point() else None
        for wrong in (value.new_zeros(0), value.new_zeros(1, 1, 1, 1), transposed, integers, value.to("meta")):
            if wrong is None:
                continue
            with pytest.raises((RuntimeError, ValueError, TypeError), match=f"{case.op}_backward: "):
                backward(*args[:place], wrong, *args[place + 1 :])
