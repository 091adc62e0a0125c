"""The code generated for Apple's GPUs, and programs that are not supported there."""

from __future__ import annotations

import pytest

from fourfold.compiler.nest.grid.build import build
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.loops import Grid
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.ir.schedule import NotCompiled
from fourfold.compiler.nest.print import metal
from programs import HEAD

ELEMENTS = "grid elements rows=0 lanes=1 copies=1 group=1 each=0 split=0 wide=0:"
SOFTMAX = f"""{HEAD}axes a=x.0 | b=x.1
x: float32 = input float32 [a b]
m: float32 = amax x
e: float32 = exp x
s: float32 = sum e
y: float32 = mul e m
z: float32 = div y s
output z float32 [a b]
"""
ROWS = "grid rows rows=1 lanes=4 copies=1 group={group} each={each} split=0 wide=0:nv,nv"


def elements(count: int, kind: str = "float32", type: str = "float32", operation: str = "neg") -> str:
    """A program that adds this many tensors, after applying the operation to the first."""
    lines = [f"x{k}: {type} = input {kind} [a]" for k in range(count)] + [f"y0: {type} = {operation} x0"]
    lines += [f"y{k}: {type} = add y{k - 1} x{k}" for k in range(1, count)]
    return "\n".join([f"{HEAD}axes a=x0.0", *lines, f"output y{count - 1} {kind} [a]", ""])


def grid_of(text: str, layout: str) -> Grid:
    return build(read(text), GridLayout.of(layout))


def refused(text: str, layout: str) -> str:
    with pytest.raises(NotCompiled) as refusal:
        metal.print_file(grid_of(text, layout))
    return str(refusal.value)


def test_a_kernels_parameters_are_those_that_the_host_binds() -> None:
    """As in metal/program.mm: tensors, scratch memory, numbers; and threadgroup memory if it is used."""
    text = metal.print_grid(grid_of(SOFTMAX, ROWS.format(group=256, each=2)))
    assert text.splitlines()[1:3] == [
        '[[kernel, host_name("fourfold_rows"), max_total_threads_per_threadgroup(256)]] void fourfold_rows(',
        "    device float32* tensor_0 [[buffer(0)]], device float32* tensor_1 [[buffer(1)]], "
        "device int64* tensor_2 [[buffer(2)]], constant int64* numbers [[buffer(3)]], "
        "threadgroup uint8* shared [[threadgroup(0)]], uint thread_index [[thread_index_in_threadgroup]], "
        "uint block_index [[threadgroup_position_in_grid]], uint block_count [[threadgroups_per_grid]]) {",
    ]
    assert "threadgroup uint8" not in metal.print_grid(grid_of(SOFTMAX, ROWS.format(group=32, each=2)))


def test_nothing_is_contracted() -> None:
    assert metal.prelude().index("#pragma METAL fp contract(off)") < metal.prelude().index("#include <metal_stdlib>")


def test_no_variable_is_named_as_an_address_space() -> None:
    text = metal.print_grid(grid_of(SOFTMAX, ROWS.format(group=256, each=2)))
    assert "thread_1 = (index)thread_index;" in text
    assert "index thread " not in text


def test_float64_is_refused_in_memory_and_in_registers() -> None:
    said = "float64, which Apple's GPUs don't have"
    assert refused(elements(1, "float64", "float64"), f"{ELEMENTS}1,1") == said
    text = f"""{HEAD}axes a=x.0
x: float32 = input float32 [a]
y: float64 = to_float64 x
z: float64 = mul y y
w: float32 = to_float32 z
output w float32 [a]
"""
    assert refused(text, f"{ELEMENTS}1,1") == said


def test_more_buffers_than_a_kernel_has_are_refused() -> None:
    metal.print_file(grid_of(elements(28), f"{ELEMENTS}{','.join('1' * 29)}"))
    said = "more than 29 tensors, the limit of a Metal kernel"
    assert refused(elements(29), f"{ELEMENTS}{','.join('1' * 30)}") == said


def test_more_constants_than_a_call_has_are_refused() -> None:
    axes = 24
    names = [f"a{k}" for k in range(axes)]
    lines = [f"axes {' '.join(f'{name}=x0.{k}' for k, name in enumerate(names))}"]
    lines += [f"x{k}: float32 = input float32 [{' '.join(names)}]" for k in range(24)] + ["y0: float32 = neg x0"]
    lines += [f"y{k}: float32 = add y{k - 1} x{k}" for k in range(1, 24)]
    text = "\n".join([HEAD.strip(), *lines, f"output y23 float32 [{' '.join(names)}]", ""])
    said = refused(text, f"{ELEMENTS}{','.join(['n' * axes] * 25)}")
    assert said == "axes whose sizes and strides take more than the 4096 bytes of a call of Metal"


def test_more_memory_than_a_threadgroup_has_is_refused() -> None:
    sums = range(20)
    lines = ["axes a=x.0 | b=x.1", "x: float32 = input float32 [a b]"]
    for k in sums:
        lines += [f"c{k}: float32 = constant {k}.5", f"p{k}: float32 = mul x c{k}", f"s{k}: float32 = amax p{k}"]
    text = "\n".join([HEAD.strip(), *lines, *(f"output s{k} float32 [a]" for k in sums), ""])
    layout = f"grid side rows=1 lanes=1 copies=1 group=8 each=0 split=0 wide=0:1n{',1n' * len(sums)}"
    assert refused(text, layout) == "reductions that need more than the 32 KB of a threadgroup's memory"
