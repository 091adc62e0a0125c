"""Compiles cpp/cpu/kernels/vector_functions.cpp to LLVM bitcode: an archive for a CPU level, one file per function.

    python scripts/bitcode.py --compiler 'clang++' --assembler 'clang++' --llvm 22.1.8 --out avx2.zip -- FLAGS SOURCE

A program that is compiled at run time links only the functions that it calls. So the source is compiled once, to LLVM
assembly, which is split into functions with the helpers and constants that they refer to. Everything that ties a
function to this compilation is removed: the target's CPU and features, which must be those of the code that inlines
it, and the module's flags. The archive's entry `llvm` is the version of LLVM that wrote it; older ones can't read it.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

# The C library's functions that the sources may call; the float versions have the suffix f. They become calls of
# functions that are opaque to LLVM: it would compile pow(2, x) with a constant 2 differently from libfourfold.
CIRCULAR = {kind + name for kind in ("", "a") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")}
OTHERS = {"atan2", "erf", "erfc", "exp", "exp2", "expm1", "fmod", "log", "log10", "log1p", "log2", "pow"}
LIBM_NAMES = {name + suffix for name in CIRCULAR | OTHERS for suffix in ("", "f")}

OPTIONS = [
    *("-g0", "-fomit-frame-pointer", "-fno-stack-protector", "-fno-strict-aliasing", "-fno-sanitize=undefined"),
    *("-fno-exceptions", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-Wno-unused-command-line-argument"),
    *(f"-fno-builtin-{name}" for name in sorted(LIBM_NAMES)),
]
PURE = "nobuiltin nofree nosync nounwind willreturn memory(none)"

SYMBOL = re.compile(r'@([-$.\w]+|"[^"]*")')
DEFINITION = re.compile(r"^define [^@]*@([-$.\w]+)\(.*?^\}$", re.MULTILINE | re.DOTALL)
DECLARATION = re.compile(r"^declare (.*?) ?@([-$.\w]+)\((.*)\)[^()\n]*$", re.MULTILINE)
CONSTANT = re.compile(r'^@([-$.\w]+|"[^"]*") = .*$', re.MULTILINE)
SHARED = re.compile(r"^(?:target datalayout|%\S+ = type|attributes #|!\d+ = ).*$", re.MULTILINE)
ATTRIBUTES = re.compile(r"^(attributes #\d+ = ){(.*)}$", re.MULTILINE)
INTRINSIC = re.compile(r"@llvm\.(\w+)\.f(32|64)\(")
# Functions that link these become internal, but would stay in COMDATs, which object files with nests would share.
COMDAT = re.compile(r",? comdat(\(\S+\))?(?=[ ,]|$)", re.MULTILINE)


class BitcodeError(Exception):
    """The source can't be compiled to self-contained functions; the text gives the reason."""


def declared(line: str, result: str, name: str, parameters: str) -> str:
    if name.startswith("llvm."):
        return line
    if name not in LIBM_NAMES:
        raise BitcodeError(f"expected calls of the C library's mathematics alone, but {name} is called too")
    types = ", ".join(parameter.split()[0] for parameter in parameters.split(","))
    return f"declare {result.split()[-1]} @{name}({types}) {PURE}"


def called(intrinsic: re.Match[str]) -> str:
    """llvm.cos.f32 becomes cosf: the C++ library's float functions compile to these intrinsics, with or without
    builtins."""
    name = intrinsic[1] + {"32": "f", "64": ""}[intrinsic[2]]
    return f"@{name}(" if name in LIBM_NAMES else intrinsic[0]


def without_target(group: re.Match[str]) -> str:
    """An attribute group without its strings, which name the CPU, its features and the frame layout; attributes such as
    willreturn remain."""
    words = re.sub(r' "[^"]*"(="[^"]*")?', "", group[2])
    return f"{group[1]}{{{words}{'' if 'nounwind' in words else 'nounwind '}}}"


def split(text: str) -> dict[str, str]:
    """The text of a module for each function whose name begins with fourfold_."""
    text = INTRINSIC.sub(called, ATTRIBUTES.sub(without_target, COMDAT.sub("", text)))
    entities = {found[1]: found[0] for found in DEFINITION.finditer(text)}
    functions = [name for name in entities if name.startswith("fourfold_")]
    entities |= {found[1]: found[0] for found in CONSTANT.finditer(text)}
    entities |= {found[2]: declared(*found.group(0, 1, 2, 3)) for found in DECLARATION.finditer(text)}
    shared = [found[0] for found in SHARED.finditer(text)]

    def module(function: str) -> str:
        needed: dict[str, None] = {}
        waiting = [function]
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            if name not in entities:
                raise BitcodeError(f"{function} refers to {name}, which the compiler's output does not define")
            needed[name] = None
            waiting += SYMBOL.findall(entities[name].partition(" = ")[2] or entities[name])
        return "\n".join([*shared, *(entities[name] for name in needed), ""])

    return {name: module(name) for name in functions}


def run(command: Iterable[object], **keywords: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords)
    if done.returncode:
        raise BitcodeError(f"{shlex.join(words[:12])} … failed:\n{done.stdout[:2000]}")


def build(compiler: list[str], assembler: list[str], arguments: list[str], folder: Path) -> dict[str, bytes]:
    """Each function's bitcode."""
    caches = {f"ZIG_{kind}_CACHE_DIR": str(folder / "zig") for kind in ("GLOBAL", "LOCAL")}
    whole = folder / "functions.ll"
    run([*compiler, *arguments, *OPTIONS, "-S", "-emit-llvm", "-o", whole], env=os.environ | caches)
    modules = split(whole.read_text())
    for name, text in modules.items():
        (folder / f"{name}.ll").write_text(text)
    sources = [f"{name}.ll" for name in modules]
    run([*assembler, "-c", "-emit-llvm", "-O0", "-Wno-override-module", *sources], cwd=folder)
    return {name: (folder / f"{name}.bc").read_bytes() for name in modules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", required=True, type=shlex.split, help="clang++, or python -m ziglang c++")
    parser.add_argument("--assembler", required=True, type=shlex.split, help="clang++, or python -m ziglang clang")
    parser.add_argument("--llvm", required=True, help="the version of the compiler's LLVM")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("arguments", nargs="+", help="the source, and how it is compiled at this level")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            functions = build(arguments.compiler, arguments.assembler, arguments.arguments, Path(folder))
        except BitcodeError as error:
            sys.exit(f"bitcode.py: {error}")
    # Uncompressed and without timestamps: the same sources give the same file.
    with zipfile.ZipFile(arguments.out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("llvm"), arguments.llvm)
        for name, bitcode in sorted(functions.items()):
            archive.writestr(zipfile.ZipInfo(f"{name}.bc"), bitcode)


if __name__ == "__main__":
    main()
