"""How scripts/windows_build.py reads ninja's output."""

import windows_build

LOG = """\
[1/68] Building CXX object cpp/CMakeFiles/fourfold_cpu.dir/copies.cpp.obj
FAILED: [code=1] cpp/CMakeFiles/fourfold_cpu.dir/cpu/quota.cpp.obj
clang++-19 -c cpp/cpu/quota.cpp
FAILED: cpp/CMakeFiles/fourfold_ops.dir/ops/axpby.cpp.obj
ninja: build stopped: cannot make progress due to previous errors.
"""


def test_sources_that_do_not_compile_are_named() -> None:
    assert windows_build.not_built(LOG) == "cpu/quota.cpp, ops/axpby.cpp"


def test_a_library_that_is_not_linked_is_named() -> None:
    assert windows_build.not_built("FAILED: cpp/libfourfold.dll cpp/libfourfold.dll.a\n") == "cpp/libfourfold.dll"
    assert windows_build.not_built("ninja: error\n") == "the library"
