"""The loop nests of programs: what runs a program, and its nest as C++ or a GPU's language, LLVM IR or assembly."""

from __future__ import annotations

from collections.abc import Sequence

from fourfold.compiler.nest.cpu.build import NotCompiled, build
from fourfold.compiler.nest.grid.build import build as build_grid
from fourfold.compiler.nest.grid.layout import GridLayout, is_grid
from fourfold.compiler.nest.ir import levels
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.loops import Grid, Nest
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nest.print import c, llvm
from fourfold.devices import programs as devices
from fourfold.explaining.data import Program, grouped, plural


def nest_of(program: Program) -> Nest | Grid:
    """Raises NotCompiled if there is none."""
    if not program.layout:
        raise NotCompiled("its sizes depend on data")
    return built(program.text, program.layout)


def built(text: str, layout: str) -> Nest | Grid:
    """The nest of a program's text. Raises NotCompiled if there is none."""
    if is_grid(layout):
        return build_grid(read(text), GridLayout.of(layout))
    return build(read(text), Layout.of(layout), target().lanes)


def target() -> levels.Level:
    """The CPU level in use, or the smallest one of x86-64 if that level has no nests."""
    return levels.level() or levels.AVX2


def refusal(program: Program) -> str:
    """Why there is no nest of a program, empty if there is one."""
    try:
        nest = nest_of(program)
        if isinstance(nest, Grid):
            printed_grid(program, nest, prelude=False)
    except NotCompiled as reason:
        return str(reason)
    return ""


def printed(program: Program, what: str, prelude: bool = False) -> str:
    """Raises NotCompiled if the program has no nest, ImportError for assembly without llvmlite, and ValueError for
    output that the device's compiler doesn't produce."""
    nest = nest_of(program)
    if isinstance(nest, Grid):
        if what != "c":
            raise ValueError(f"explain: expected c, because {program.name} runs on {program.device}, but got {what}")
        return printed_grid(program, nest, prelude)
    if what == "c":
        return c.print_file({program.name: nest}) if prelude else c.print_nest(nest)
    ir = llvm.print_nest(nest, target())
    if what == "llvm":
        return ir
    if service.obstacle():
        raise ImportError(f"explain: expected loop nests that can be compiled, but {service.obstacle()}")
    return service.service.engine.assembly(ir)


def printed_grid(program: Program, grid: Grid, prelude: bool) -> str:
    """The kernels in the language of the program's device."""
    language = devices.LANGUAGES[devices.language_of(program.device)].module()
    return language.print_file(grid) if prelude else language.print_grid(grid)


def shown(program: Program) -> str:
    """The nest in C++ or a GPU's language, or why there is none."""
    reason = refusal(program)
    return f"No loop nest: {reason}." if reason else printed(program, "c")


def about(programs: Sequence[Program], generator: str) -> str:
    """What runs the programs, in a sentence or two."""
    of_cpu = [program for program in programs if program.device in devices.INTERPRETED]
    of_gpu = [program for program in programs if program.device not in devices.INTERPRETED]
    texts = [about_cpu(of_cpu, generator)] if of_cpu else []
    texts += [about_gpu(of_gpu)] if of_gpu else []
    return " ".join(texts)


def about_cpu(programs: Sequence[Program], generator: str) -> str:
    if generator == "interpreter" or service.obstacle():
        reason = "as the option generator says" if generator == "interpreter" else service.obstacle()
        return f"The interpreter runs all programs: {reason}."
    reasons = grouped(filter(None, map(refusal, programs)), str)
    count = len(programs) - sum(map(len, reasons.values()))
    start = "when a layout comes again" if generator == "auto" else "when they are first called"
    text = f"Loop nests run {count:,} of {plural(len(programs), 'program')}, compiled {start}."
    return text + "".join(f" The interpreter runs {len(all_):,}: {reason}." for reason, all_ in reasons.items())


def about_gpu(programs: Sequence[Program]) -> str:
    reasons = grouped(filter(None, map(refusal, programs)), str)
    count = len(programs) - sum(map(len, reasons.values()))
    device = programs[0].device
    text = (
        f"Kernels on {device} run {count:,} of {plural(len(programs), 'program')}, compiled when they are first called."
    )
    return text + "".join(f" torch's operators run {len(all_):,}: {reason}." for reason, all_ in reasons.items())
