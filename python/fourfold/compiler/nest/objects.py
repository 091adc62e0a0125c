"""Compiles nests ahead of time, for several CPU levels, into one object file that C++ programs link.

The object's initialisation passes a table to ``fourfold_nests_provide``; cpp/program/nests.h describes the table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from fourfold import _C, __version__
from fourfold.compiler.nest.cpu.build import build
from fourfold.compiler.nest.ir.layout import Layout
from fourfold.compiler.nest.ir.levels import Level
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit import bitcode
from fourfold.compiler.nest.jit.engine import Compiler
from fourfold.compiler.nest.print.llvm import print_nest

# A vector function that the level has no bitcode for: a nest calls it at an address that the library fills in.
DECLARED = re.compile(r"^declare (<[^>]+>) @(fourfold_(\w+)_(float32|float64))\(([^)]*)\)(.*)$", re.MULTILINE)
DEFINED = re.compile(r"^(define .*) \{$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """An address that a level's nests read. type: of the elements."""

    name: str
    operation: str
    type: str


def compile_object(nests: Sequence[tuple[str, str]], levels: Sequence[Level], triple: str) -> bytes:
    """The object file. nests: each program's text, without sizes of axes, and a layout."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    parts = [LevelOfObject(level, triple, nests) for level in levels]
    # Its own code, the initialisation, runs on any processor of this architecture; nests name what they use.
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    module = llvm.parse_assembly("\n".join(table(parts)))
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    for part in parts:
        for nest in part.modules:
            module.link_in(nest)
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and not value.name.startswith("llvm."):
            value.linkage = "internal"
    module.verify()
    return machine.emit_object(module)


class LevelOfObject:
    """The nests for one level. rows: of the table, an entry for each nest."""

    def __init__(self, level: Level, triple: str, nests: Sequence[tuple[str, str]]) -> None:
        self.level = level
        self.compiler = Compiler(level, triple, bitcode.functions(level))
        self.places: dict[str, Place] = {}
        self.modules: list[llvm.ModuleRef] = []
        self.rows: list[Row] = []
        for text, layout in nests:
            self.add(text, layout)

    def add(self, text: str, layout: str) -> None:
        nest = build(read(text), Layout.of(layout), self.level.lanes)
        prefix = f"{self.level.name}_{len(self.rows)}_"
        functions = ["" if function is None else prefix + function.name for function in nest.functions]
        ir = DECLARED.sub(self.call_at_address, print_nest(nest, self.level))
        module = self.compiler.optimized(ir)
        for function in nest.functions:
            if function is not None:
                module.get_function(function.name).name = prefix + function.name
        # The file's functions are for different processors: each names its own.
        processor = f'"target-cpu"="{self.level.processor}" "target-features"="{self.level.features}"'
        self.modules.append(llvm.parse_assembly(DEFINED.sub(rf"\1 {processor} {{", str(module))))
        numbers = (nest.bytes, nest.bytes_of_column, nest.bytes_of_panel, nest.sums)
        self.rows.append(Row(text, layout, functions, numbers))

    def call_at_address(self, declared: re.Match[str]) -> str:
        result, name, operation, type, operands, attributes = declared.groups()
        if name in self.compiler.functions:
            return declared.group()
        place = self.places[name] = Place(f"{self.level.name}_{name}", operation, type)
        types = operands.split(", ")
        named = ", ".join(f"{each} %x{k}" for k, each in enumerate(types))
        return f"""\
@{place.name} = external global ptr
define internal {result} @{name}({named}){attributes} alwaysinline nounwind {{
  %function = load ptr, ptr @{place.name}
  %result = call {result} %function({named})
  ret {result} %result
}}"""


@dataclass(frozen=True, slots=True)
class Row:
    """functions: their names in the object, empty for a missing one. numbers: as attach_nest takes them."""

    text: str
    layout: str
    functions: list[str]
    numbers: tuple[int, ...]


NEST = "{ ptr, ptr, ptr, i64, i64, i64, i64, i64 }"
FUNCTION = "{ ptr, ptr, ptr }"
OBJECT = "{ ptr, i64, ptr, ptr, i64, ptr, i64 }"


def table(parts: Sequence[LevelOfObject]) -> Iterator[str]:
    """The module with the table and its initialisation."""
    strings = Strings()
    objects: list[str] = []
    for part in parts:
        yield from (f"@{place.name} = global ptr null" for place in part.places.values())
        name = part.level.name
        rows = []
        for k, row in enumerate(part.rows):
            yield from (f"declare void @{each}(i64, i64, ptr, ptr)" for each in row.functions if each)
            functions = ", ".join(f"ptr @{each}" if each else "ptr null" for each in row.functions)
            yield f"@functions_{name}_{k} = constant [{len(row.functions)} x ptr] [{functions}]"
            numbers = ", ".join(f"i64 {number}" for number in (len(row.functions), *row.numbers))
            texts = f"ptr {strings[row.text]}, ptr {strings[row.layout]}"
            rows.append(f"{NEST} {{ {texts}, ptr @functions_{name}_{k}, {numbers} }}")
        places = [
            f"{FUNCTION} {{ ptr {strings[place.operation]}, ptr {strings[place.type]}, ptr @{place.name} }}"
            for place in part.places.values()
        ]
        yield f"@nests_{name} = constant [{len(rows)} x {NEST}] [{', '.join(rows)}]"
        yield f"@places_{name} = constant [{len(places)} x {FUNCTION}] [{', '.join(places)}]"
        version = f"ptr {strings[__version__]}, i64 {_C.build_info()['abi_version']}, ptr {strings[name]}"
        tables = f"ptr @nests_{name}, i64 {len(rows)}, ptr @places_{name}, i64 {len(places)}"
        objects.append(f"@object_{name}")
        yield f"@object_{name} = constant {OBJECT} {{ {version}, {tables} }}"
    yield from strings.definitions()
    yield "declare void @fourfold_nests_provide(ptr)"
    yield "define void @provide() nounwind {"
    yield from (f"  call void @fourfold_nests_provide(ptr {each})" for each in objects)
    yield "  ret void\n}"
    started = "{ i32, ptr, ptr } { i32 65535, ptr @provide, ptr null }"
    yield f"@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{started}]"


class Strings:
    """Constants of C strings, each once."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def __getitem__(self, text: str) -> str:
        return self.known.setdefault(text, f"@string_{len(self.known)}")

    def definitions(self) -> Iterator[str]:
        for text, name in self.known.items():
            data = text.encode() + b"\0"
            escaped = "".join(f"\\{byte:02x}" for byte in data)
            yield f'{name} = constant [{len(data)} x i8] c"{escaped}"'
