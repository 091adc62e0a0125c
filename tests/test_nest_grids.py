"""The generated kernels of programs: which kernels read what, and how often. The simulators run them
(tests/simulators/nest_programs.py, metal_programs.py)."""

from __future__ import annotations

import re

import pytest

from fourfold.compiler.nest.grid.build import build
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.ir.schedule import NotCompiled, Schedule
from fourfold.compiler.nest.print import cuda
from fourfold.explaining import nests
from fourfold.explaining.data import Program
from random_programs import Generator

SOFTMAX = (
    "fourfold program 1\naxes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input float32 [b]\n"
    "m: float32 = amax x\nd: float32 = sub x m\ne: float32 = exp d\ns: float32 = sum e\ny: float32 = div e s\n"
    "z: float32 = mul y w\noutput z float32 [a b]\noutput m float32 [a]\n"
)
SAFE_SOFTMAX = SOFTMAX.replace(
    "d: float32 = sub x m\n",
    "k: float32 = constant 0.0\ni: float32 = constant inf\na: float32 = abs m\nq: boolean = eq a i\n"
    "n: float32 = where q k m\nd: float32 = sub x n\n",
)
VARIANCE = (
    "fourfold program 1\naxes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input float32 [b]\n"
    "m: float32 = sum x\nc: float32 = columns\nn: float32 = div m c\nd: float32 = sub x n\ne: float32 = mul d d\n"
    "s: float32 = sum e\ny: float32 = div d s\nz: float32 = mul y w\noutput z float32 [a b]\noutput n float32 [a]\n"
)
SUMS = (
    "fourfold program 1\naxes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ny: float32 = mul x x\n"
    "column_sum y float32 [b]\n"
)
WEIGHTED = (
    "fourfold program 1\naxes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input float32 [b]\n"
    "y: float32 = mul x w\ncolumn_sum y float32 [b]\n"
)
SCALED = (
    "fourfold program 1\naxes a=x.0\nx: float32 = input float32 [a]\nk: float32 = input float32 [a]\n"
    "y: float32 = mul x k\noutput y float32 [a]\n"
)
LAYOUT = "grid {} rows={} lanes=4 copies=2 group={} each={} split={} wide={}:{}"


def written(text: str, split: str, rows: int, group: int, each: int, is_split: int, strides: str, wide: int = 0) -> str:
    return cuda.print_grid(
        build(read(text), GridLayout.of(LAYOUT.format(split, rows, group, each, is_split, wide, strides)))
    )


def kernels(source: str) -> list[str]:
    return re.findall(r"__global__ void __launch_bounds__\(\d+\) fourfold_(\w+)\(", source)


def loads(source: str, tensor: str) -> int:
    return len(re.findall(rf"= load(?:_strided)?(?:<\d+>)?\({tensor}_data", source))


def test_a_row_in_registers_is_read_once() -> None:
    source = written(SOFTMAX, "rows", 1, 32, 3, 0, "nv,0v,nv,n0")
    assert kernels(source) == ["rows"] and loads(source, "x") == loads(source, "w") == 3
    assert "exchange(" in source and "barrier()" not in source


TWICE = {
    "softmax": SOFTMAX,
    "safe_softmax": SAFE_SOFTMAX,
    "variance": VARIANCE,
    "negated_deviations": VARIANCE.replace("sub x n", "sub n x"),
}


@pytest.mark.parametrize("program", TWICE.values(), ids=TWICE)
def test_a_long_row_is_read_twice(program: str) -> None:
    source = written(program, "rows", 1, 256, 0, 0, "nv,0v,nv,n0")
    assert kernels(source) == ["rows"] and loads(source, "x") == 2 * 2 and loads(source, "w") == 2
    assert source.count("barrier()") == 2 * 2  # two reductions


@pytest.mark.parametrize("is_split", [0, 1])
def test_sums_of_two_shifts_share_a_pass_and_exponentials(is_split: int) -> None:
    both = SOFTMAX.replace(
        "y: float32 = div e s\n",
        "k: float32 = constant 0.0\ni: float32 = constant inf\na: float32 = abs m\nq: boolean = eq a i\n"
        "n: float32 = where q k m\nf: float32 = sub x n\ng: float32 = exp f\nh: float32 = sum g\n"
        "t: float32 = add s h\ny: float32 = div e t\n",
    )
    once, twice = (written(program, "rows", 1, 256, 0, is_split, "nv,0v,nv,n0") for program in (SOFTMAX, both))
    assert loads(twice, "x") == 2 * 2 and loads(twice, "w") == 2
    in_first_pass = [source[: source.index("barrier()")].count("exp(") for source in (once, twice)]
    assert in_first_pass[0] == in_first_pass[1] > 0
    if is_split:  # and what a block stores for its chunk
        stages = [source[: source.index("fourfold_stage_1")] for source in (once, twice)]
        assert stages[0] == stages[1]


def test_random_programs_have_online_sums() -> None:
    """What the runs of random programs with long rows compare (run_random_programs.py)."""
    found, shared, infinite = 0, 0, 0
    for seed in range(25):
        generator = Generator(seed, normalises=True)
        program = read(generator.program().text)
        online = Schedule(program, keeps=False, has_online_sums=True)
        if online.stages < Schedule(program, keeps=False).stages:
            found += bool(online.online)
            infinite += generator.has_infinities
            shared += len({each.first for each in online.online.values()}) < len(online.online)
    assert found >= 8 and shared >= 1 and infinite >= 2, (found, shared, infinite)


# Programs that are neither a softmax nor a variance: the line to replace and its replacement; and how often a row of x
# and w is loaded.
OTHERS = {
    "maximum_of_another": (SOFTMAX, "m: float32 = amax x", "m: float32 = amax w", (2, 2)),
    "smallest": (SOFTMAX, "m: float32 = amax x", "m: float32 = amin x", (3, 1)),
    "negated": (SOFTMAX, "d: float32 = sub x m", "d: float32 = sub m x", (3, 1)),
    "twice_the_maximum": (SOFTMAX, "d: float32 = sub x m", "n: float32 = add m m\nd: float32 = sub x n", (3, 1)),
    "or_infinity": (SAFE_SOFTMAX, "k: float32 = constant 0.0", "k: float32 = constant inf", (3, 1)),
    "mean_of_another": (VARIANCE, "m: float32 = sum x", "m: float32 = sum w", (2, 2)),
    "bounded_mean": (VARIANCE, "d: float32 = sub x n", "o: float32 = tanh n\nd: float32 = sub x o", (3, 1)),
    "product": (VARIANCE, "e: float32 = mul d d", "e: float32 = mul d x", (3, 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_long_row_is_read_once_more_for_other_reductions(name: str) -> None:
    program, line, other, (x, w) = OTHERS[name]
    assert line in program
    source = written(program.replace(line, other), "rows", 1, 256, 0, 0, "nv,0v,nv,n0")
    assert (loads(source, "x"), loads(source, "w")) == (2 * x, 2 * w)


def test_rows_of_several_blocks_have_a_kernel_for_each_stage() -> None:
    source = written(SOFTMAX, "rows", 1, 256, 0, 1, "nv,0v,nv,n0")
    assert kernels(source) == ["stage_0", "stage_1"]
    source = written(SOFTMAX.replace("amax x", "amax w"), "rows", 1, 256, 0, 1, "nv,0v,nv,n0")
    assert kernels(source) == ["stage_0", "stage_1", "stage_2"]


def test_one_thread_has_a_short_row() -> None:
    source = written(SOFTMAX, "rows", 1, 1, 2, 0, "nv,0v,nv,n0")
    assert "exchange(" not in source and "barrier()" not in source


def test_sums_of_columns_are_finished_if_there_are_chunks() -> None:
    assert kernels(written(SUMS, "columns", 1, 8, 0, 0, "nv,01")) == ["columns"]
    assert kernels(written(SUMS, "columns", 1, 8, 0, 1, "nv,01")) == ["columns", "finish"]


def test_what_all_rows_share_is_read_before_the_loop_over_rows() -> None:
    source = written(WEIGHTED, "columns", 1, 8, 0, 0, "nv,0v,01")
    assert loads(source, "x") == 2 and loads(source, "w") == 1  # the copies
    assert source.index("w_data + column") < source.index("for (") < source.index("x_data + ")


def test_one_element_for_all_is_read_before_the_loop() -> None:
    source = written(SCALED, "elements", 0, 1, 0, 0, "v,0,v")
    assert loads(source, "k") == 1 and source.index("k_data)") < source.index("for (")
    assert source.count("load<4>(x_data") == 2  # the copies


def test_the_last_elements_are_single() -> None:
    source = written(SCALED, "elements", 0, 1, 0, 0, "v,v,v")
    assert source.count("load<4>(x_data") == 2 and source.count("load<1>(x_data") == 1


def test_indices_are_as_wide_as_the_layout_says() -> None:
    for wide, type in ((0, "int32"), (1, "int64")):
        layout = GridLayout.of(LAYOUT.format("elements", 0, 1, 0, 0, wide, "v,v,v"))
        assert f"typedef {type} index;" in cuda.print_file(build(read(SCALED), layout))


def test_nothing_is_added_up_by_atomics() -> None:
    for text, split, strides in ((SOFTMAX, "rows", "nv,0v,nv,n0"), (SUMS, "columns", "nv,01")):
        assert "atomic" not in written(text, split, 1, 8, 0, 1, strides)


def test_a_step_with_reductions_is_no_kernel() -> None:
    layout = "ts,i;s,s/" + LAYOUT.format("rows", 1, 32, 2, 0, 0, "nv,0v,nv,n0")
    with pytest.raises(NotCompiled, match="a step with reductions"):
        build(read(SOFTMAX), GridLayout.of(layout))


def test_explain_prints_the_kernel() -> None:
    layout = LAYOUT.format("rows", 1, 32, 2, 0, 0, "nv,0v,nv,n0")
    program = Program("program_0", ("softmax", "mul"), SOFTMAX, None, layout, "cuda")
    assert nests.printed(program, "c") == written(SOFTMAX, "rows", 1, 32, 2, 0, "nv,0v,nv,n0")
    assert "struct Vec {" in nests.printed(program, "c", prelude=True)
    assert nests.about([program], "auto") == (
        "Kernels on cuda run 1 of 1 program, compiled when they are first called."
    )
    with pytest.raises(ValueError, match="expected c, because program_0 runs on cuda, but got llvm"):
        nests.printed(program, "llvm")
