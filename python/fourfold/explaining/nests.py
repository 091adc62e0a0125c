"""The loop nests of programs: who runs a program, and its nest as C++, LLVM IR or assembly."""

from __future__ import annotations

from collections.abc import Sequence

from fourfold.compiler.nest import c, llvm, service
from fourfold.compiler.nest.build import NotCompiled, build
from fourfold.compiler.nest.layout import Layout
from fourfold.compiler.nest.loops import Nest
from fourfold.compiler.nest.reading import read
from fourfold.explaining.data import Program, grouped, plural

PRINTED = ("c", "llvm", "assembly")


def nest_of(program: Program) -> Nest:
    """Raises NotCompiled where there is none."""
    if not program.layout:
        raise NotCompiled("its sizes depend on data")
    return build(read(program.text), Layout.of(program.layout), target().lanes)


def target() -> llvm.Target:
    """Of the CPU level in use, or the smallest one if that has no nests."""
    return llvm.TARGETS.get(llvm.level(), llvm.TARGETS["avx2"])


def refusal(program: Program) -> str:
    """Why there is no nest of a program, empty if there is one."""
    try:
        nest_of(program)
    except NotCompiled as reason:
        return str(reason)
    return ""


def printed(program: Program, what: str, prelude: bool = False) -> str:
    """Raises NotCompiled if the program has no nest, ImportError for assembly without llvmlite."""
    nest = nest_of(program)
    if what == "c":
        return c.print_file({program.name: nest}) if prelude else c.print_nest(nest)
    ir = llvm.print_nest(nest, target())
    if what == "llvm":
        return ir
    if service.obstacle():
        raise ImportError(f"explain: expected loop nests that can be compiled, but {service.obstacle()}")
    return service.service.engine.assembly(ir)


def shown(program: Program) -> str:
    """The nest as C++, or why there is none."""
    reason = refusal(program)
    return f"No loop nest: {reason}." if reason else printed(program, "c")


def about(programs: Sequence[Program], generator: str) -> str:
    """What runs the programs, in one sentence."""
    if generator == "interpreter" or service.obstacle():
        reason = "as the option generator says" if generator == "interpreter" else service.obstacle()
        return f"The interpreter runs all programs: {reason}."
    reasons = grouped(filter(None, map(refusal, programs)), str)
    count = len(programs) - sum(map(len, reasons.values()))
    start = "when a layout comes again" if generator == "auto" else "when they are first called"
    text = f"Loop nests run {count:,} of {plural(len(programs), 'program')}, compiled {start}."
    return text + "".join(f" The interpreter runs {len(all_):,}: {reason}." for reason, all_ in reasons.items())
