"""What libfourfold asks of its surroundings and shows to them: one wheel for every torch hangs on it."""

import re
import sys

import pytest

import fourfold
from machine import LIBFOURFOLD, ROOT, linux_only, missing, output_of, tool

pytestmark = linux_only

# The C and C++ runtimes: their symbols bear a version, or are the compiler's and linker's own.
RUNTIME = re.compile(r".*@(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+$|_ITM_\w+$|__gmon_start__$|__cxa_\w+$")
STABLE_ABI = re.compile(r"(aoti_torch|torch)_\w+$")


def symbols(path, *options):
    """(kind, name) of each symbol, as nm prints them."""
    lines = output_of(tool("nm", "binutils"), *options, path).splitlines()
    return [tuple(line.split(maxsplit=2)[-2:]) for line in lines if not line.endswith(":")]


def dynamic_section():
    return output_of(tool("readelf", "binutils"), "--dynamic", "--wide", LIBFOURFOLD)


def test_nothing_of_torch_is_used_but_the_stable_abi():
    wanted = [name for _, name in symbols(LIBFOURFOLD, "--dynamic", "--undefined-only")]
    assert any(name.startswith("aoti_torch_") for name in wanted)
    assert [name for name in wanted if not RUNTIME.match(name) and not STABLE_ABI.match(name)] == []


def test_only_the_public_functions_are_exported():
    exported = sorted(name for _, name in symbols(LIBFOURFOLD, "--dynamic", "--defined-only"))
    header = (ROOT / "cpp" / "include" / "fourfold" / "library.h").read_text()
    assert exported == sorted(re.findall(r"^FOURFOLD_EXPORT .*?(fourfold_\w+)\(", header, re.MULTILINE))


def test_torch_is_the_only_library_needed_besides_the_runtimes():
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic_section())
    runtime = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d+$|ld-linux.*\.so\.\d+$")
    assert [name for name in needed if not runtime.match(name)] == ["libtorch_cpu.so"]


def test_the_library_names_no_place_to_find_torch_in():
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic_section())


def level_objects(level):
    """The object files of one CPU level, in the build tree that pyproject.toml's build-dir names."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return sorted(ROOT.glob(f"build/{python}-*/cpp/CMakeFiles/fourfold_cpu_{level}.dir/cpu/*.o"))


@pytest.mark.parametrize("level", [name for name in fourfold._C.build_info()["cpu_levels"] if name != "default"])
def test_a_level_shares_no_code_with_another(level):
    # Of a weak function the linker keeps one copy. Were it a level's, an older CPU could be given its instructions.
    # V is data; at::vec::AVX2 and AVX512 are torch's own namespaces for one level.
    objects = level_objects(level)
    if not objects:
        missing("this test reads the object files of a build in this source tree: make build")
    own = re.compile(rf"\bfourfold::cpu::level_{level}::|\bat::vec::{level.upper()}::")
    for path in objects:
        weak = [name for kind, name in symbols(path, "--demangle", "--defined-only") if kind in "Wu"]
        assert [name for name in weak if not own.search(name)] == [], path.name
