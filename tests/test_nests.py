"""Loop nests give the interpreter's bits, on every program and layout, with any number of threads, or fall back to the
interpreter."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F

import fourfold
from forked import Forks
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir import reading
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.jit import cache, service
from fourfold.compiler.nest.jit.cache import Cache
from fourfold.compiler.nest.print import c
from fourfold.compiler.pipeline.calling import Program
from nests import (
    INTERPRETER,
    compiled_so_far,
    expect_the_interpreters_bits,
    inputs_of,
    needs_nests,
)
from program_cases import assert_same_bits, programs
from programs import HEAD

pytestmark = needs_nests

CASES = {name: (text, draw) for name, text, draw in programs()}
ROWS = (
    f"{HEAD}axes a=x.0 b=x.1 | c=x.2 d=x.3\nx: float32 = input float32 [a b c d]\nw: float32 = input float32 [c]\n"
    "s: float32 = sum x\nm: float32 = amax x\ne: float32 = sub x s\nf: float32 = mul e w\ng: float32 = exp f\n"
    "h: float32 = sum g\ni: float32 = div g h\noutput i float32 [a b c d]\noutput m float32 [a b]\n"
    "output h float32 [a b]\ncolumn_sum f float32 [c d]\n"
)
POINTWISE = (
    f"{HEAD}axes a=x.0 b=x.1 c=x.2\nx: float32 = input float32 [a b c]\ny: float32 = input float32 [a 1 c]\n"
    "z: float32 = input float32 [b c]\nu: float32 = add x y\nv: float32 = mul u z\noutput v float32 [a b c]\n"
    "output [u v] float32 [a b c] join 1\n"
)


@pytest.mark.parametrize("size", [1, 3, 8, 33, 70, 1000])
@pytest.mark.parametrize("name", CASES)
def test_programs_of_all_operations(name: str, size: int) -> None:
    text, draw = CASES[name]
    expect_the_interpreters_bits(text, draw(size))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape",
    [(3, 2, 5, 7), (1, 1, 5, 7), (40, 3, 1, 9), (1, 1, 40, 1000), (1, 2, 3, 9000), (17, 1, 64, 4), (2, 1, 1, 1)],
)
def test_rows_whose_columns_run_along_several_axes(shape: tuple[int, ...], threads: int) -> None:
    """Threads split a few long rows by columns; the order of a sum stays the same."""
    torch.set_num_threads(threads)
    x, w = torch.randn(shape), torch.randn(shape[2])
    expect_the_interpreters_bits(ROWS, (x, w))
    apart = torch.randn(*shape[:3], 2 * shape[3])[..., ::2]
    expect_the_interpreters_bits(ROWS, (apart, w))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 1), (200, 3, 33), (2, 1, 70000), (5, 7, 64), (4, 1, 8)])
def test_broadcast_operands(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    for threads in (1, 2):
        torch.set_num_threads(threads)
        inputs = (torch.randn(shape), torch.randn(a, 1, c), torch.randn(b, c))
        expect_the_interpreters_bits(POINTWISE, inputs)
        expect_the_interpreters_bits(POINTWISE, (*inputs[:2], torch.randn(b, 1).expand(b, c)))
        expect_the_interpreters_bits(POINTWISE, (torch.randn(a, b, 2 * c)[..., ::2], *inputs[1:]))


def test_sums_do_not_depend_on_the_layout_or_on_threads() -> None:
    text = (
        f"{HEAD}axes a=x.0 | b=x.1 c=x.2\nx: float32 = input float32 [a b c]\ns: float32 = sum x\n"
        "output s float32 [a]\n"
    )
    x = torch.randn(1, 331, 301)
    padded = torch.randn(1, 331, 400)
    padded[..., :301] = x
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for given in (x, padded[..., :301]):
            results += [Program(text, "", generator)(given) for generator in (INTERPRETER, service.number("llvm"))]
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_special_values(name: str, special: bool) -> None:
    text, _ = CASES[name]
    expect_the_interpreters_bits(text, inputs_of(text, 37, special))


def test_programs_without_elements_need_no_nest() -> None:
    for shape in ((0, 3), (3, 0)):
        text = f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ns: float32 = sum x\noutput s float32 [a]\n"
        expect_the_interpreters_bits(text, (torch.randn(shape),), compiles=False)


TURNED = (
    f"{HEAD}axes a=x.0 b=x.1 c=x.2\nx: float32 = input float32 [a b c]\ny: float32 = input bfloat16 [a c b]\n"
    "z: float64 = input float64 [c b]\nk: boolean = input boolean [c a]\nu: float32 = add x y\n"
    "u64: float64 = to_float64 u\nv: float64 = mul u64 z\nw: float64 = where k v u64\noutput u float16 [a c b]\n"
    "output v float64 [a b c]\noutput w float64 [c b a]\n"
)
TURNED_ROWS = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ny: float32 = input float32 [b a]\n"
    "u: float32 = add x y\ns: float32 = sum u\nv: float32 = exp u\nt: float32 = amax v\nw: float32 = div v t\n"
    "output s float32 [a]\noutput w float32 [b a]\ncolumn_sum w float32 [b]\n"
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 70, 33), (2, 9, 300), (40, 3, 17), (2, 1000, 7), (2, 7, 1000)])
def test_operands_that_lie_across(shape: tuple[int, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    a, b, c = shape
    inputs = (torch.randn(shape), torch.randn(a, c, b).bfloat16(), torch.randn(c, b).double(), torch.rand(c, a) < 0.5)
    expect_the_interpreters_bits(TURNED, inputs)


@pytest.mark.parametrize("shape", [(3, 5), (70, 33), (9, 3000), (200, 700), (33, 20000)])
def test_rows_that_lie_across(shape: tuple[int, ...]) -> None:
    a, b = shape
    for threads in (1, 2):
        torch.set_num_threads(threads)
        expect_the_interpreters_bits(TURNED_ROWS, (torch.randn(a, b), torch.randn(b, a)))
        expect_the_interpreters_bits(TURNED_ROWS, (torch.randn(b, a).t(), torch.randn(a, b).t()))


@pytest.mark.parametrize("shape", [(40, 30, 4), (7, 100, 3), (3, 64, 9), (50, 16, 1), (1, 33, 16)])
def test_a_short_innermost_axis(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    inputs = (torch.randn(shape), torch.randn(a, 1, c), torch.randn(b, c))
    expect_the_interpreters_bits(POINTWISE, inputs)
    expect_the_interpreters_bits(POINTWISE, (*inputs[:2], torch.randn(b, 1).expand(b, c)))


# The statistics' operands step through a row's columns as through one axis, the weights don't.
GROUPED = (
    f"{HEAD}axes a=x.0 | b=x.1 c=x.2\nx: float32 = input float32 [a b c]\ny: float32 = input bfloat16 [a b c]\n"
    "w: float32 = input float32 [b]\nu: float32 = mul x y\ns: float32 = sum u\nd: float32 = sub x s\n"
    "q: float32 = mul d d\nm: float32 = amax q\ne: float32 = exp d\nf: float32 = mul e w\nt: float32 = sum f\n"
    "g: float32 = div f t\noutput g float32 [a b c]\noutput q float32 [a b c]\noutput m float32 [a]\n"
    "column_sum g float32 [b c]\n"
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 4, 64), (2, 7, 37), (1, 33, 900), (300, 2, 16)])
def test_columns_that_are_one_axis_for_some_tensors(shape: tuple[int, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    a, b, c = shape
    x, y, w = torch.randn(shape), torch.randn(shape).bfloat16(), torch.randn(b)
    expect_the_interpreters_bits(GROUPED, (x, y, w))
    expect_the_interpreters_bits(GROUPED, (x[:1, :1, :1].expand(shape), y, w))
    expect_the_interpreters_bits(GROUPED, (torch.randn(a, b, 2 * c)[..., ::2], y, w))
    expect_the_interpreters_bits(GROUPED, (torch.randn(a, 2 * b, c)[:, ::2], y, w))
    expect_the_interpreters_bits(GROUPED, (torch.randn(a, b, c + 3)[..., 3:], y, w))


def test_only_a_stage_that_needs_it_gathers_a_row() -> None:
    """Only the weights' stage does; the others would if x had gaps between its channels."""

    def gathered(x: str) -> int:
        layout = Layout.of(f"r1:{x},nd1,010,nd1,nd1,000,0d1")
        return c.print_nest(build.build(reading.read(GROUPED), layout, 8)).count("% size")

    assert gathered("nd1") == 1 < gathered("nn1")


def test_what_nests_leave_to_the_interpreter_has_a_reason() -> None:
    """Threads share one row, and one tensor isn't contiguous along it."""
    torch.set_num_threads(2)
    inputs = (torch.randn(1, 40000), torch.randn(40000, 2)[:, :1])
    expect_the_interpreters_bits(TURNED_ROWS, inputs)
    with pytest.raises(build.NotCompiled, match="rows that are not contiguous"):
        build.build(reading.read(TURNED_ROWS), Layout.of("c1t0:n1,1n,10,1n,01"), 8)


def norm_and_gate(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w) * torch.sigmoid(x)


def compiled(generator: str | None) -> Callable[..., Tensor]:
    options = {} if generator is None else {"generator": generator}
    return torch.compile(norm_and_gate, backend="fourfold", options=options)


def test_generators_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, results = [], []
    for generator in ("interpreter", "llvm", None):
        torch._dynamo.reset()
        monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm" if generator is None else "interpreter")
        # Of few columns each number has a nest of its own.
        x = torch.randn(33, 5 + len(counts), generator=torch.Generator().manual_seed(1))
        w = torch.randn(x.shape[1])
        before = compiled_so_far()
        results.append(compiled(generator)(x, w))
        counts.append(service.service.compiled - before)
        torch.testing.assert_close(results[-1], norm_and_gate(x, w))
    assert counts[0] == 0 and counts[1] > 0 and counts[2] > 0


def test_automatic_nests_come_with_the_second_call() -> None:
    text = (
        f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\ny: float32 = sin x\nz: float32 = sin y\n"
        "output z float32 [a]\n"
    )
    program = Program(text, "automatic", service.number("auto"))
    x = torch.randn(100)
    expected = program(x)
    before = compiled_so_far()
    program(x)
    assert fourfold.wait_for_nests() and service.service.compiled == before + 1
    assert_same_bits(program(x), expected)


@pytest.mark.parametrize("generator", ["c", 1, ""])
def test_other_generators_are_refused(generator: object) -> None:
    with pytest.raises(BackendCompilerFailed, match="expected option generator to be one of interpreter, auto, llvm"):
        torch.compile(norm_and_gate, backend="fourfold", options={"generator": generator})(
            torch.ones(2, 2), torch.ones(2)
        )


def test_another_generator_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_GENERATOR", "gcc")
    with pytest.raises(
        BackendCompilerFailed, match="FOURFOLD_GENERATOR to be one of interpreter, auto, llvm, but got 'gcc'"
    ):
        torch.compile(norm_and_gate, backend="fourfold")(torch.ones(2, 2), torch.ones(2))


SCRIPT = """
import os, sys, torch, fourfold
from fourfold.compiler.nest.jit import service
{before}
def f(x):
    return torch.sin(x) * 2 + x
x = torch.randn(1000)
for _ in range(3):
    y = torch.compile(f, backend="fourfold", options=dict(generator="llvm"))(x)
assert torch.allclose(y, f(x), atol=1e-6)
{after}
print("obstacle:", service.obstacle(), "compiled:", service.service.compiled)
"""
NO_LLVMLITE = "sys.modules['llvmlite'] = None; import importlib.util; importlib.util.find_spec = lambda name: None"
NO_EXECUTABLE_MEMORY = "import ctypes; assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0"  # PR_SET_MDWE
FORK = """
child = os.fork()
torch._dynamo.reset()
g = torch.compile(lambda x: x.cos() + x, backend="fourfold", options=dict(generator="llvm"))
assert torch.allclose(g(x), x.cos() + x, atol=1e-6)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (NO_LLVMLITE, "", "obstacle: llvmlite is not installed compiled: 0"),
        (NO_EXECUTABLE_MEMORY, "", "obstacle: memory that was written can't be made executable here compiled: 0"),
        ("torch.set_num_threads(1)", FORK, "obstacle:  compiled: 2"),
    ],
    ids=["without llvmlite", "without executable memory", "in a forked process"],
)
@pytest.mark.slow
def test_a_process(before: str, after: str, expected: str, after_dynamo: Forks) -> None:
    if before == NO_EXECUTABLE_MEMORY and not has_policy():
        pytest.skip("this kernel has no PR_SET_MDWE")
    script = SCRIPT.format(before=before, after=after)
    done = after_dynamo.run("-c", script)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def has_policy() -> bool:
    """Whether the operating system can forbid memory that is both writable and executable (Linux 6.3)."""
    probe = "import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0)"
    return subprocess.run([sys.executable, "-c", probe]).returncode == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="on Arm the default level has vectors")
@pytest.mark.skipif(
    "default" not in fourfold._C.build_info()["cpu_levels"], reason="only FOURFOLD_CPU_LEVELS=ON builds it"
)
def test_a_level_without_vectors_has_no_nests(after_dynamo: Forks) -> None:
    environment = {**os.environ, "FOURFOLD_CPU_CAPABILITY": "default"}
    done = after_dynamo.run("-c", SCRIPT.format(before="", after=""), env=environment)
    assert "the CPU level default has no vectors, such as AVX2's or NEON's compiled: 0" in done.stdout, done.stderr


NO_COMPILER = """
from fourfold.compiler.nest.jit.engine import Engine
def refuse(self, ir):
    raise AssertionError("compiled again")
Engine.code = refuse
"""


@pytest.mark.slow
def test_code_is_cached_for_other_processes(tmp_path: Path, after_dynamo: Forks) -> None:
    environment = {**os.environ, "FOURFOLD_CACHE": str(tmp_path / "cache")}
    for before in ("", NO_COMPILER):
        script = SCRIPT.format(before=before, after="assert not service.service.failures, service.service.failures")
        done = after_dynamo.run("-c", script, env=environment)
        assert done.returncode == 0, done.stderr
        assert "obstacle:  compiled: 1" in done.stdout
    (file,) = (tmp_path / "cache" / "nests").iterdir()
    file.write_bytes(b"something else")
    done = after_dynamo.run("-c", SCRIPT.format(before="", after=""), env=environment)
    assert "compiled: 1" in done.stdout, done.stderr


@pytest.mark.parametrize("other", [b"something else", b"[]\ncode", b'{"kernels": []}\ncode', b"{}"])
def test_a_file_of_something_else_is_not_in_the_cache(other: bytes, tmp_path: Path) -> None:
    cache, head = Cache(tmp_path, "level", "compiler"), {"functions": ["f"], "numbers": [1]}
    cache.put("text", "layout", head, b"code")
    assert cache.get("text", "layout", *head) == (head, b"code")
    cache.path("text", "layout").write_bytes(other)
    assert cache.get("text", "layout", *head) is None


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    cache = Cache(tmp_path, "level", "compiler")
    path = cache.path("text", "layout")
    (path / "inside").mkdir(parents=True)  # a file can't replace it
    with pytest.raises(OSError, match="directory"):
        cache.put("text", "layout", {}, b"code")
    assert list(path.parent.iterdir()) == [path]


def test_generators_that_changed_have_their_own_cache(tmp_path: Path) -> None:
    copy = shutil.copytree(
        Path(cache.__file__).parents[1], tmp_path / "nest", ignore=shutil.ignore_patterns("__pycache__")
    )
    assert cache.generators(copy) == cache.generators()
    assert cache.generators() in Cache(tmp_path, "level", "compiler").common
    for number, name in enumerate(("cpu/side_by_side.py", "grid/rows.py", "print/prelude.h")):
        changed = shutil.copytree(copy, tmp_path / str(number))
        (changed / name).write_text((changed / name).read_text() + "\n")
        assert cache.generators(changed) != cache.generators()


def test_a_cache_that_cannot_be_written_costs_no_nest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is a file, because root may write into any folder."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(service.service, "cache", Cache(tmp_path / "file", "level", "compiler"))
    monkeypatch.setattr(service.service, "has_warned", False)
    text = f"{HEAD}axes a=x.0 b=x.1\nx: float32 = input float32 [a b]\ny: float32 = atan x\noutput y float32 [a b]\n"
    before = compiled_so_far()
    for x in (torch.randn(40, 50), torch.randn(40, 100)[:, ::2]):
        Program(text, "nest", service.number("llvm"))(x)
        with service.service.busy:  # the nest was attached before it is cached
            assert not service.service.failures
    assert service.service.compiled == before + 2
    assert [record.getMessage() for record in caplog.records if "FOURFOLD_CACHE" in record.getMessage()] == [
        f"code can't be cached for other processes in FOURFOLD_CACHE: "
        f"[Errno 20] Not a directory: '{tmp_path / 'file' / 'nests'}'"
    ]
