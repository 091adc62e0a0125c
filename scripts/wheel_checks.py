"""Checks of a wheel before anyone installs it. Each check ends the program with an error if it fails."""

import os
import platform
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import library_symbols
from backend_tools import MACOS
from wheel_archive import moment, ordered

# A project has 10 GB on PyPI: room for 20 releases of 24 wheels (8 Pythons, 3 platforms).
MEGABYTES = 20
# The libraries that ours may load on each system: ours, torch's, the system's, and for a ROCm build HIP's runtime.
LOADED = {
    "linux": r"libfourfold\.so|lib(torch_cpu|torch_python|c10)\.so|libamdhip64\.so\.\d+"
    r"|lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d+|ld-linux[-\w]*\.so\.\d+",
    "darwin": r"@rpath/lib(fourfold|torch_cpu|torch_python|c10)\.dylib|/usr/lib/lib(System\.B|c\+\+\.1|objc\.A)\.dylib"
    r"|/System/Library/Frameworks/.*",
}
ORIGIN = {"linux": "$ORIGIN", "darwin": "@loader_path"}


def check(wheel: Path, system: str) -> None:
    """Runs all checks; `system` is a value of sys.platform."""
    check_size(wheel)
    check_nothing_grafted(wheel)
    check_libraries(wheel, system)
    check_exports(wheel, system)
    check_tags(wheel, system)
    check_normal_form(wheel)


def check_size(wheel: Path) -> None:
    size = wheel.stat().st_size / 1e6
    if size > MEGABYTES:
        sys.exit(f"{wheel.name} has {size:.1f} MB, but should have at most {MEGABYTES}")


def is_library(name: str) -> bool:
    return re.search(r"\.(so|dylib)\b", Path(name).name) is not None


def check_nothing_grafted(wheel: Path) -> None:
    """A second shared library of torch, CUDA or OpenMP in a process would be an error at run time. libfourfold's own
    CUDA runtime is linked statically."""
    names = zipfile.ZipFile(wheel).namelist()
    libraries = {Path(name).name.split(".")[0] for name in names if is_library(name)}
    of_ours = {"_C", "libfourfold"} | {name for name in libraries if re.fullmatch(r"_torch_\d+_\d+", name)}
    folders = sorted({name.split("/")[0] for name in names if ".dist-info" not in name})
    if libraries != of_ours or folders != ["fourfold"]:
        sys.exit(
            f"{wheel.name} should hold libfourfold, _C and _torch_* only, but has {sorted(libraries)} in {folders}"
        )


def dynamic_section(library: Path, system: str) -> tuple[list[str], list[str]]:
    """The library's search path, and the libraries that it loads."""
    command = ["readelf", "--dynamic", "--wide"] if system == "linux" else ["otool", "-l"]
    said = subprocess.run([*command, str(library)], check=True, capture_output=True, text=True).stdout
    if system == "linux":
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", said)
        return [path for each in paths for path in each.split(":")], re.findall(r"\(NEEDED\).*\[(.*)\]", said)
    paths = re.findall(r"cmd LC_RPATH\s+cmdsize \d+\s+path (\S+)", said)
    return paths, re.findall(r"cmd LC_LOAD_DYLIB\s+cmdsize \d+\s+name (\S+)", said)


def extracted(wheel: Path) -> Iterator[tuple[str, Path]]:
    """The wheel's libraries, by name, each as a file that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in filter(is_library, archive.namelist()):
            yield name, Path(archive.extract(name, folder))


def check_libraries(wheel: Path, system: str) -> None:
    """Libraries are searched for only beside the library that loads them, and all others are already loaded or part of
    the system."""
    for name, library in extracted(wheel):
        paths, loaded = dynamic_section(library, system)
        if strangers := [path for path in paths if path.rstrip("/") != ORIGIN[system]]:
            sys.exit(f"{name} should look for libraries in {ORIGIN[system]} only, but does in {strangers}")
        if strangers := [other for other in loaded if not re.fullmatch(LOADED[system], other)]:
            sys.exit(f"{name} should load no library but torch's and the system's, but loads {strangers}")
        if not paths and any("libfourfold" in other for other in loaded):
            sys.exit(f"{name} should look for libfourfold in {ORIGIN[system]}, but has no search path")


def check_exports(wheel: Path, system: str) -> None:
    """A runtime that is linked statically stays private to its library."""
    for name, library in extracted(wheel):
        if found := library_symbols.of_other_runtimes(library, system):
            sys.exit(f"{name} should export nothing of CUDA's or OpenMP's runtime, but exports {found}")


def check_tags(wheel: Path, system: str) -> None:
    """The file's name, its metadata and the modules' names agree on a supported platform."""
    python, abi, platforms = wheel.stem.split("-")[2:]
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        said = Parser().parsestr(archive.read(metadata).decode()).get_all("Tag", [])
        modules = [Path(name).name for name in archive.namelist() if is_library(name) and "libfourfold" not in name]
    if sorted(said) != sorted(f"{python}-{abi}-{one}" for one in platforms.split(".")):
        sys.exit(f"{wheel.name} should have the tags of its name, but its metadata says {', '.join(said)}")
    for module in modules:
        found = re.search(r"\.cpython-(\d+t?)-", module)
        if found is None or abi != f"cp{found[1]}" or python != f"cp{found[1].rstrip('t')}":
            sys.exit(f"{wheel.name} should hold modules for {abi}, but has {module}")
    for one in platforms.split("."):
        check_platform(wheel, one, system)


def glibc(tag: str) -> tuple[int, int] | None:
    """The oldest glibc of a platform tag for this processor."""
    aliases = {"2014": "_2_17", "2010": "_2_12", "1": "_2_5"}
    found = re.fullmatch(rf"manylinux(_\d+_\d+|2014|2010|1)_{platform.machine()}", tag)
    if found is None:
        return None
    _, major, minor = aliases.get(found[1], found[1]).split("_")
    return int(major), int(minor)


def check_platform(wheel: Path, tag: str, system: str) -> None:
    """AUDITWHEEL_PLAT, in a manylinux container, and MACOSX_DEPLOYMENT_TARGET name the oldest system."""
    if system == "darwin":
        oldest = os.environ.get("MACOSX_DEPLOYMENT_TARGET") or MACOS
        wanted = f"macosx_{oldest.replace('.', '_')}_arm64"
        if tag != wanted:
            sys.exit(f"{wheel.name} should be for {wanted}")
        return
    wanted = os.environ.get("AUDITWHEEL_PLAT") or f"manylinux_X_Y_{platform.machine()}"
    needed = glibc(tag)
    if needed is None or needed > (glibc(wanted) or needed):
        sys.exit(f"{wheel.name} should be for {wanted} or older, but is for {tag}")


def check_normal_form(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    names = [member.filename for member in members]
    if names != ordered(set(names)):
        sys.exit(f"{wheel.name} should have its members once and in order, but begins with {', '.join(names[:3])}")
    for member in members:
        mode = member.external_attr >> 16
        if member.date_time != moment():
            sys.exit(f"{member.filename} in {wheel.name} should be of {moment()}, but is of {member.date_time}")
        if stat.S_IMODE(mode) not in (0o644, 0o755) or not stat.S_ISREG(mode):
            sys.exit(f"{member.filename} in {wheel.name} should be a file with mode 644 or 755, but has {mode:o}")
