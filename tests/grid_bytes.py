"""Compares the memory accesses of a compiled kernel with those of its nest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import compiled_code
from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT64
from fourfold.compiler.nest.grid.layout import GridLayout
from fourfold.compiler.nest.ir.loops import (
    INDEX,
    Constant,
    Grid,
    Kernel,
    Let,
    Loop,
    Operand,
    Ref,
    Statement,
    Store,
    When,
)
from fourfold.compiler.nest.ir.schedule import SIZES

ACCESS = re.compile(r"\b(LDG|STG)\.E(?:\.\w+)*?(?:\.(128|64|U16|S16|U8|S8))?(?:\.\w+)*\b")
TRIGONOMETRIC = ("sin", "cos", "tan")
LOADS = "LDG accesses"
WIDEST = 16  # bytes per access
WIDEST_OF_LONG = 8  # for 8-byte numbers: NVRTC 13.0 loads two of them separately on Blackwell, 12.8 and 13.5 together
OF_INDICES = ("<", "equal", "both", "mask")  # conditions of grids, which change with the thread
UNCONDITIONAL = ("add", "sub", "mul", "div", "neg")
MOST_CONDITIONS = 3  # of which a compiler writes all combinations
REPEATED = Counter({"LDG": 8, LOADS: 1})  # one number, which a compiler may load again
# Bytes of stack that a kernel may have: ptxas prefers some spilled registers to fewer blocks on a multiprocessor.
SPILLED, SPILLED_OF_FLOAT64 = 8, 64
INDEXED = re.compile(r"\b(?:LDL|STL)\b[^;]*\[(?!R1(?:\+0x[0-9a-f]+)?\])")  # no spill, which is at R1 plus a constant
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

    for statement in flat(kernel.body):
        if isinstance(statement, Let) and statement.op == "shared":
            shared.add(statement.result.name)
        elif isinstance(statement, Let) and statement.op in ("load", "load_strided"):
            if statement.operands[0].name not in shared:
                is_strided = statement.op == "load_strided"
                add("LDG", statement.result.lanes, SIZES[statement.attribute], is_strided)
        elif isinstance(statement, Store) and statement.pointer.name not in shared:
            add("STG", statement.value.lanes, SIZES[statement.kind], statement.stride is not None)
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


def flat(body: list[Statement]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, (Loop, When)):
            yield from flat(statement.body)
        else:
            yield statement


def lets(body: list[Statement]) -> Iterator[Let]:
    return (statement for statement in flat(body) if isinstance(statement, Let))


def stores(body: list[Statement]) -> Iterator[Store]:
    return (statement for statement in flat(body) if isinstance(statement, Store))


def bodies(kernel: Kernel, layout: GridLayout) -> int:
    """How often a compiler may write a loop's body: for the first iteration and the others, of a loop that does all of
    a thread's work; and for each value of the conditions that don't change in the loop, also those within a function of
    a number that doesn't change."""
    is_serial = layout.steps is not None or layout.split == "rows" and layout.group == 1
    values = list(lets(kernel.body))
    fixed = {each.result.name for each in values if each.op == "splat"}
    within = any(each.op not in UNCONDITIONAL and fixed & names(each.operands) for each in values)
    conditions = [each for each in values if each.result.type == BOOLEAN and each.op not in OF_INDICES]
    return 2 ** min(is_serial + within + sum(each.result.lanes == 0 for each in conditions), MOST_CONDITIONS)


def names(operands: Iterable[Operand]) -> set[str]:
    return {operand.name for operand in operands if isinstance(operand, Ref)}


def merged(kernel: Kernel, layout: GridLayout) -> int:
    """Bytes that a compiler may leave out: of vectors that are stored at one address, it keeps the last number; and of
    the copies of a single row, one."""
    is_one_row = layout.split == "columns" and layout.rows == 0
    at_one = [each for each in stores(kernel.body) if is_one_row or each.stride == Constant(0, INDEX)]
    kept = {each.pointer.name: SIZES[each.kind] for each in at_one}
    return sum(max(1, each.value.lanes) * SIZES[each.kind] for each in at_one) - sum(kept.values())


def most_of(kernel: Kernel, layout: GridLayout, expected: Counter[str], own: Counter[str]) -> Counter[str]:
    """The bytes and accesses that a compiled kernel may have. As many bodies as its bytes prove may have accesses."""
    allowed, most = bodies(kernel, layout), Counter(REPEATED)
    for what in ("LDG", "STG"):
        written = min(allowed, max(1, -(-own[what] // max(1, expected[what]))))
        most[what] += allowed * expected[what]
        most[f"{what} accesses"] += written * expected[f"{what} accesses"]
    return most


def is_small_spill(grid: Grid, said: str) -> bool:
    has_float64 = any(each.result.type == FLOAT64 for kernel in grid.kernels for each in lets(kernel.body))
    most = SPILLED_OF_FLOAT64 if has_float64 else SPILLED
    return all(stack <= most for _, stack in compiled_code.stacks(said)) and not INDEXED.search(said)


def faults(grid: Grid, layout: GridLayout, file: Path, cuobjdump: Path) -> str:
    """What is wrong with the compiled kernels of a grid; empty if nothing. Kernels with sin, cos or tan are not
    checked: NVIDIA's implementation reduces large arguments in local memory, with a table that it loads."""
    if any(each.op in TRIGONOMETRIC for kernel in grid.kernels for each in lets(kernel.body)):
        return ""
    said = compiled_code.disassembly(file, cuobjdump)
    local, moved = compiled_code.in_local_memory(said), of_code(said)
    found = [f"{name} has {what}" for name, what in local.items() if not is_small_spill(grid, said)]
    for kernel in grid.kernels:
        expected, own = of_nest(kernel), moved[f"fourfold_{kernel.name}"]
        most = most_of(kernel, layout, expected, own)
        # A compiler may merge two loads, or load only the low halves of wide numbers.
        is_narrower = own["LDG"] < expected["LDG"]
        too_many = [what for what in own if own[what] > most[what] and not (is_narrower and what == LOADS)]
        too_few = own["STG"] < expected["STG"] - merged(kernel, layout)
        if too_few or too_many:
            found.append(f"{kernel.name} moves bytes in accesses {dict(own)}, and its nest {dict(expected)}")
    return "\n".join(found)
