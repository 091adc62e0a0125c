"""Programs as C++: the same bits as the interpreter's, whatever they are made of and wherever elements lie."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fourfold
from benchmarks.functions import FUNCTIONS
from compiled import compiled
from fourfold.compiler import cxx
from fourfold.compiler.calling import Program
from fourfold.compiler.record import Record
from machine import ROOT, tool
from once import locked
from programs import HEAD, ROADS
from programs_cxx import SINE_AND_COSINE, assert_same_bits, programs
from test_levels import lower_levels

pytestmark = pytest.mark.usefixtures("strict", "in_programs")
PROGRAMS = {name: (text, draw) for name, text, draw in programs()}
SIZES = (0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 255, 1023, 1025, 5000)
SOME_FUNCTIONS = ("swiglu", "layer_norm", "cross_entropy", "mandelbrot")


@pytest.fixture(scope="module")
def cache(shared: Path) -> Iterator[Path]:
    """Of all workers: what one has compiled the others load."""
    tool("c++", "g++")
    folder = shared / "programs in C++"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOURFOLD_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def both(cache: Path, shared: Path) -> dict[str, tuple[Program, Program]]:
    """Each program interpreted, and compiled."""
    pairs = {name: (Program(text), Program(text)) for name, (text, _) in PROGRAMS.items()}
    with locked(shared / "programs in C++.lock"):
        cxx.compile_programs({name: program for name, (_, program) in pairs.items()})
    return pairs


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits(name: str, both: dict[str, tuple[Program, Program]]) -> None:
    interpreted, made = both[name]
    for size in SIZES:
        given = PROGRAMS[name][1](size)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert_same_bits(made(*given), interpreted(*given))


@pytest.mark.parametrize("name", ["norm", "totals", "reductions_of_float32", "sine_and_cosine"])
def test_the_same_bits_from_any_number_of_threads(name: str, both: dict[str, tuple[Program, Program]]) -> None:
    """Many elements, of which each thread has some: rows, or columns of few rows."""
    interpreted, made = both[name]
    given = PROGRAMS[name][1](60_000)
    torch.set_num_threads(1)
    expected = interpreted(*given)
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        assert_same_bits(made(*given), expected)


def test_what_lies_apart(both: dict[str, tuple[Program, Program]]) -> None:
    interpreted, made = both["norm"]
    for rows, columns in ((5, 70), (40, 9), (2, 30_000)):
        given = torch.randn(columns, rows).bfloat16().t(), torch.randn(3 * columns, dtype=torch.float64)[::3]
        assert_same_bits(made(*given), interpreted(*given))


@pytest.mark.parametrize("name", SOME_FUNCTIONS)
def test_compiled_functions(name: str, cache: Path, shared: Path) -> None:
    function = FUNCTIONS[name]
    given = function.draw(3000, torch.Generator().manual_seed(0))
    found, record = {}, Record()
    for cpu in ("interpreter", "cxx"):
        own = [one.clone().requires_grad_(k < function.gradients) for k, one in enumerate(given)]
        call = compiled(function.call, record, options={"cpu": cpu})
        results = call(*own)
        results = results if isinstance(results, tuple) else (results,)
        if function.gradients:
            torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        found[cpu] = (*(result.detach() for result in results), *(one.grad for one in own[: function.gradients]))
    assert_same_bits(found["cxx"], found["interpreter"])
    built = record.captured[-1].forward.compiled.programs[0]
    assert "program_0_stage_0(Frame& frame, int64_t count)" in built.cpp()


AS_CXX = """\
// fourfold program 1
// axes a=x.0
// x: float32 = input float32 [a]
// s: float32 = sin x
// c: float32 = cos x
// s2: float32 = mul s s
// c2: float32 = mul c c
// y: float32 = add s2 c2
// output y float32 [a]
#include "cpu/kernels/emitted.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::emitted {

void sine_and_cosine_stage_0(Frame& frame, int64_t count) {
  const Input<float> in_x(frame.slots[0]);
  const Output<float> out_y(frame.slots[1]);
  for (int64_t k = 0; k < count; k += lanes) {
    const int64_t n = left(count, k);
    look_ahead(frame, k);
    const float32 x = in_x.at(k, n);
    const auto [s, c] = op::sincos(x);
    const float32 c2 = op::mul(c, c);
    const float32 s2 = op::mul(s, s);
    const float32 y = op::add(s2, c2);
    out_y.put(k, n, y);
  }
}

FOURFOLD_STAGES(sine_and_cosine) = {sine_and_cosine_stage_0};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::emitted
"""


@pytest.mark.parametrize("road", ROADS)
def test_a_program_reads_as_it_is_written(road: type) -> None:
    assert road(SINE_AND_COSINE).source("sine_and_cosine") == AS_CXX


@pytest.mark.parametrize("road", ROADS)
def test_each_road_takes_what_is_compiled(road: type, cache: Path) -> None:
    x = torch.randn(1000)
    made = road(SINE_AND_COSINE)
    cxx.compile_programs({"sine_and_cosine": made})
    assert_same_bits(made(x), road(SINE_AND_COSINE)(x))


def test_a_stage_with_too_many_blocks_is_left_to_the_primitives(cache: Path) -> None:
    lines = []
    for k in range(70):
        lines += [f"k{k}: float32 = constant {k}.5", f"s{k}: float32 = mul x k{k}", f"t{k}: float32 = sum s{k}"]
        lines += [f"output t{k} float32 [a]"]
    inputs = [line for line in lines if not line.startswith("output")]
    outputs = [line for line in lines if line.startswith("output")]
    text = "\n".join([f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]", *inputs, *outputs, ""])
    made = Program(text)
    assert "FOURFOLD_STAGES(many) = {nullptr, nullptr};" in made.source("many")
    x = torch.randn(3, 50)
    cxx.compile_programs({"many": made})
    assert_same_bits(made(x), Program(text)(x))


ON_A_LEVEL = """
import sys
sys.path[:0] = sys.argv[1:]
import torch, fourfold
from fourfold.compiler import cxx
from fourfold.compiler.calling import Program
from programs_cxx import assert_same_bits, programs
some = [one for one in programs() if one[0] in ("operations_of_float32", "operations_of_int64", "norm", "apart")]
pairs = {name: (Program(text), Program(text)) for name, text, _ in some}
cxx.compile_programs({name: made for name, (_, made) in pairs.items()})
for name, _, draw in some:
    for size in (1, 17, 1000):
        given = draw(size)
        assert_same_bits(pairs[name][1](*given), pairs[name][0](*given))
print(fourfold.cpu_capability())
"""


@pytest.mark.parametrize("level", [level for level in lower_levels() if level in ("default", "avx2", "avx512")])
def test_the_same_bits_on_a_lower_level(level: str) -> None:
    tool("c++", "g++")
    done = subprocess.run(
        [sys.executable, "-c", ON_A_LEVEL, str(ROOT / "tests"), str(ROOT)],
        env=os.environ | {"FOURFOLD_CPU_CAPABILITY": level},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [level]


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the compiler has been called since."""
    script, calls = tmp_path / "compiler", tmp_path / "calls"
    script.write_text(f'#!/bin/sh\necho >> "{calls}"\nexec "{tool("c++", "g++")}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return lambda: len(calls.read_text()) if calls.exists() else 0


def test_what_is_in_the_cache_is_not_compiled_again(
    counting: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOURFOLD_CACHE", str(tmp_path / "a" / "cache"))
    for _ in range(2):
        cxx.compile_programs({"sine_and_cosine": Program(SINE_AND_COSINE)})
    assert counting() == 1
    cxx.compile_programs({"under_another_name": Program(SINE_AND_COSINE)})
    assert counting() == 2
    assert len(list((tmp_path / "a" / "cache").iterdir())) == 2, "and nothing else is left there"


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(Exception, match='option cpu="cxx" needs a C\\+\\+ compiler, but there is no no-such-compiler'):
        compiled(lambda x: x.sin() + 1, options={"cpu": "cxx"})(torch.randn(5))
    assert compiled(lambda x: x.sin() + 1)(torch.randn(5)).shape == (5,)


def test_what_the_compiler_refuses_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "compiler"
    script.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("FOURFOLD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="could not compile programs .*:\nno space left"):
        cxx.compile_programs({"sine_and_cosine": Program(SINE_AND_COSINE)})
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(("cpu", "kind"), [("gpu", ValueError), (True, TypeError)])
def test_another_choice_is_an_error(cpu: object, kind: type) -> None:
    with pytest.raises(Exception, match="expected option cpu to be") as raised:
        compiled(lambda x: x.sin(), options={"cpu": cpu})(torch.randn(5))
    assert isinstance(raised.value, kind) or kind.__name__ in str(raised.value)


def test_the_backend_alone_loads_nothing_of_it() -> None:
    code = "import sys, fourfold.compiler.backend; print('fourfold.compiler.cxx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"]
    assert fourfold.cpu_capability()
