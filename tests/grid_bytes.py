"""Compares the memory accesses of a compiled kernel with those of its nest."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import compiled_code
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.loops import Grid, Kernel, Let, Loop, Statement, Store, When
from fourfold.compiler.nest.plan import SIZES

ACCESS = re.compile(r"\b(LDG|STG)\.E(?:\.\w+)*?(?:\.(128|64|U16|S16|U8|S8))?(?:\.\w+)*\b")
TRIGONOMETRIC = ("sin", "cos", "tan")
LOADS = "LDG accesses"
WIDEST = 16  # bytes per access
WIDEST_OF_LONG = 8  # for 8-byte numbers: NVRTC 13.0 loads two of them separately on Blackwell, 12.8 and 13.5 together
BYTES = {None: 4, "128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def of_nest(kernel: Kernel) -> Counter[str]:
    """Bytes and accesses of a kernel's statements that load from and store to tensors, by instruction; each statement
    counts once."""
    found: Counter[str] = Counter()
    shared: set[str] = set()

    def add(what: str, lanes: int, size: int, is_strided: bool) -> None:
        bytes = max(1, lanes) * size
        found[what] += bytes
        widest = WIDEST_OF_LONG if size == WIDEST_OF_LONG else WIDEST
        found[f"{what} accesses"] += lanes if is_strided else -(-bytes // widest)

    def count(body: list[Statement]) -> None:
        for statement in body:
            if isinstance(statement, (Loop, When)):
                count(statement.body)
            elif isinstance(statement, Let) and statement.op == "shared":
                shared.add(statement.result.name)
            elif isinstance(statement, Let) and statement.op in ("load", "load_strided"):
                if statement.operands[0].name not in shared:
                    is_strided = statement.op == "load_strided"
                    add("LDG", statement.result.lanes, SIZES[statement.attribute], is_strided)
            elif isinstance(statement, Store) and statement.pointer.name not in shared:
                add("STG", statement.value.lanes, SIZES[statement.kind], statement.stride is not None)

    count(kernel.body)
    return found


def of_code(disassembly: str) -> dict[str, Counter[str]]:
    """The same for each kernel's instructions."""
    found: dict[str, Counter[str]] = {}
    for part in disassembly.split("Function : ")[1:]:
        name, _, lines = part.partition("\n")
        own = found[name.strip()] = Counter()
        for what, width in ACCESS.findall(lines):
            own[what] += BYTES[width or None]
            own[f"{what} accesses"] += 1
    return found


def has(body: list[Statement], operations: tuple[str, ...]) -> bool:
    return any(
        has(statement.body, operations)
        if isinstance(statement, (Loop, When))
        else isinstance(statement, Let) and statement.op in operations
        for statement in body
    )


def is_serial(layout: GridLayout) -> bool:
    """Whether a loop in each thread does all the work; compilers duplicate its body for the first iteration and the
    others."""
    return layout.steps is not None or layout.split == "rows" and layout.group == 1


def faults(grid: Grid, layout: GridLayout, file: Path, cuobjdump: Path) -> str:
    """What is wrong with the compiled kernels of a grid; empty if nothing. Kernels with sin, cos or tan are not
    checked: NVIDIA's implementation reduces large arguments in local memory, with a table that it loads."""
    if any(has(kernel.body, TRIGONOMETRIC) for kernel in grid.kernels):
        return ""
    local = compiled_code.in_local_memory(file, cuobjdump)
    if local:
        return "\n".join(f"{kernel} has {what}" for kernel, what in local.items())
    done = subprocess.run([str(cuobjdump), "-sass", str(file)], capture_output=True, text=True, check=True)
    moved = of_code(done.stdout)
    found = []
    for kernel in grid.kernels:
        expected, own = of_nest(kernel), moved[f"fourfold_{kernel.name}"]
        most = 2 if is_serial(layout) else 1
        # A compiler may merge two loads, or load only the low halves of wide numbers.
        is_narrower = own["LDG"] < expected["LDG"]
        too_many = [what for what in own if own[what] > most * expected[what] and not (is_narrower and what == LOADS)]
        if own["STG"] < expected["STG"] or too_many:
            found.append(f"{kernel.name} moves bytes in accesses {dict(own)}, and its nest {dict(expected)}")
    return "\n".join(found)
