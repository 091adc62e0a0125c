"""Checks the kernels against Metal's language, because the simulator's compiler accepts more: pytest
tests/simulators/metal_language.py. clang compiles every kernel as C++14 with Metal's address spaces, and rejects what
the language lacks. Only Apple's own compiler can confirm the result."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from case_table import METAL, looks_at

import simulated_metal
from machine import tool

STRICT = simulated_metal.FRAMEWORK / "strict"
INSTANCE = re.compile(r'template \[\[host_name\("\w+"\)\]\] \[\[kernel\]\] decltype\((.*)\) (.*);')
# The declaration of a pointer or reference, which needs an address space.
DECLARED = re.compile(r"(?:[(,;{]|^)\s*((?:\w[\w:]*\s+)*(?:\w[\w:<>, ]*)?[\w>][*&]) \w+", re.MULTILINE)
SPACES = ("device", "constant", "threadgroup", "thread")
KERNEL = """
#include <metal_stdlib>
namespace fourfold {{
inline float twice(threadgroup float* at) {{ return 2.0f * at[0]; }}
{extra}
template <typename T>
[[kernel, max_total_threads_per_threadgroup(32)]] void k(
    device T* out [[buffer(0)]], device const T* in [[buffer(1)]], constant float& factor [[buffer(2)]],
    threadgroup float* shared [[threadgroup(0)]], uint at [[thread_position_in_grid]]) {{
  {body}
}}
template [[host_name("k")]] [[kernel]] decltype(k<float>) k<float>;
}}
"""
RIGHT = "out[at] = in[at] * factor + twice(shared);"
WRONG = {
    "a write through a constant": ("", "factor = 1.0f;"),
    "device memory as threadgroup memory": ("", "out[at] = twice(out);"),
    "a pointer that forgets its address space": (
        "inline float first(float* x) { return x[0]; }",
        "out[at] = first(out);",
    ),
    "double": ("", "out[at] = T(double(in[at]));"),
    "a lambda": ("", "auto f = [&] { return in[at]; }; out[at] = f();"),
    "if constexpr": ("", "if constexpr (sizeof(T) == 4) out[at] = in[at];"),
    "memory from the heap": ("", "out[at] = *new T(in[at]);"),
    "an unknown function": ("", "out[at] = metal::erf(in[at]);"),
}


def refusals(source: str, folder: Path) -> str:
    """The errors in a source as passed to newLibraryWithSource:."""
    text = INSTANCE.sub(r"template decltype(\1) \2;", source)
    text = re.sub(r" \[\[threadgroup\(\d+\)\]\]", "", text)
    file = folder / "kernel.cpp"
    file.write_text(text)
    command = [tool("clang++-19", "clang-19"), "-x", "c++", "-std=c++14", "-fsyntax-only", "-pedantic-errors"]
    command += [
        "-Wno-unknown-attributes",
        "-Wno-tautological-compare",
        "-Wno-duplicate-decl-specifier",
        "-Werror=c++17-extensions",
    ]
    command += ["-nostdinc++", "-isystem", str(STRICT), str(file)]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    code = re.sub(r"//[^\n]*|R?\"[^\"\n]*\"", "", source)
    bare = [found for found in DECLARED.findall(code) if not any(re.search(rf"\b{s}\b", found) for s in SPACES)]
    lambdas = re.findall(r"(?<!operator)\[[&=]?\]\s*[({]", code)
    return said + "".join(f"no address space: {declared}\n" for declared in bare) + "".join(lambdas)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_metal_refuses_is_refused(wrong: str, tmp_path: Path) -> None:
    assert refusals(KERNEL.format(extra="", body=RIGHT), tmp_path) == ""
    extra, body = WRONG[wrong]
    assert refusals(KERNEL.format(extra=extra, body=body), tmp_path) != ""


@looks_at(METAL)
def test_every_kernel_is_in_metals_language(outcome_of, tmp_path: Path) -> None:
    """The operators' kernels; programs are tested in metal_programs.py, where they are compiled."""
    found = (outcome_of(METAL).library.parent / "kernels").glob("*.metal")
    # A name with a process's number is a source that another test compiles right now.
    sources = sorted(source for source in found if "." not in source.stem and INSTANCE.search(source.read_text()))
    assert len(sources) > 100

    def check(source: Path) -> str:
        folder = tmp_path / source.stem
        folder.mkdir()
        return refusals(source.read_text(), folder)

    with ThreadPoolExecutor() as pool:
        assert {source.name: said for source, said in zip(sources, pool.map(check, sources), strict=True) if said} == {}
