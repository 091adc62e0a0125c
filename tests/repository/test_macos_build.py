"""The scripts' checks of macOS libraries, with given tool output."""

import re
from pathlib import Path

import pytest

import backend_tools
import metal_build
from backend_report import Refused
from machine import ROOT

LOADED = """\
      cmd LC_LOAD_DYLIB
  cmdsize 56
     name {} (offset 24)
"""
BUILT = """\
      cmd LC_BUILD_VERSION
  cmdsize 32
 platform 1
    minos {}
      sdk 14.0
"""
METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
TORCH = "@rpath/libtorch_cpu.dylib"
# Words of four bytes in reversed byte order.
SECTION = """\
build/libfourfold.dylib:
Contents of (__TEXT,__objc_methname) section
0000000000001000\t6d6d6f63 42646e61 65666675 65730072
0000000000001010\t62614c74 003a6c65
"""


def commands(oldest: str, *libraries: str) -> str:
    return BUILT.format(oldest) + "".join(LOADED.format(name) for name in libraries)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (commands("15.0", TORCH, METAL), "is for macOS 15.0 and newer, but wheels say 14.0"),
        ("", "is for macOS None"),
        (commands("14.0", TORCH, METAL, "/opt/homebrew/lib/libomp.dylib"), "loads .*libomp"),
        (commands("14.0", TORCH), "loads @rpath/libtorch_cpu.dylib$"),
    ],
)
def test_load_commands_of_newer_systems_and_of_others_are_refused(said: str, why: str) -> None:
    metal_build.check_load_commands(commands("14.0", TORCH, METAL, "/usr/lib/libobjc.A.dylib"))
    with pytest.raises(Refused, match=why):
        metal_build.check_load_commands(said)


UNDEFINED = "                 (undefined) external {}"


@pytest.mark.parametrize("name", ["_omp_get_max_threads", "__ZN8fourfold5causeEv", "_OBJC_CLASS_$_MTLDevices"])
def test_undefined_symbols_but_the_cpp_librarys_are_refused(name: str) -> None:
    of_library = ("__ZNSt3__112__next_primeEm", "__ZTVN10__cxxabiv117__class_type_infoE", "__ZdlPv")
    metal_build.check_undefined("\n".join(UNDEFINED.format(each) for each in of_library))
    said = "\n".join(UNDEFINED.format(each) for each in ("__ZdlPv", name))
    with pytest.raises(Refused, match=f"no library for macOS has {re.escape(name)}$"):
        metal_build.check_undefined(said)
    with pytest.raises(Refused, match="has anything that the C"):
        metal_build.check_undefined("")


def test_a_selector_that_apple_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "_metadata.py"
    monkeypatch.setattr(metal_build.tools, "metal_metadata", lambda: listed)
    monkeypatch.setattr(metal_build, "output", lambda *command: SECTION)
    listed.write_text('r("MTLCommandBuffer", "label", {}); sel32or64("setBytes:length:atIndex:", "commandBuffer")')
    metal_build.check_selectors(Path("libfourfold.dylib"))
    listed.write_text('r("MTLCommandBuffer", "label", {}); sel32or64("setBytes:length:atIndex:", "commandBuffers")')
    with pytest.raises(Refused, match="PyObjC's Metal lists no selector commandBuffer$"):
        metal_build.check_selectors(Path("libfourfold.dylib"))


def test_one_macos_is_the_oldest_everywhere() -> None:
    wheels = (ROOT / "cibuildwheel.toml").read_text()
    assert re.findall(r'MACOSX_DEPLOYMENT_TARGET = "(.*?)"', wheels) == [backend_tools.MACOS]
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert re.findall(r"set\(CMAKE_OSX_DEPLOYMENT_TARGET (\S+)", cmake) == [backend_tools.MACOS]
    assert cmake.index("CMAKE_OSX_DEPLOYMENT_TARGET") < cmake.index("project(fourfold"), "it would come too late"
    metal = (ROOT / "cmake" / "metal.cmake").read_text()
    assert re.findall(r"set\(FOURFOLD_METAL_MACOS (\S+)\)", metal) == [backend_tools.MACOS]
