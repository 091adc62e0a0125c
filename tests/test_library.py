"""libfourfold's imported and exported symbols: they decide whether one wheel works with every torch."""

import ctypes
import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

import fourfold
import library_symbols
from machine import INSTALLED, LIBFOURFOLD, ROOT, linux_only, missing, output_of, tool

pytestmark = linux_only

BUILT = {name for name, state in fourfold.backends().items() if state["built"]}


def symbols(path, *options):
    return library_symbols.symbols(path, *options, nm=tool("nm", "binutils"))


def dynamic_section():
    return output_of(tool("readelf", "binutils"), "--dynamic", "--wide", LIBFOURFOLD)


def test_nothing_of_torch_is_used_but_the_stable_abi():
    wanted = [name for _, name in symbols(LIBFOURFOLD, "--dynamic", "--undefined-only")]
    assert any(name.startswith("aoti_torch_") for name in wanted)
    assert library_symbols.unexpected(LIBFOURFOLD, hip="hip" in BUILT, nm=tool("nm", "binutils")) == []


def test_symbols_of_gpu_builds_are_not_linked():
    """Strong symbols would keep the library from loading under a CPU build of torch. Weak symbols would stay unbound
    under a GPU build, because Python loads torch's GPU library for torch only."""
    cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    assert library_symbols.only_in_gpu_torch(LIBFOURFOLD, cpu, nm=tool("nm", "binutils")) == []


def test_the_library_uses_no_iostreams():
    """Except the modules for one version of torch, into which torch's headers bring them; fourfold's own messages there
    contain only strings."""
    for path in (LIBFOURFOLD, *INSTALLED.glob("_C.*.so")):
        assert library_symbols.iostreams(path, nm=tool("nm", "binutils")) == [], path


@pytest.mark.skipif(torch.version.cuda is None and torch.version.hip is None, reason="torch is a CPU build")
def test_a_gpu_build_of_torch_has_loaded_what_the_kernels_look_up():
    """As cuda/launch.cu does; it needs no GPU."""
    name = "libtorch_cuda.so" if torch.version.cuda else "libtorch_hip.so"
    library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    assert library.aoti_torch_get_current_cuda_stream
    assert library.aoti_torch_cuda__addmm_activation


def test_only_the_public_functions_are_exported():
    exported = sorted(name for _, name in symbols(LIBFOURFOLD, "--dynamic", "--defined-only"))
    public = [ROOT / "cpp" / "include" / "fourfold" / name for name in ("library.h", "program.h")]
    internal = [ROOT / "cpp" / "program" / name for name in ("grid_call.h", "nests.h")]
    headers = [header.read_text() for header in (*public, *internal)]
    declared = re.findall(r"^FOURFOLD_EXPORT .*?(fourfold_\w+)\(", "\n".join(headers), re.MULTILINE)
    assert exported == sorted(declared)


def test_the_runtimes_that_are_linked_statically_stay_private():
    for path in (LIBFOURFOLD, *INSTALLED.glob("_*.so")):
        assert library_symbols.of_other_runtimes(path, "linux", nm=tool("nm", "binutils")) == [], path


def test_torch_is_the_only_library_needed_besides_the_runtimes():
    """The CUDA runtime is linked statically and torch loads cuBLAS: the library also loads on a machine without
    CUDA."""
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic_section())
    runtime = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d+$|ld-linux.*\.so\.\d+$")
    others = [name for name in needed if not runtime.match(name) and not ("hip" in BUILT and "amdhip64" in name)]
    assert others == ["libtorch_cpu.so"]


def test_the_build_facts_name_what_the_kernels_were_compiled_with():
    facts = fourfold._C.build_info()
    for backend, architecture in (("cuda", r"\d+\.\d[af]?(\+PTX)?$|PTX \d+\.\d$"), ("hip", r"gfx\w+$")):
        assert (f"{backend}_version" in facts) == (f"{backend}_architectures" in facts) == (backend in BUILT)
        if backend in BUILT:
            assert re.match(r"\d+\.\d", facts[f"{backend}_version"])
            assert facts[f"{backend}_architectures"]
            assert all(re.match(architecture, name) for name in facts[f"{backend}_architectures"])


def test_libraries_name_no_folder_of_the_machine_that_built_them():
    """Else two builds in different folders would differ."""
    libraries = [LIBFOURFOLD, *LIBFOURFOLD.parent.glob(f"_*{EXTENSION_SUFFIXES[0]}")]
    assert len(libraries) >= 3
    for library in libraries:
        assert str(ROOT).encode() not in library.read_bytes(), library
        assert str(Path(torch.__file__).parent).encode() not in library.read_bytes(), library


def test_the_library_names_no_place_to_find_torch_in():
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic_section())


def level_objects(level):
    """The object files of one CPU level, in the build folders of pip and of scripts/build_library.py."""
    trees = (f"cp{sys.version_info.major}{sys.version_info.minor}-*", "library")
    ends = ("", "_lltm", "_lstm", "_gru")  # each cell has its own object library
    folders = [f"build/{tree}/cpp/CMakeFiles/fourfold_cpu_{level}{end}.dir" for tree in trees for end in ends]
    return sorted(path for folder in folders for path in ROOT.glob(f"{folder}/cpu/kernels/*.o"))


@pytest.mark.parametrize("level", [name for name in fourfold._C.build_info()["cpu_levels"] if name != "default"])
def test_a_level_shares_no_code_with_another(level):
    # The linker keeps one copy of a weak function. If that came from a level, an older CPU could run its instructions.
    # V is data; at::vec::AVX2 and AVX512 are torch's own namespaces for one level.
    objects = level_objects(level)
    if not objects:
        missing("this test reads the object files of a build in this source tree: make build")
    own = re.compile(rf"\bfourfold::cpu::level_{level}::|\bat::vec::{level.upper()}::")
    for path in objects:
        weak = [name for kind, name in symbols(path, "--demangle", "--defined-only") if kind in "Wu"]
        assert [name for name in weak if not own.search(name)] == [], path.name
