"""The elementary functions in compiled programs, inlined from bitcode or called, give the interpreter's bits."""

from __future__ import annotations

import ctypes
import importlib
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from bitcode import LIBM_NAMES, BitcodeError, split
from fourfold.compiler.nest.ir import levels
from fourfold.compiler.nest.jit import bitcode
from fourfold.compiler.pipeline.calling import Program
from machine import INSTALLED, missing
from special_values import special

LEVEL = levels.level() or levels.LEVELS[fourfold.cpu_capability()]
LANES = LEVEL.lanes
ADDRESSES = fourfold._C.vector_functions()
OPERANDS = {
    name: operands for name, operands, *_ in fourfold._C.operations() if f"fourfold_{name}_float32" in ADDRESSES
}
TYPES = {"float32": torch.float32, "float64": torch.float64}
WITH_VECTORS = [
    name for name in fourfold._C.build_info()["cpu_levels"] if name != "default" or levels.level() is levels.NEON
]
SHARED = ("internal", "private", "linkonce_odr")
needs_vectors = pytest.mark.skipif(not ADDRESSES, reason="the plain level has no vectors")


@cache
def llvm() -> Any:
    try:
        binding = importlib.import_module("llvmlite.binding")
    except ImportError:
        missing("this test needs llvmlite: pip install llvmlite")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def functions(level: levels.Level = LEVEL) -> Any:
    found = bitcode.functions(level)
    if not found:
        missing(f"this test needs a build with bitcode for {level.name}: FOURFOLD_BITCODE=ON make build")
    return found


@cache
def machine() -> Any:
    cpu = llvm().get_host_cpu_name()
    target = llvm().Target.from_triple(llvm().get_process_triple())
    return target.create_target_machine(cpu=cpu, features=llvm().get_host_cpu_features().flatten(), opt=2, jit=True)


@cache
def engine() -> tuple[Any, itertools.count[int]]:
    target = llvm().Target.from_triple(llvm().get_process_triple())
    return llvm().create_lljit_compiler(target.create_target_machine(jit=True)), itertools.count()


def parsed(code: bytes | str) -> Any:
    module = llvm().parse_assembly(code) if isinstance(code, str) else llvm().parse_bitcode(code)
    module.triple, module.data_layout = machine().triple, str(machine().target_data)
    return module


LOOP = """
define void @{loop}(ptr %function, ptr %x, ptr %y, ptr %to, i64 %n) {{
entry:
  br label %body
body:
  %k = phi i64 [0, %entry], [%next, %body]
  %px = getelementptr {scalar}, ptr %x, i64 %k
  %py = getelementptr {scalar}, ptr %y, i64 %k
  %pt = getelementptr {scalar}, ptr %to, i64 %k
  %a = load {vector}, ptr %px, align 8
  %b = load {vector}, ptr %py, align 8
  %r = call {vector} {call}
  store {vector} %r, ptr %pt, align 8
  %next = add i64 %k, {lanes}
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %done
done:
  ret void
}}
"""


def compiled(name: str, type: str, **calls: str) -> dict[str, Any]:
    """A loop for each call, a format with {vector}, into which a function is inlined. Their owner keeps them alive."""
    lanes, scalar = (LANES, "float") if type == "float32" else (LANES // 2, "double")
    vector = f"<{lanes} x {scalar}>"
    operands = OPERANDS[name.split("_", 1)[1].rsplit("_", 1)[0]]
    text = f"declare {vector} @{name}({', '.join([vector] * operands)})\n"
    for loop, call in calls.items():
        call = call.format(vector=vector, name=name)
        text += LOOP.format(loop=loop, call=call, scalar=scalar, vector=vector, lanes=lanes)
    module = parsed(text)
    module.link_in(parsed(functions()[name]))
    module.get_function(name).linkage = "internal"
    module.get_function(name).add_function_attribute("alwaysinline")
    builder = llvm().create_pass_builder(machine(), llvm().create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    assert name not in [function.name for function in module.functions]
    jit, numbers = engine()
    library = llvm().JITLibraryBuilder().add_object_img(machine().emit_object(module)).add_current_process()
    for loop in calls:
        library.export_symbol(loop)
    linked = library.link(jit, f"{name}_{next(numbers)}")
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
    return {loop: kind(linked[loop]) for loop in calls} | {"owner": linked}


def values(dtype: torch.dtype, operands: int) -> list[Tensor]:
    """All pairs of special values, random bit patterns, and ordinary numbers."""
    made = torch.Generator().manual_seed(0)
    ends = special(dtype)
    each = [ends.repeat_interleave(len(ends)), ends.repeat(len(ends))] if operands == 2 else [ends]
    bits = {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    size = 16384
    for k in range(operands):
        limits = torch.iinfo(bits)
        patterns = torch.randint(limits.min, limits.max, (size,), dtype=bits, generator=made).view(dtype)
        near = torch.randn(size, dtype=dtype, generator=made)
        far = 40 * torch.randn(size, dtype=dtype, generator=made)
        each[k] = torch.cat([each[k], patterns, near, far])
        each[k] = torch.cat([each[k], torch.ones(-len(each[k]) % LANES, dtype=dtype)])
    return each


def interpreted(operation: str, type: str, tensors: list[Tensor]) -> Tensor:
    names = "xy"[: len(tensors)]
    lines = ["fourfold program 1", "axes n=x.0", *(f"{name}: {type} = input {type} [n]" for name in names)]
    lines += [f"z: {type} = {operation} {' '.join(names)}", f"output z {type} [n]"]
    return Program("\n".join(lines))(*tensors)


def bits_of(tensor: Tensor) -> Tensor:
    held = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return held.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


def run(loop: Any, name: str, tensors: list[Tensor]) -> Tensor:
    result = torch.empty_like(tensors[0])
    loop(ADDRESSES[name], tensors[0].data_ptr(), tensors[-1].data_ptr(), result.data_ptr(), len(result))
    return result


def check(way: str, result: Tensor, expected: Tensor, tensors: list[Tensor]) -> None:
    differ = (bits_of(result) != bits_of(expected)).nonzero().flatten()[:4]
    shown = [(*(float(x[k]) for x in tensors), float(result[k]), float(expected[k])) for k in differ]
    assert not shown, f"{way}: {shown}"


@needs_vectors
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("operation", OPERANDS)
def test_a_function_gives_the_interpreters_bits(operation, type):
    name = f"fourfold_{operation}_{type}"
    tensors = values(TYPES[type], OPERANDS[operation])
    expected = interpreted(operation, type, tensors)
    given = "(" + ", ".join(["{vector} %a", "{vector} %b"][: len(tensors)]) + ")"
    loops = compiled(name, type, called=f"%function{given}", inlined=f"@{{name}}{given}")
    for way in ("called", "inlined"):
        check(way, run(loops[way], name, tensors), expected, tensors)


@needs_vectors
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("which", ["first", "second"])
def test_a_constant_operand_changes_no_bits(which, type):
    """LLVM folds powers of 2 and 10, squares and roots, and rounds some of them differently."""
    name = f"fourfold_pow_{type}"
    scalar = {"float32": "float", "float64": "double"}[type]
    x, _ = values(TYPES[type], 2)
    for number in (2.0, 3.0, 0.5, -1.0, 10.0):
        constant = f"{{vector}} splat ({scalar} {number})"
        given = f"{constant}, {{vector}} %a" if which == "first" else f"{{vector}} %a, {constant}"
        loop = compiled(name, type, inlined=f"@{{name}}({given})")
        numbers = torch.full_like(x, number)
        tensors = [numbers, x] if which == "first" else [x, numbers]
        check(str(number), run(loop["inlined"], name, [x]), interpreted("pow", type, tensors), tensors)


@needs_vectors
def test_every_function_has_an_address_and_bitcode():
    assert {f"fourfold_{operation}_{type}" for operation in OPERANDS for type in TYPES} == set(ADDRESSES)
    assert set(functions()) == set(ADDRESSES)
    assert {"exp", "pow", "floor_divide", "erfc"} <= set(OPERANDS)
    assert not {"add", "sqrt", "copysign", "where"} & set(OPERANDS)


@pytest.mark.parametrize("level", WITH_VECTORS)
def test_an_archive_is_installed_for_each_level_and_llvmlite_reads_it(level):
    found = functions(levels.LEVELS[level])
    assert (INSTALLED / "bitcode" / f"{levels.LEVELS[level].name}.zip").exists()
    assert bitcode.llvm_major(levels.LEVELS[level]) <= llvm().llvm_version_info[0]
    assert len(found) == 54
    whole = parsed("")
    for name, code in found.items():
        module = parsed(code)
        defined = [function for function in module.functions if not function.is_declaration]
        # Code that several functions share is merged when they are linked.
        assert {f.name for f in defined if f.linkage == llvm().Linkage.external} == {name}
        assert all(v.linkage.name in SHARED for v in (*defined, *module.global_variables) if v.name != name), name
        called = {function.name for function in module.functions if function.is_declaration}
        assert {function for function in called if not function.startswith("llvm.")} <= LIBM_NAMES
        # Not as intrinsics for C's functions: LLVM would compute some of them differently.
        assert not {f.split(".")[1] for f in called if f.startswith("llvm.")} & LIBM_NAMES
        text = str(module)
        assert not any(word in text for word in ("target-cpu", "target-features", "personality", "uwtable", "!dbg"))
        whole.link_in(module)
    whole.verify()


MODULE = """
target triple = "x86_64-unknown-linux-gnu"
%pair = type { i32, i32 }
@table = internal constant [2 x double] zeroinitializer
@unused = internal constant i32 0

define double @fourfold_a(double %x) #0 {
  %y = call double @helper(double %x)
  ret double %y
}

define internal double @helper(double %x) #0 {
  %y = load double, ptr @table
  %z = call double @exp(double %y) #1
  ret double %z
}

define double @fourfold_b(double %x) #0 {
  ret double %x
}

define float @fourfold_c(float %x) {
  %y = tail call float @llvm.cos.f32(float %x)
  %z = tail call float @llvm.fabs.f32(float %y)
  ret float %z
}

declare noundef double @exp(double noundef) local_unnamed_addr #1
declare float @llvm.cos.f32(float) #1
declare float @llvm.fabs.f32(float) #1

attributes #0 = { mustprogress "frame-pointer"="all" "target-features"="+avx2" }
attributes #1 = { "no-trapping-math"="true" }
"""


def test_a_function_takes_what_it_refers_to_and_no_more():
    parts = split(MODULE)
    assert list(parts) == ["fourfold_a", "fourfold_b", "fourfold_c"]
    first, second, third = parts.values()
    assert "@helper" in first and "@table = " in first and "@unused" not in first and "@fourfold_b" not in first
    assert "declare double @exp(double) nobuiltin nofree nosync nounwind willreturn memory(none)" in first
    assert "attributes #0 = { mustprogress nounwind }\nattributes #1 = { nounwind }" in first
    assert "@helper" not in second and "@table" not in second and "@exp" not in second
    assert "declare float @cosf(float) nobuiltin" in third and "@llvm.cos" not in third
    assert "tail call float @cosf(float %x)" in third and "declare float @llvm.fabs.f32(float) #1" in third
    assert "triple" not in first


def test_an_archive_is_read_once(tmp_path: Path) -> None:
    """From a file that stays open, forked processes would read at one position, which each moves."""
    known, copy = functions(), tmp_path / "copy.zip"
    copy.write_bytes(bitcode._path(LEVEL).read_bytes())
    archive = bitcode.Archive(copy)
    copy.write_bytes(b"")
    assert all(archive[name] == known[name] for name in known)


def test_a_function_that_calls_more_than_mathematics_is_refused():
    with pytest.raises(BitcodeError, match="calls of the C library's mathematics alone, but puts is called too"):
        split(MODULE.replace("@exp(", "@puts("))
