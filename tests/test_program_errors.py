"""Programs and arguments that are refused, and that broken programs crash nothing."""

from __future__ import annotations

import random

import pytest
import torch

from fourfold import _native
from fourfold.compiler.pipeline.calling import Program, ProgramByDispatcher
from program_cases import SOFTMAX
from programs import HEAD, PATHS, elementwise


def test_an_integer_that_no_64_bits_hold() -> None:
    text = f"{HEAD}axes a=x.0\nx: int64 = input int64 [a]\nn: int64 = number\nz: int64 = add x n\noutput z int64 [a]\n"
    for path in PATHS:
        program = path(text)
        assert program(torch.zeros(2, dtype=torch.int64), -(2**63)).tolist() == [-(2**63)] * 2
        with pytest.raises(OverflowError):
            program(torch.zeros(2, dtype=torch.int64), 2**63)


@pytest.mark.skipif(Program is ProgramByDispatcher, reason="this build has no calls compiled for this torch")
def test_what_was_never_made_or_is_made_again() -> None:
    unmade = Program.__new__(Program)
    with pytest.raises(TypeError):
        unmade(torch.ones(1))
    text = f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\noutput x float32 [a]\n"
    made = Program(text)
    for again in (text, "no program"):
        with pytest.raises(TypeError, match="program: expected to be made once"):
            made.__init__(again)
    assert made(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(TypeError, match="expected a Graph that was made of a function"):
        _native.module.Compiled(_native.module.Graph.__new__(_native.module.Graph), None, [], [])


@pytest.mark.skipif(Program is ProgramByDispatcher, reason="this build has no calls compiled for this torch")
def test_graphs_and_compiled_functions_that_were_never_made_or_are_made_again() -> None:
    kinds = _native.module.Graph, _native.module.Compiled, _native.module.Call
    for kind in kinds:
        with pytest.raises(TypeError):
            kind.__new__(kind)([torch.ones(1)])
    graph = _native.module.Graph(lambda inputs: (inputs[0] + 1,), None, [], [])
    compiled = _native.module.Compiled(graph, None, [], [False])
    call = _native.module.Call("fourfold::softshrink", 0, None, None)
    for made, again, name in (
        (graph, (len, None, [], []), "graph"),
        (compiled, (graph, None, [], []), "compiled function"),
        (call, ("fourfold::gru", 1, None, None), "call"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected to be made once$"):
            made.__init__(*again)
    assert graph([torch.ones(1)])[0].item() == compiled(torch.ones(1))[0].item() == 2
    assert call(torch.ones(1), 0.5).item() == 0.5


@pytest.mark.skipif(Program is ProgramByDispatcher, reason="this build has no calls compiled for this torch")
def test_calls_of_what_could_not_be_made() -> None:
    for kind, wrong in (
        (_native.module.Graph, (len, [None], [], [])),
        (_native.module.Compiled, (None, None, [], [])),
        (_native.module.Call, ("fourfold::nothing", 0, None, None)),
    ):
        made = kind.__new__(kind)
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            made.__init__(*wrong)
        with pytest.raises(TypeError):
            made([torch.ones(1)])


X = "x: float32 = input float32 [a]\n"
REFUSED = [
    ("", "line 1: expected 'fourfold program 1'"),
    ("fourfold program 2\n", "line 1: expected 'fourfold program 1'"),
    (HEAD, "line 2: expected 'axes'"),
    (f"{HEAD}axes a=x.0\n", "line 2: expected an input's dimension, but got 'x.0'"),
    (f"{HEAD}axes a=3\n", "expected an output, and there is none"),
    (f"{HEAD}axes a=-3\n", "line 2: expected a size of at least 0, but got '-3'"),
    (f"{HEAD}axes a=3 a=4\n", "line 2: expected each axis once, but got 'a'"),
    (f"{HEAD}axes a=3 | b=3 | c=3\n", "line 2: expected one |, but got '|'"),
    (
        f"{HEAD}axes a=x.1\n{X}output x float32 [a]\n",
        "expected a dimension that runs along this axis alone, but got 'x.1'",
    ),
    (
        f"{HEAD}axes a=x.0\nx: float32 = input float32 [a+1]\noutput x float32 [a]\n",
        "line 2: expected a dimension that runs along this axis alone, but got 'x.0'",
    ),
    *(
        (
            f"{HEAD}axes a=2 b=3\nx: float32 = input float32 [{word}]\n",
            f"line 3: expected {what}, but got '{got}'",
        )
        for word, what, got in (
            ("a*b+1", "a part of a dimension, such as a+2 or @3", "a*b+1"),
            ("a@1", "a part of a dimension, such as a+2 or @3", "a@1"),
            ("a+-1", "a part of a dimension, such as a+2 or @3", "a+-1"),
            ("@281474976710656", "a part of a dimension, such as a+2 or @3", "@281474976710656"),
            ("@b", "where a part of a dimension begins", "b"),
            ("a+", "where a part of a dimension begins", ""),
            ("a+1 a+2", "an axis that this tensor does not have yet", "a"),
        )
    ),
    (f"{HEAD}axes a=2\nx: float32 = input float32 [a]\noutput x float32 [a+1]\n", "line 4: expected"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = sinus x\n", "line 4: expected an operation, but got 'sinus'"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = add x\n", "line 4: expected 2 operands of add, but got 'x'"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = sin z\n", "line 4: expected a value that stands above, but got 'z'"),
    (f"{HEAD}axes a=x.0\n{X}y: float32 = sin y\n", "line 4: expected a value that stands above, but got 'y'"),
    (f"{HEAD}axes a=x.0\n{X}x: float32 = sin x\n", "line 4: expected a name that is not taken, but got 'x'"),
    (f"{HEAD}axes a=x.0\n{X}y: float64 = sin x\n", "line 4: expected float32, but got 'float64'"),
    (
        f"{HEAD}axes a=x.0\n{X}y: float32 = bitwise_not x\n",
        "line 4: expected a type that bitwise_not takes, but got 'x'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}y: float32 = sum x\n",
        "line 4: expected a reduction in a program that has rows only, but got 'sum'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}y: float32 = where x x x\n",
        "line 4: expected a boolean as where's first operand, but got 'x'",
    ),
    (f"{HEAD}axes a=x.0\n{X}k: int32 = constant 9999999999\n", "line 4: expected 32 bits, but got '9999999999'"),
    *(
        (f"{HEAD}axes a=x.0\n{X}k: float32 = constant {word}\n", f"line 4: expected a number, but got '{word}'")
        for word in ("1,5", "1e400", "-1e400", "1e-400", "0x1p3", "infinity", "+1", "1e", "1.5.2", "1e5e", "-")
    ),
    (f"{HEAD}axes a=x.0\n{X}output x float64 [a]\n", "line 4: expected a dtype of the value's type, but got 'float64'"),
    (
        f"{HEAD}axes a=x.0 b=3\n{X}output x float32 [a]\n",
        "line 4: expected all the axes, or all that number the rows, or none",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}output x float32 [a a]\n",
        "line 4: expected an axis that this tensor does not have yet, but got 'a'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}output x float32 []\n",
        "line 4: expected the dimensions that the value differs along, but got 'x'",
    ),
    (f"{HEAD}axes a=x.0\n{X}output x float32 [a] order [1]\n", "line 4: expected each dimension once, but got '1'"),
    (f"{HEAD}axes a=x.0\n{X}output x float32 [a\n", "line 4: expected ]"),
    (
        f"{HEAD}axes a=x.0\nx: float16 = input float16 [a]\n",
        "line 3: expected boolean, int32, int64, float32 or float64, but got",
    ),
    (f"{HEAD}axes a=x.0\nx: int32 = input float32 [a]\n", "line 3: expected float32, but got 'int32'"),
    (f"{HEAD}axes a=x.0\n{X}9: float32 = sin x\n", "line 4: expected a name of letters, digits and _, but got '9'"),
    (f"{HEAD}axes a=x.0\n{X}n: float32 = columns\n", "line 4: expected columns in a program that has rows, alone"),
    (f"{HEAD}axes a=x.0\n{X}output [x x] float32 [a]\n", "line 4: expected join, and the dimension"),
    (
        f"{HEAD}axes a=x.0\n{X}output [x x] float32 [a] join 1\n",
        "line 4: expected a dimension that the parts have, but got '1'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}output [] float32 [a] join 0\n",
        "line 4: expected an output's value, dtype and dimensions",
    ),
    (f"{HEAD}axes a=x.0\n{X}output [x\n", "line 4: expected an output's value, dtype and dimensions, but got '[x'"),
    (
        f"{HEAD}axes a=x.0\n{X}output [x y] float32 [a] join 0\n",
        "line 4: expected a value that stands above, but got 'y'",
    ),
    (
        f"{HEAD}axes a=x.0\n{X}column_sum x float32 [a]\n",
        "line 4: expected a column sum in a program that has rows only",
    ),
    (
        f"{HEAD}axes a=x.0 | b=3\nx: float32 = input float32 [a b]\ncolumn_sum x float32 [a]\n",
        "line 4: expected all the axes of the columns, but got 'x'",
    ),
    (
        f"{HEAD}axes a=x.0 | b=3\nx: float32 = input float32 [a b]\ncolumn_sum x float64 [b]\n",
        "line 4: expected a floating dtype of the value's type, but got 'float64'",
    ),
    (
        f"{HEAD}axes a=x.0 | b=3\nx: int32 = input int32 [a b]\ncolumn_sum x int32 [b]\n",
        "line 4: expected a floating dtype of the value's type, but got 'int32'",
    ),
    (f"{HEAD}axes {' '.join(f'a{k}=2' for k in range(25))}\n", "line 2: expected at most 24 axes, but got 'a24'"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_what_is_no_program_is_refused(text: str, sentence: str, path: type) -> None:
    with pytest.raises(ValueError) as error:
        path(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize("path", PATHS)
def test_tensors_that_are_not_the_programs_are_refused(path: type) -> None:
    program = path(f"{HEAD}axes a=x.0\n{X}y: float32 = input float32 [a]\nz: float32 = add x y\noutput z float32 [a]\n")
    x = torch.randn(4)
    refused = [
        ((x,), TypeError, "expected 2 inputs, but got 1"),
        ((x, x[:3]), ValueError, "expected dimension 0 of y to have size 4, but got 3"),
        ((x, x.double()), ValueError, "expected another dtype of y"),
        ((x, x[None]), ValueError, "expected y to have 1 dimensions, but got 2"),
        ((x, x.to(torch.complex64)), ValueError, "program: expected"),
        ((x, x.to_sparse()), ValueError, "program: expected a"),
        ((x, torch.empty(4, device="meta")), ValueError, "program: expected a"),
    ]
    for arguments, kind, sentence in refused:
        with pytest.raises(kind, match=sentence):
            program(*arguments)
    torch.testing.assert_close(program(x, x), x + x)


ADD = f"{HEAD}axes a=x.0\n{X}k: float32 = number\nn: int32 = number\nm: float32 = to_float32 n\n" + (
    "y: float32 = add x k\nz: float32 = add y m\noutput z float32 [a]\n"
)
# 3 times b overflows to 2 in 64 bits: memory for two elements.
OVERFLOWING = f"{HEAD}axes a=3 | b=6148914691236517206\nc: float32 = constant 1.0\noutput c float32 [a*b]\n"


@pytest.mark.parametrize(
    ("text", "tensors", "floats", "integers", "sentence"),
    [
        (ADD, [], [1.0], [2], "expected more tensors than the 0"),
        (ADD, [torch.ones(2)], [], [2], "expected more floats than the 0"),
        (ADD, [torch.ones(2)], [1.0], [], "expected more integers than the 0"),
        (ADD, [torch.ones(2)] * 2, [1.0], [2], "expected 1 tensors, 1 floats and 1 integers, but got 2, 1 and 1"),
        (ADD, [torch.ones(2)], [1.0], [2**31], "expected an integer of 32 bits, but got 2147483648"),
        (ADD, [torch.ones(2, dtype=torch.complex64)], [1.0], [2], "expected a dtype that programs support"),
        (ADD, [torch.ones(2).to_sparse()], [1.0], [2], "expected strided tensors"),
        (ADD, [torch.empty(2, device="meta")], [1.0], [2], "no backend runs programs on torch's device type"),
        ("no program", [torch.ones(2)], [], [], "line 1: expected 'fourfold program 1'"),
        (OVERFLOWING, [], [], [], "expected axes whose sizes have a product below 2"),
    ],
)
def test_the_operator_rejects_wrong_arguments(
    text: str, tensors: list[torch.Tensor], floats: list[float], integers: list[int], sentence: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^program: .*{sentence}"):
        torch.ops.fourfold._run_program(text, tensors, floats, integers)
    (out,) = torch.ops.fourfold._run_program(ADD, [torch.ones(2)], [0.5], [-(2**31)])
    assert torch.equal(out, torch.full((2,), 1.5 - 2.0**31))


WHOLE = [
    SOFTMAX,
    elementwise("pow", torch.float32, 2, torch.float32),
    f"{HEAD}axes a=x.0 b=4 | c=2\nx: int32 = input int8 [a 1 c]\ny: int32 = to_int8 x\n"
    "output y int8 [c b a] order [2 0 1]\n",
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ny: float32 = neg x\n"
    "output [x y] float32 [a b] join 1 order [1 0]\ncolumn_sum y float32 [b]\ncolumn_sum x float16 [1 b] order [1 0]\n",
]


@pytest.mark.parametrize("seed", range(12))
def test_broken_programs_crash_nothing(seed: int) -> None:
    """Letters, words and lines deleted, duplicated and swapped: an error, or a program that runs or rejects its
    tensors."""
    rng = random.Random(seed)
    ran = 0
    for _ in range(250):
        text = broken(rng, rng.choice(WHOLE))
        try:
            program = PATHS[0](text)
        except ValueError as error:
            assert str(error).startswith("program: line "), (text, error)
            continue
        try:
            program(*(torch.ones(3, 2) for _ in range(text.count("= input"))))
        except (ValueError, TypeError) as error:
            assert str(error).startswith("program: expected"), (text, error)
        ran += 1
    assert ran > 0


def broken(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 3)):
        separator = rng.choice(["", " ", "\n"])
        parts = list(text) if not separator else text.split(separator)
        k = rng.randrange(len(parts))
        change = rng.randrange(4)
        if change == 0:
            del parts[k]
        elif change == 1:
            parts.insert(k, rng.choice(parts))
        elif change == 2:
            other = rng.randrange(len(parts))
            parts[k], parts[other] = parts[other], parts[k]
        else:
            parts[k] = rng.choice(["0", "9" * 30, "\x00", "é", "a", "|", "[", "]", "*", ".", "=", "-1", "input", "sum"])
        text = separator.join(parts)
    return text
