"""The build of check_backends.py for Apple's GPUs: fourfold for macOS, compiled and linked on any system against
torch's own macOS libraries. The result is inspected, not run."""

import re
import shlex
from pathlib import Path

import backend_tools as tools
from backend_builds import BIN, UNOPTIMIZED, build, configure
from backend_report import Refused, Report
from backend_tools import MACOS, ROOT, output, run

APPLE = ROOT / "tests" / "simulators" / "metal" / "apple"
OTOOL, NM = "/usr/lib/llvm-19/bin/llvm-otool", "/usr/lib/llvm-19/bin/llvm-nm"
OLDEST, *_, NEWEST = tools.TORCH_FOR_MACOS
# Compiled with this system's Python headers and not linked: zig's linker doesn't support bundles.
MODULES = ("_C.dir/module.cpp.o", f"_torch_{'_'.join(OLDEST.split('.')[:2])}_objects.dir/torch_module.cpp.o")
# PyObjC doesn't list a selector with an ordinary type. torch's own library calls this one.
UNLISTED = {"setLanguageVersion:"}
# Selectors of Foundation, which this PyObjC package doesn't cover.
FOUNDATION = {"stringWithUTF8String:", "UTF8String", "localizedDescription"}


def metal(report: Report) -> None:
    torch = tools.macos_torch(OLDEST)
    toolchain = tools.darwin_toolchain(APPLE)
    options = (
        UNOPTIMIZED,
        UNOPTIMIZED.replace("CXX", "OBJCXX"),
        "-DFOURFOLD_METAL=ON",
        "-DFOURFOLD_CUDA=OFF",
        "-DFOURFOLD_HIP=OFF",
    )
    options += (f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DTorch_ROOT={torch}")
    # The environment's compiler settings are for this machine.
    folder = configure("metal", *options, CXX="", CXXFLAGS="", CMAKE_CXX_COMPILER_LAUNCHER="")
    objects = folder / "metal" / "CMakeFiles" / "fourfold_metal.dir"
    modules = [folder / "cpp" / "bindings" / "CMakeFiles" / name for name in MODULES]
    targets = ("fourfold", *(str(module.relative_to(folder)) for module in modules))
    build(folder, report, "metal", {name: objects / f"{name}.mm.o" for name in report.operators}, *targets)
    report.prove("metal", "compiled")
    if missing := [module.name for module in modules if not module.exists()]:
        raise Refused(f"{' and '.join(missing)} of the Python modules do not compile; see {folder.name}/build.log")
    library = folder / "cpp" / "libfourfold.dylib"
    if not library.exists() or library.stat().st_size == 0:
        raise Refused(f"the library was not linked; see {(folder / 'build.log').relative_to(ROOT)}")
    link_with_newest(folder)
    check_load_commands(output(OTOOL, "-l", library))
    for each in (library, folder / "newest.dylib"):
        check_undefined(output(NM, "-m", "--undefined-only", each))
    check_selectors(library)
    report.prove("metal", "linked")
    report.facts.append(f"metal: linked for macOS {MACOS} on arm64 against torch {OLDEST} and {NEWEST}")


def link_with_newest(folder: Path) -> None:
    """Link the same objects against the newest torch of the range: every symbol exists there too."""
    (command,) = output(BIN / "ninja", "-C", folder, "-t", "commands", "-s", "cpp/libfourfold.dylib").splitlines()[-1:]
    older, newer = tools.macos_torch(OLDEST), tools.macos_torch(NEWEST)
    words = [word.replace(str(older), str(newer)) for word in shlex.split(command) if word not in (":", "&&")]
    words[words.index("-o") + 1] = str(folder / "newest.dylib")
    if not any(str(newer) in word for word in words):
        raise Refused("the link command names no torch")
    log = folder / "newest.log"
    if run(*words, log=log, cwd=folder).returncode:
        raise Refused(f"the library does not link against torch {NEWEST}; see {log.relative_to(ROOT)}")


def check_load_commands(said: str) -> None:
    oldest = re.search(r"LC_BUILD_VERSION.*?minos ([\d.]+)", said, re.DOTALL)
    if oldest is None or oldest[1] != MACOS:
        raise Refused(f"the library is for macOS {oldest and oldest[1]} and newer, but wheels say {MACOS}")
    loaded = re.findall(r"LC_LOAD_DYLIB\s+cmdsize \d+\s+name (\S+)", said)
    allowed = (
        r"@rpath/libtorch_cpu\.dylib|/usr/lib/lib(System\.B|c\+\+\.1|objc\.A)\.dylib|/System/Library/Frameworks/.*"
    )
    strangers = [name for name in loaded if not re.fullmatch(allowed, name)]
    if strangers or not any("Metal.framework" in name for name in loaded):
        raise Refused(f"the library loads {', '.join(loaded)}")


# Names in libc++ and its runtime: of namespace std, of operators new and delete, and of exceptions.
OF_LIBCXX = re.compile(r"__Z[A-Z]*(St|NSt|NKSt|N10__cxxabi|n[wa]|d[la])|__ZT[IS]([a-z]|P)|___(cxa|gxx|dynamic_cast)")


def check_undefined(said: str) -> None:
    """The linker finds every symbol in a library that it knows, except those of libc++."""
    left = re.findall(r"\(undefined\) external (\S+)$", said, re.MULTILINE)
    unknown = [name for name in left if not OF_LIBCXX.match(name)]
    if unknown or not left:
        raise Refused(f"no library for macOS has {', '.join(unknown) or 'anything that the C++ library uses'}")


def selectors_of(library: Path) -> set[str]:
    """The names in the section in which the linker keeps method names."""
    rows = re.findall(
        r"^[0-9a-f]+\s+((?:[0-9a-f]{2,8} ?)+)$", output(OTOOL, "-s", "__TEXT", "__objc_methname", library), re.M
    )
    data = b"".join(bytes.fromhex(word)[::-1] for row in rows for word in row.split())
    return {name.decode() for name in data.split(b"\0") if name}


def check_selectors(library: Path) -> None:
    """A selector that none of Apple's classes has would otherwise fail only when it is sent."""
    listed = tools.metal_metadata().read_text()
    used = selectors_of(library) - FOUNDATION - UNLISTED
    unknown = {name for name in used if f'"{name}"' not in listed and f'"{getter(name)}"' not in listed}
    if unknown or not used:
        raise Refused(f"PyObjC's Metal lists no selector {', '.join(sorted(unknown))}")


def getter(selector: str) -> str:
    """The property's getter for a setter: label for setLabel:."""
    return re.sub(r"^set(\w)(\w*):$", lambda found: found[1].lower() + found[2], selector)
