"""Programs that together use every feature of the language, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from programs import BINARY, EVERY, FLOATING, HEAD, KINDS, REDUCTIONS, UNARY, kind_of, type_of, values

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
NARROW = {torch.uint8: "to_uint8", torch.int8: "to_int8", torch.int16: "to_int16"}
ROUNDED = {torch.bfloat16: "to_bfloat16", torch.float16: "to_float16"}

Draw = Callable[[int], tuple[object, ...]]


def of_all_operations(dtype: torch.dtype) -> str:
    kind = kind_of(dtype)
    lines = [f"{HEAD}axes a=x.0", f"x: {kind} = input {kind} [a]", f"y: {kind} = input {kind} [a]"]
    lines += [f"z: {kind} = input {kind} [a]", "m: boolean = ne x z"]
    outputs = ["m boolean"]
    for name, operands in ((UNARY, "x"), (BINARY, "x y")):
        for operation in [operation for operation, (_, dtypes) in name.items() if dtype in dtypes]:
            of = operands.replace("y", "z") if operation.startswith(("integer_", "shift_")) else operands
            result = "boolean" if operation in COMPARISONS else kind
            lines.append(f"r_{operation}: {result} = {operation} {of}")
            outputs.append(f"r_{operation} {result}")
    lines.append(f"r_where: {kind} = where m x y")
    outputs.append(f"r_where {kind}")
    return "\n".join(lines + [f"output {output} [a]" for output in outputs]) + "\n"


def operands_of(dtype: torch.dtype) -> Draw:
    """The third operand of integers is small and never zero: a divisor or a shift."""

    def draw(size: int) -> tuple[Tensor, ...]:
        x, y = values(dtype, size, 1) if size else torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype)
        y = values(dtype, size, 2) if size else y
        z = y if dtype.is_floating_point or dtype == torch.bool else torch.where(y % 80 == 8, -1, y % 80 - 8)
        return x, y, z

    return draw


def of_all_conversions() -> str:
    lines, outputs = [f"{HEAD}axes a={kind_of(KINDS[0])}_in.0"], []
    for dtype in KINDS:
        name = kind_of(dtype)
        lines.append(f"{name}_in: {type_of(dtype)} = input {name} [a]")
        for to in dict.fromkeys(map(type_of, KINDS)):
            lines.append(f"{name}_{to}: {to} = to_{to} {name}_in")
    for to in KINDS:
        for dtype in KINDS:
            name = f"{kind_of(dtype)}_{type_of(to)}"
            for operation in (NARROW.get(to), ROUNDED.get(to)):
                if operation is not None:
                    lines.append(f"{name}_{operation}: {type_of(to)} = {operation} {name}")
                    name += f"_{operation}"
            outputs.append(f"output {name} {kind_of(to)} [a]")
    return "\n".join(lines + outputs) + "\n"


def draw_all_kinds(size: int) -> tuple[Tensor, ...]:
    """Values that every integer dtype can represent: other conversions depend on the processor."""

    def one(k: int, dtype: torch.dtype) -> Tensor:
        x = values(dtype, max(size, 20), k)[:size]
        return x.double().nan_to_num(7, 5e4, -5e4).clamp(-2e9, 2e9).to(dtype) if dtype.is_floating_point else x

    return tuple(one(k, dtype) for k, dtype in enumerate(KINDS))


def of_all_reductions(dtype: torch.dtype) -> str:
    """Reductions of an input, of a computed value, of a row's value and of a constant."""
    kind = kind_of(dtype)
    lines = [f"{HEAD}axes a=x.0 | b=x.1", f"x: {kind} = input {kind} [a b]", f"w: {kind} = input {kind} [a 1]"]
    lines += [f"n: {kind} = constant {'true' if dtype == torch.bool else '1.5' if dtype in FLOATING else '3'}"]
    lines += [f"c: {kind} = {'bitwise_xor x w' if dtype == torch.bool else 'add x w'}"]
    outputs = []
    for operation in [name for name, (_, dtypes) in REDUCTIONS.items() if dtype in dtypes]:
        for of in "xcwn":
            lines.append(f"{operation}_{of}: {kind} = {operation} {of}")
            outputs.append(f"output {operation}_{of} {kind} [a]")
    return "\n".join([*lines, *outputs, f"output {operation}_c {kind} [a b]", ""])


def rows_of(dtype: torch.dtype) -> Draw:
    def draw(size: int) -> tuple[Tensor, ...]:
        rows, columns = (37, size) if size < 100 else (3, size)
        x = values(dtype, max(rows * columns, 20), 5)[: rows * columns]
        if dtype.is_floating_point:
            x = x.clamp(-1e3, 1e3)
        return x.view(rows, columns), values(dtype, 40, 6)[:rows].view(rows, 1)

    return draw


SOFTMAX = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nm: float32 = amax x\nd: float32 = sub x m\n"
    "e: float32 = exp d\ns: float32 = sum e\ny: float32 = div e s\noutput y float32 [a b]\n"
)
SINE_AND_COSINE = (
    f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\ns: float32 = sin x\nc: float32 = cos x\n"
    "s2: float32 = mul s s\nc2: float32 = mul c c\ny: float32 = add s2 c2\noutput y float32 [a]\n"
)
# Three stages, two of which share values, with outputs of each.
NORM = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input bfloat16 [a b]\nw: float64 = input float64 [b]\n"
    "n: float32 = columns\nt: float32 = sum x\nm: float32 = div t n\nd: float32 = sub x m\ne: float32 = exp d\n"
    "v: float32 = sum e\nr: float32 = div e v\nr64: float64 = to_float64 r\nz: float64 = mul r64 w\n"
    "p: boolean = gt e v\nq: boolean = any p\noutput m float32 [a 1]\noutput e bfloat16 [a b]\noutput r float32 [b a]\n"
    "output z float64 [a b]\noutput q boolean [a]\n"
)
APART = (
    f"{HEAD}axes a=x.0 b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input float32 [b]\n"
    "c: float32 = input float32 [a 1]\nt: float32 = input float32 [b a]\nk: float32 = number\n"
    "l: int64 = input int64 []\np: float32 = mul x w\nq: float32 = add p c\nr: float32 = add q t\n"
    "s: float32 = mul r k\nlf: float32 = to_float32 l\n"
    "u: float32 = add s lf\nm: boolean = input boolean [b]\ny: float32 = where m u r\n"
    "output y float32 [a b]\noutput r float32 [b a]\noutput q float16 [a b] order [1 0]\noutput k float32 [a b]\n"
)
# Sums over the rows of values of every kind and stage, and an output that joins several values.
COLUMN_SUMS = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input bfloat16 [b]\n"
    "c: float32 = input float32 [a 1]\nk: float32 = constant 0.5\ns: float32 = sum x\nd: float32 = sub x s\n"
    "e: float32 = sin d\np: float32 = mul x w\nx64: float64 = to_float64 x\ncolumn_sum x float32 [b]\n"
    "column_sum w bfloat16 [b]\ncolumn_sum c float16 [b]\ncolumn_sum k float32 [b]\ncolumn_sum s float32 [b]\n"
    "column_sum e float32 [b]\ncolumn_sum p bfloat16 [1 b]\ncolumn_sum x64 float64 [b]\n"
    "output [e p k] float32 [a b] join 1\noutput e float16 [a b]\n"
)


def draw_norm(size: int) -> tuple[Tensor, ...]:
    rows = 37 if size < 100 else 3
    return torch.randn(rows, size).bfloat16(), torch.randn(size).double()


def draw_column_sums(size: int) -> tuple[Tensor, ...]:
    rows = 37 if size < 100 else 3
    return torch.randn(rows, size), torch.randn(size).bfloat16(), torch.randn(rows, 1)


def draw_apart(size: int) -> tuple[object, ...]:
    x, t = torch.randn(6, 2 * size)[:, ::2], torch.randn(size, 6)
    return x, torch.randn(size), torch.randn(6, 1), t, 2.5, torch.tensor(3), torch.randn(size) > 0


def draw_normal(size: int) -> tuple[Tensor, ...]:
    return (torch.randn(size) * 100,)


def programs() -> Iterator[tuple[str, str, Draw]]:
    for dtype in EVERY:
        yield f"operations_of_{kind_of(dtype)}", of_all_operations(dtype), operands_of(dtype)
        yield f"reductions_of_{kind_of(dtype)}", of_all_reductions(dtype), rows_of(dtype)
    yield "conversions", of_all_conversions(), draw_all_kinds
    yield "sine_and_cosine", SINE_AND_COSINE, draw_normal
    yield "norm", NORM, draw_norm
    yield "apart", APART, draw_apart
    yield "column_sums", COLUMN_SUMS, draw_column_sums


def assert_same_bits(got: object, expected: object) -> None:
    """Equal bits, except for NaN, whose sign depends on the processor."""
    got, expected = (given if isinstance(given, tuple) else (given,) for given in (got, expected))
    assert len(got) == len(expected)
    for k, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        mine, theirs = mine.contiguous(), theirs.contiguous()
        if mine.dtype.is_floating_point:
            assert torch.equal(mine.isnan(), theirs.isnan()), k
            mine, theirs = mine.nan_to_num(0, torch.inf, -torch.inf), theirs.nan_to_num(0, torch.inf, -torch.inf)
        differ = (mine.view(-1).view(torch.uint8) != theirs.view(-1).view(torch.uint8)).nonzero()
        assert len(differ) == 0, f"output {k}: {len(differ)} bytes"
