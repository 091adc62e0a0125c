"""The operating system calls in cpp/system, on this system; windows_build.py tests those of Windows under Wine."""

import os
import re
from pathlib import Path

import pytest

from machine import ROOT, output_of, tool

SOURCES = ROOT / "cpp"
SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".mm", ".metal")
FOLDERS = (SOURCES, ROOT / "cuda", ROOT / "hip", ROOT / "metal")
POSIX = re.compile(r"#\s*include\s*[<\"](dirent|dlfcn|fcntl|link|pthread|sched|signal|unistd|sys/\w+)\.h[>\"]")
# Calls of POSIX and Windows, which belong in cpp/system only. cpuid.h queries the processor.
OF_A_SYSTEM = re.compile(
    r"#include <(dlfcn|fcntl|link|malloc|pthread|sched|unistd|windows|sys/\w+)\.h>"
    r"|\b(dlopen|dlsym|dladdr|mmap|pthread_\w+|sched_\w+|sysconf|syscall|aligned_alloc)\("
)


# system/text.h explains why. The C++ modules in the folder nn print to streams.
IOSTREAMS = re.compile(
    r"#include <(fstream|iomanip|iosfwd|iostream|istream|locale|ostream|sstream|streambuf)>"
    r"|\bstd::(cerr|clog|cout|locale|\w*stream)\b"
)


@pytest.mark.parametrize("flags", [(), ("-DFOURFOLD_LACKS_CHARS",)], ids=["", "numbers as on macOS"])
def test_the_system_answers_as_it_should(tmp_path, flags):
    digits, empty = tmp_path / "digits", tmp_path / "empty"
    digits.write_text("0123456789")
    empty.touch()
    source, program = ROOT / "tests" / "cpp" / "system.cpp", tmp_path / "system"
    output_of(
        tool("g++", "g++"),
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-rdynamic",
        *flags,
        "-I",
        SOURCES,
        source,
        "-o",
        program,
        "-ldl",
    )
    said = output_of(program, digits, empty, tmp_path)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    assert re.fullmatch(rf"{cpus} CPUs, \d+ bytes of cache\n", said)


def sources() -> list[Path]:
    found = [path for folder in FOLDERS for path in folder.rglob("*") if path.suffix in SUFFIXES]
    return [path for path in found if path.parent.name != "system"]


@pytest.mark.parametrize("folder", sorted({path.parent for path in sources()}), ids=lambda folder: folder.name)
def test_the_system_is_asked_in_one_place(folder):
    for path in sources():
        if path.parent == folder:
            text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
            assert not OF_A_SYSTEM.search(text), path


def test_one_file_includes_the_headers_of_posix():
    every = [path for folder in FOLDERS for path in folder.rglob("*") if path.suffix in SUFFIXES]
    assert {path.parent.name for path in every} >= {"cuda", "kernels", "metal", "system"}
    assert [path for path in every if POSIX.search(path.read_text(encoding="utf-8"))] == [
        SOURCES / "system" / "posix.h"
    ]


def test_no_source_uses_iostreams():
    for path in (path for folder in FOLDERS for path in folder.rglob("*") if path.suffix in SUFFIXES):
        if path.parent.name != "nn":
            text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
            assert not IOSTREAMS.search(text), path
