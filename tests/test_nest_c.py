"""The C++ that explain shows of a loop nest computes the same: a compiler compiles it, and programs run it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from fourfold import _C
from fourfold.compiler.nest.cpu.build import NotCompiled, build
from fourfold.compiler.nest.ir import levels
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.loops import Nest
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nest.print import c
from fourfold.compiler.pipeline.calling import Program
from nests import INTERPRETER, LLVM, OF_CHANNELS, OF_FIXED_COLUMNS, SHORT, SUMS_OF_FIXED_COLUMNS, without_sizes
from once import made_once
from program_cases import SINE_AND_COSINE, assert_same_bits, programs
from programs import HEAD

COMPILER = os.environ.get("CXX") or "c++"
LEVEL = levels.level()
FLAGS = {
    "neon": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
}
pytestmark = [
    pytest.mark.skipif(LEVEL is None and os.environ.get("CI") != "true", reason="this CPU level has no vectors"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C++ compiler"),
]
UNITS = 4
SIZES = (37, 1000)  # for one text

SOFTMAX = (
    f"{HEAD}axes a=x.0 b=x.1 | c=x.2 d=x.3\nx: float32 = input float32 [a b c d]\nm: float32 = amax x\n"
    "s: float32 = sub x m\ne: float32 = exp s\nt: float32 = sum e\ny: float32 = div e t\noutput y float32 [a b c d]\n"
    "output t float32 [a b]\ncolumn_sum e float32 [c d]\n"
)
BROADCAST = (
    f"{HEAD}axes a=x.0 b=x.1 c=x.2\nx: float32 = input float32 [a b c]\ny: float32 = input bfloat16 [a 1 c]\n"
    "z: float32 = input float16 [b c]\nu: float32 = add x y\nv: float32 = mul u z\noutput v float32 [a b c]\n"
    "output [u v] bfloat16 [a b c] join 1\n"
)
NUMBERS = (
    f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\nk: float32 = number\nn: int64 = number\n"
    "c: float32 = constant 0.1\ni: float32 = constant inf\n"
    "t: float32 = input float32 []\nr: float32 = exp t\nf: float32 = to_float32 n\n"
    "p: float32 = mul x k\nq: float32 = add p c\nm: float32 = minimum q i\ng: float32 = mul f r\nh: float32 = sub m g\n"
    "output h float32 [a]\noutput r float32 []\n"
)
ONE_COLUMN = (
    f"{HEAD}axes a=x.0 |\nx: float32 = input float32 [a]\ny: float32 = exp x\ns: float32 = sum y\n"
    "output s float32 [a]\ncolumn_sum y float32 []\n"
)
FEW_COLUMNS = (
    "x: float32 = input float32 [a b]\nm: float32 = amax x\nd: float32 = sub x m\ne: float32 = exp d\n"
    "s: float32 = sum e\ny: float32 = div e s\noutput y float32 [a b]\noutput y bfloat16 [b a]\noutput s float32 [a]\n"
)
FEW = (
    f"{HEAD}axes a=x.0 b=x.1\nx: float32 = input float32 [a b]\nw: float32 = input float16 [a b]\n"
    "m: boolean = input boolean [b]\ny: float32 = mul x w\nz: float32 = where m y x\noutput z float32 [a b]\n"
)
BOOLEANS = (
    f"{HEAD}axes a=70 | c=37\nx: boolean = input boolean [a c]\np: boolean = any x\nq: boolean = all x\n"
    "y: boolean = bitwise_xor x p\nr: boolean = all y\nz: boolean = bitwise_or y q\noutput z boolean [a c]\n"
    "output p boolean [a]\noutput q boolean [a]\noutput r boolean [a]\n"
)
# Names that C++ or the printer uses for something else.
CLASHING = (
    f"{HEAD}axes a=begin.0 | b=begin.1\nbegin: float32 = input float32 [a b]\nfloat: float32 = exp begin\n"
    "sum: float32 = sum float\nload: float32 = div float sum\nmain: float32 = amax load\nk: float32 = sub load main\n"
    "output k float32 [a b]\noutput main float32 [a]\n"
)
ORDER = (
    f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\ny: float32 = input float32 [a]\nd: float32 = sub x y\n"
    "e: float32 = sub y d\nf: float32 = add x e\ng: float32 = add f d\nh: float32 = mul g f\ni: float32 = div x h\n"
    "j: float32 = neg i\nn: float32 = neg j\nl: float32 = sub x n\nm: boolean = lt x y\no: boolean = bitwise_not m\n"
    "p: boolean = le m o\nq: boolean = bitwise_and p m\nr: float32 = where q l g\noutput r float32 [a]\n"
    "output e float32 [a]\noutput p boolean [a]\n"
)


@dataclass
class Case:
    """A program, and calls with one layout or several. threads: torch's number of threads."""

    text: str
    calls: list[tuple[Sequence[object], int]]
    own: str = ""
    program: Program | None = None
    asked: list[str] = field(default_factory=list)  # requested layouts, and those of them that have nests
    layouts: list[str] = field(default_factory=list)
    counts: list[ctypes.c_long] = field(default_factory=list)  # how often each nest was called


def cases() -> Iterator[tuple[str, Case]]:
    for name, text, draw in programs():
        yield name, Case(text, [(draw(size), 1) for size in SIZES])
    found = {name: (text, draw) for name, text, draw in programs()}
    text, draw = found["norm"]
    found["norm_in_order"] = text.replace("r float32 [b a]", "r float32 [a b]"), draw
    yield "norm_in_order", Case(found["norm_in_order"][0], [(draw(size), 1) for size in SIZES])
    for name in (
        "norm_in_order",
        "column_sums",
        "reductions_of_float32",
        "reductions_of_boolean",
        "reductions_of_int32",
    ):
        text, draw = found[name]
        yield f"{name}_by_columns", Case(text, [(draw(20_001), 4)])
    x, transposed = torch.randn(3, 2, 5, 70), torch.randn(2, 3, 70, 5).permute(1, 0, 3, 2)
    yield "softmax", Case(SOFTMAX, [((x,), 2), ((x[..., ::2],), 2), ((transposed,), 1), ((x[:, :, :1],), 1)])
    wide = torch.randn(1, 1, 40, 1000)
    yield "softmax_by_columns", Case(SOFTMAX, [((wide[..., :500],), 4), ((wide[..., ::2],), 4)])
    a, b, z = torch.randn(6, 7, 90), torch.randn(6, 1, 90).bfloat16(), torch.randn(7, 90).half()
    yield (
        "broadcast",
        Case(
            BROADCAST,
            [((a, b, z), 1), ((a, b, z[:, :1].expand(7, 90)), 1), ((a[..., ::2], b[..., ::2], z[..., ::2]), 1)],
        ),
    )
    yield "numbers", Case(NUMBERS, [((torch.randn(100), 2.5, -3, torch.tensor(0.5)), 1)])
    few = torch.randn(100, 5)
    short = f"{HEAD}axes a=x.0 | b=x.1\n" + FEW_COLUMNS
    yield "few_columns", Case(short, [((few,), 1), ((torch.randn(5, 100).t(),), 1), ((torch.randn(70, 6)[:, ::2],), 2)])
    yield "few_elements", Case(FEW, [((few, few.half(), torch.randn(5) > 0), 1)])
    yield "one_column", Case(ONE_COLUMN, [((torch.randn(40),), 1)])
    yield "clashing_names", Case(CLASHING, [((torch.randn(5, 100),), 1), ((torch.randn(1, 20_000),), 4)])
    few = (torch.randn(3, 20, 4), torch.randn(3, 1, 4), torch.randn(20, 4).bfloat16(), torch.randn(3, 20, 1))
    yield "rows_of_few_columns", Case(SHORT, [((*few, torch.randn(4, 20).double()), 1)])
    for a, b, n in ((1, 70, 48), (7, 3, 33), (2, 40, 12)):
        x, y, w = torch.randn(a, b, n), torch.randn(a, 1, n).bfloat16(), torch.randn(n).half()
        given = (x, y, w, torch.randn(1, b, 1), torch.rand(a, b, 1) > 0.5, 0.7)
        yield f"rows_of_{n}_columns", Case(f"{HEAD}axes a={a} b={b} | c={n}\n{OF_FIXED_COLUMNS}", [(given, 1)])
        sums = f"{HEAD}axes a={a * b} | c={n}\n{SUMS_OF_FIXED_COLUMNS}"
        yield f"sums_of_{n}_columns", Case(sums, [((x.view(a * b, n),), 1)])
    few = torch.rand(70, 37) < 0.02  # of many rows one element, of some none, of one all
    few[7], few[8, :36] = True, True
    yield "booleans_of_37_columns", Case(BOOLEANS, [((few,), 1)])
    channels = (
        torch.randn(2, 70, 20),
        torch.randn(2, 70, 20).bfloat16(),
        torch.randn(70, 1),
        torch.randn(2, 1, 20).half(),
    )
    yield "rows_side_by_side", Case(OF_CHANNELS, [((*channels, 0.5), 1)])
    yield (
        "order",
        Case(ORDER, [((torch.randn(1000), torch.randn(1000)), 1), ((torch.randn(99), torch.randn(198)[::2]), 1)]),
    )


CASES = dict(cases())


@pytest.fixture(scope="module")
def compiled(shared: Path) -> dict[str, Case]:
    """All cases with their nests as C++ instead of LLVM's; blank lines at the end of the texts keep the two apart."""
    asked: list[tuple[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.service, "answer", lambda *request: (asked.append(request[:2]), refuse(*request)))
        service.start()
        for k, case in enumerate(CASES.values()):
            case.program = Program(case.text + "\n" * (k + 1), "c", LLVM)
            case.own = without_sizes(case.text) + "\n" * (k + 1)
            for inputs, threads in case.calls:
                torch.set_num_threads(threads)
                case.program(*inputs)
            case.asked = [layout for text, layout in asked if text == case.own]
    nests = {}
    own = {case.own for case in CASES.values()}
    for text, layout in asked:
        if text not in own:  # requested by an earlier test
            continue
        try:
            nests[text, layout] = build(read(text), Layout.of(layout), LEVEL.lanes)
        except NotCompiled:
            continue
    calls = attach(nests, shared / "nests_in_c")
    for text, layout in nests:
        case = next(case for case in CASES.values() if case.own == text)
        case.layouts.append(layout)
        case.counts.append(calls[text, layout])
    for k, case in enumerate(CASES.values()):  # the first programs have been refused their nests
        case.program = Program(case.text + "\n" * (k + 1), "c", LLVM)
    return CASES


def refuse(text: str, layout: str, target: str) -> None:
    _C.refuse_nest(text, layout, target, "left to the C++ that the test compiles")


def attach(nests: dict[tuple[str, str], Nest], folder: Path) -> dict[tuple[str, str], ctypes.c_long]:
    """Returns the number of calls of each nest, which they count."""
    names = {key: f"nest_{k}" for k, key in enumerate(nests)}
    parts = list(parts_of({names[key]: nest for key, nest in nests.items()}))
    texts = [c.print_file(part) for part in parts]

    def compile_all(folder: Path) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, parts, texts, (folder / f"unit_{unit}" for unit in range(len(parts)))))

    made_once(folder, compile_all)
    libraries = [library(text, folder / f"unit_{unit}") for unit, text in enumerate(texts)]
    calls = {}
    for key, nest in nests.items():
        own = next(one for one, part in zip(libraries, parts, strict=True) if names[key] in part)
        calls[key] = ctypes.c_long.in_dll(own, f"{names[key]}_calls")
        table = (ctypes.c_void_p * len(nest.functions)).in_dll(own, names[key])
        addresses = [address or 0 for address in table]
        sizes = nest.bytes, nest.bytes_of_column, nest.bytes_of_panel, nest.sums
        _C.attach_nest(*key, addresses, *sizes)
    return calls


def parts_of(nests: dict[str, Nest]) -> Iterator[dict[str, Nest]]:
    """What the files hold: nests of one number of lanes each. Those of bytes have more."""
    for lanes in sorted({nest.lanes for nest in nests.values()}):
        own = [name for name, nest in nests.items() if nest.lanes == lanes]
        shares = (own[unit::UNITS] for unit in range(UNITS))
        yield from ({name: nests[name] for name in share} for share in shares if share)


def compile_one(nests: dict[str, Nest], text: str, path: Path) -> None:
    """Each nest's functions in a table named after it."""
    tables = []
    for name, nest in nests.items():
        given, count = "auto begin, auto end, auto arguments, auto scratch", f"{name}_calls"
        passed = "begin, end, arguments, scratch"
        functions = ", ".join(
            "nullptr" if one is None else f"[]({given}) {{ ++{count}; fourfold::{name}::{one.name}({passed}); }}"
            for one in nest.functions
        )
        tables.append(f'extern "C" long {count} = 0;')
        tables.append(f'extern "C" fourfold::Function* const {name}[] = {{{functions}}};')
    path.with_suffix(".cpp").write_text("\n".join([text, *tables, ""]), encoding="utf-8")
    options = [
        "-O1",
        "-std=c++20",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fwrapv",
        "-shared",
        "-fPIC",
        "-w",
        "-Wno-psabi",
    ]
    command = [COMPILER, *FLAGS[LEVEL.name], *options, f"{path}.cpp", "-o", f"{path}.so"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:5000]


def library(text: str, path: Path) -> ctypes.CDLL:
    """Sets the addresses of the elementary functions. All workers compile the same text."""
    assert path.with_suffix(".cpp").read_text(encoding="utf-8").startswith(text)
    found = ctypes.CDLL(f"{path}.so")
    for name, address in _C.vector_functions().items():
        if re.search(rf"\b{name};", text):
            ctypes.c_void_p.in_dll(found, name).value = address
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_gives_the_bits_of_the_interpreter_and_of_llvm(compiled: dict[str, Case], name: str) -> None:
    case = compiled[name]
    assert case.layouts
    by_llvm = None if service.obstacle() else Program(case.text, "llvm", service.number("llvm"))
    for inputs, threads in case.calls:
        torch.set_num_threads(threads)
        expected = Program(case.text, "interpreter", INTERPRETER)(*inputs)
        assert_same_bits(case.program(*inputs), expected)
        if by_llvm is not None:
            assert_same_bits(by_llvm(*inputs), expected)
    assert all(count.value > 0 for count in case.counts)


EXPECTED = """\
// Elements from begin to end, or pieces of the innermost axis.
void elements(int64 begin, int64 end, const int64* arguments, uint8* scratch) {
  float32* x_data = (float32*)arguments[9];
  float32* y_out = (float32*)arguments[10];
  int64 count = end - begin;
  float32* x_data_2 = x_data + begin;
  float32* y_out_2 = y_out + begin;
  int64 main = count / 16 * 16;
  for (int64 k = 0; k < main; k += 16) {
    float32x8 x = load(x_data_2 + k);
    float32x8 x_2 = load(x_data_2 + k + 8);
    float32x8 s = fourfold_sin_float32(x);
    float32x8 s_2 = fourfold_sin_float32(x_2);
    float32x8 c = fourfold_cos_float32(x);
    float32x8 c_2 = fourfold_cos_float32(x_2);
    store(y_out_2 + k, s * s + c * c);
    store(y_out_2 + k + 8, s_2 * s_2 + c_2 * c_2);
  }
  for (int64 k = main; k < count; k += 8) {
    boolx8 mask = first(count - k);
    float32x8 x = load(x_data_2 + k, mask);
    float32x8 s = fourfold_sin_float32(x);
    float32x8 c = fourfold_cos_float32(x);
    store(y_out_2 + k, s * s + c * c, mask);
  }
}
"""


def test_it_reads_as_the_program_does() -> None:
    nest = build(read(SINE_AND_COSINE), Layout.of("e0:1,1"), 8)
    assert c.print_nest(nest) == EXPECTED


def test_names_do_not_hide_what_is_called() -> None:
    """Neither keywords, nor the prelude's functions and types, nor the parameters."""
    text = c.print_nest(build(read(CLASHING), Layout.of("r1:n1,n1,n0"), 8))
    assert "exp_float32(begin_1)" in text and "float32x8 float_1 = " in text
    assert not re.search(r"\w\*? (load|float|begin) = ", text)
