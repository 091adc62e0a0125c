"""The result of a compilation as plain data, without references to graphs or tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
NAME = r"(?<!= )\b[A-Za-z_]\w*"  # not the name of an operation


@dataclass(frozen=True)
class Box:
    """A node of a graph as it is drawn. kind: input, saved, gradient; program; torch (an operator that torch runs),
    again (such an operator of the forward, recomputed), view; result, kept. reads: names of boxes."""

    name: str
    kind: str
    lines: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A fusion group. bytes: the bytes that it reads and writes; None if its sizes depend on data. layout: the layout
    of its tensors in the example call (compiler/nest/ir/layout.py, for a GPU nest/grid/layout.py); empty if its sizes
    depend on data. device: the type of the device that it runs on."""

    name: str
    operators: tuple[str, ...]
    text: str
    bytes: int | None
    layout: str = ""
    device: str = "cpu"

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for programs that differ only in names: includes the text with normalized names."""
        names = {name: f"v{k}" for k, name in enumerate(re.findall(r"^(\w+): ", self.text, re.MULTILINE))}
        return (
            self.operators,
            self.bytes,
            self.layout,
            re.sub(NAME, lambda word: names.get(word[0], word[0]), self.text),
        )

    @property
    def counted(self) -> str:
        """sin, 2 pow, cos, add"""
        return counted(self.operators)


@dataclass(frozen=True)
class Programs:
    """Programs of one half that differ only in their tensors. names: of all, with the graph if there are several."""

    half: str
    first: Program
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def bytes(self) -> int | None:
        """The sum over all of them."""
        return None if self.first.bytes is None else self.first.bytes * self.count


@dataclass(frozen=True)
class Outside:
    """An operator that torch runs."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True)
class Half:
    """A forward or a backward."""

    name: str
    title: str
    code: str  # the graph that torch traced, as Python
    compiled: str  # the graph that runs
    boxes: tuple[Box, ...] = field(repr=False)
    programs: tuple[Program, ...]
    outside: tuple[Outside, ...]
    operators: int
    recomputed: int  # how many of these repeat an operator of the forward
    bytes_before: int | None
    bytes_after: int | None

    @property
    def fused(self) -> int:
        """How many of the operators are in programs."""
        return sum(len(program.operators) for program in self.programs)

    @property
    def left(self) -> int:
        """How often torch runs an operator."""
        return sum(one.count for one in self.outside)

    @property
    def kinds(self) -> tuple[Programs, ...]:
        return alike((self.name, one.name, one) for one in self.programs)

    @property
    def summary(self) -> str:
        if not self.operators:
            return "no operators"
        within = "" if self.operators == self.fused else f", {self.fused:,} of them"
        words = f"{plural(self.operators, 'operator')}{within} in {plural(len(self.programs), 'program')}"
        return f"{words}; {self.recomputed:,} recomputed, so that less is saved" if self.recomputed else words


@dataclass(frozen=True)
class Graph:
    """One graph that torch captured."""

    code: str
    runtime: str  # why torch's runtime calls the two halves; empty if fourfold's does
    forward: Half
    backward: Half | None

    @property
    def halves(self) -> tuple[Half, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)


@dataclass(frozen=True)
class Operators:
    """Operators of a step that come from one of its lines; source is empty if the line is unknown."""

    source: str
    names: tuple[str, ...]

    @property
    def counted(self) -> str:
        return counted(self.names)


@dataclass(frozen=True)
class Tensors:
    """A state, an x or a tensor that the step closes over. name: as in the user's code; own: in programs. value: dtype
    and shape in one step."""

    name: str
    own: str
    value: str


@dataclass(frozen=True)
class Kept:
    """A tensor that the forward keeps for the backward. value: dtype and shape in one step, or in all if has_steps is
    False. bytes: of memory that it doesn't share with inputs or earlier tensors of the list; None if its size depends
    on data. note: where it comes from."""

    name: str
    value: str
    has_steps: bool
    bytes: int | None
    note: str


@dataclass(frozen=True)
class Loop:
    """The loop of a scan. way: "nest", one loop nest over the steps; "stages", parts of a step that C++ runs in each;
    "steps", the graph of a step that C++ runs for each; "python", the same in Python. until: the way until the nest is
    compiled; empty for none. stages: those of the way "stages". reasons: by faster way, why it is not used. code: the
    graph of a step."""

    way: str
    until: str
    stages: tuple[str, ...]
    reasons: dict[str, str]
    programs: tuple[Program, ...]
    outside: tuple[Outside, ...]
    code: str


@dataclass(frozen=True)
class ScanHalf:
    """The forward or the backward of a scan. before, inside, after: the step's operators by where they run: for all
    steps at once before the loop, in the loop, for all steps at once after it. trails: the states whose values of all
    steps are kept. loop: None if nothing runs in one. around: the programs before and after the loop. code: the graph
    of the sequence. kept: for the backward; kept_bytes: their sum, None if sizes depend on data."""

    name: str
    before: tuple[Operators, ...]
    inside: tuple[Operators, ...]
    after: tuple[Operators, ...]
    trails: tuple[str, ...]
    loop: Loop | None
    around: tuple[Program, ...]
    outside: tuple[Outside, ...]
    code: str
    kept: tuple[Kept, ...] = ()
    kept_bytes: int | None = 0

    @property
    def programs(self) -> tuple[Program, ...]:
        """The loop's, then those before and after it."""
        return (*(self.loop.programs if self.loop else ()), *self.around)

    @property
    def operators(self) -> int:
        return sum(len(one.names) for place in (self.before, self.inside, self.after) for one in place)


@dataclass(frozen=True)
class Scan:
    """Calls of fourfold.scan with the same step and sizes. count: of the calls. place: the step's file and line.
    reason: why the steps run in Python, one by one; empty if they don't. has_hooks: whether hooks, such as those of
    torch.utils.checkpoint, receive what is kept. forward: None if the steps run in Python, or there are none."""

    step: str
    place: str
    count: int
    steps: int
    reverse: bool
    states: tuple[Tensors, ...]
    xs: tuple[Tensors, ...]
    closures: tuple[Tensors, ...]
    reason: str
    has_hooks: bool
    forward: ScanHalf | None
    backward: ScanHalf | None

    @property
    def halves(self) -> tuple[ScanHalf, ...]:
        return tuple(half for half in (self.forward, self.backward) if half is not None)


@dataclass(frozen=True)
class Stage:
    """Seconds of the first run and of later ones; None if not measured."""

    name: str
    first: float | None
    again: float | None


def alike(programs: Iterable[tuple[str, str, Program]]) -> tuple[Programs, ...]:
    """Groups programs of one kind, given the half, the name and the program of each."""
    groups = grouped(programs, lambda one: (one[0], *one[2].kind)).values()
    return tuple(Programs(group[0][0], group[0][2], tuple(name for _, name, _ in group)) for group in groups)


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    """Groups items by key, in the order of each group's first item."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def counted(names: Iterable[str]) -> str:
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in Counter(names).items())


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
