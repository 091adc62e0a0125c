"""Inspects compiled GPU kernels: a kernel that keeps values in local memory instead of registers is correct and slow,
and no test of its results detects that."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from backend_report import Refused

LOCAL_MEMORY = re.compile(r"\b(LDL|STL)\b")


def of_file(path: Path, cuobjdump: Path) -> dict[str, str]:
    """in_local_memory of an object file. It is disassembled, which takes seconds, only if a kernel has a stack: local
    memory lies there, so no instruction accesses any without one."""
    has_stack = any(bytes for _, bytes in stacks(said_by(cuobjdump, path, "-res-usage")))
    return in_local_memory(disassembly(path, cuobjdump)) if has_stack else {}


def disassembly(path: Path, cuobjdump: Path) -> str:
    """The resources and the instructions of an object file's kernels."""
    return said_by(cuobjdump, path, "-res-usage", "-sass")


def said_by(cuobjdump: Path, path: Path, *options: str) -> str:
    said = output(cuobjdump, *options, path)
    if not any(stacks(said)):
        raise Refused(f"cuobjdump finds no kernel in {path.name}")
    return said


def in_local_memory(said: str) -> dict[str, str]:
    """The kernels of a disassembly that have a stack or access local memory, with a description."""
    found = {kernel: f"a stack of {stack} bytes" for kernel, stack in stacks(said) if stack}
    for kernel, instructions in local_instructions(said):
        if instructions:
            words = f"{instructions} instructions on local memory"
            found[kernel] = f"{found[kernel]} and {words}" if kernel in found else words
    names = dict(zip(found, demangled(kernel for kernel, _ in found), strict=True))
    return {f"{names[key]} for {key[1]}": what for key, what in found.items()}


def stacks(said: str) -> Iterator[tuple[tuple[str, str], int]]:
    """From cuobjdump's resource usage: ((kernel, architecture), bytes of stack)."""
    architecture = kernel = ""
    for line in said.splitlines():
        if match := re.match(r"arch = (\S+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            kernel = match[1]
        elif match := re.search(r"\bSTACK:(\d+) .*\bLOCAL:(\d+)", line):
            yield (kernel, architecture), int(match[1]) + int(match[2])


def local_instructions(said: str) -> Iterator[tuple[tuple[str, str], int]]:
    """From the disassembly: ((kernel, architecture), number of loads from and stores to local memory)."""
    architecture, kernel, count = "", "", 0
    for line in said.splitlines():
        if match := re.match(r"arch = (\S+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            if kernel:
                yield kernel, count
            kernel, count = (match[1], architecture), 0
        elif LOCAL_MEMORY.search(line):
            count += 1
    if kernel:
        yield kernel, count


def demangled(names: Iterator[str]) -> list[str]:
    """Demangled names, without parameters and the project's namespaces."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return [
        re.sub(r"\(fourfold::gpu::Rounding\)|fourfold::gpu::|formulas::|c10::|^void |\(.*", "", line)
        for line in done.stdout.splitlines()
    ]


def output(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
