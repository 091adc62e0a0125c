"""Programs as C++, compiled with the compiler that is there: ``options={"cpu": "cxx"}``."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from fourfold import _C
from fourfold.compiler.calling import Program

CACHE = "FOURFOLD_CACHE"
LIKE_AVX512 = ("avx512_bf16", "amx")  # as far as programs go
LONGEST_ERROR = 20  # lines


def compile_programs(programs: Mapping[str, Program]) -> None:
    """From now on each is computed by what the compiler makes of it. Raises RuntimeError where there is none, or
    where it fails."""
    if not programs:
        return
    source = "\n".join(program.source(name) for name, program in programs.items())
    library = ctypes.CDLL(str(library_of(source)))
    for name, program in programs.items():
        program.use(ctypes.addressof(ctypes.c_void_p.in_dll(library, name)))


def library_of(source: str) -> Path:
    """Where the source lies compiled, for the CPU level in use."""
    command = [*compiler(), *flags()]
    key = hashlib.sha256("\0".join([source, *command, headers_key(), torch.__version__]).encode()).hexdigest()[:32]
    folder = cache()
    library = folder / f"{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{key}.") as aside:
            made = compiled(command, source, Path(aside))
            made.replace(library)  # whole, whoever else makes it at this moment
    return library


def compiled(command: list[str], source: str, folder: Path) -> Path:
    written, made = folder / "programs.cpp", folder / "programs.so"
    written.write_text(source, encoding="utf-8")
    done = subprocess.run([*command, "-o", str(made), str(written)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[:LONGEST_ERROR])
        raise RuntimeError(f'fourfold: {command[0]} could not compile programs (option cpu="cxx"):\n{said}')
    return made


def compiler() -> list[str]:
    """The command in CXX, or c++."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        raise RuntimeError(
            f'fourfold: option cpu="cxx" needs a C++ compiler, but there is no {command[0]} on the PATH. Install '
            'one, name it in CXX, or leave the option out: cpu="interpreter" needs none and gives the same results.'
        )
    return command


@functools.cache
def flags() -> tuple[str, ...]:
    """What the CPU level in use was compiled with."""
    level = _C.cpu_capability()
    level = "avx512" if level in LIKE_AVX512 else level
    torchs, own = Path(torch.__file__).parent / "include", headers()
    for folder in (torchs, own):
        if not folder.is_dir():
            raise RuntimeError(f'fourfold: option cpu="cxx" needs the headers in {folder}, which is not there')
    definitions = [f"-DFOURFOLD_CPU_LEVEL=level_{level}", f"-DCPU_CAPABILITY={level.upper()}"]
    return (
        *("-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-w"),
        *(*definitions, f"-DCPU_CAPABILITY_{level.upper()}", *_C.build_info()[f"cxx_{level}"].split()),
        *(f"-I{own}", "-isystem", str(torchs)),
        *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),
    )


def headers() -> Path:
    """What programs include, as it was installed with libfourfold."""
    return Path(_C.__file__).parent / "include" / "fourfold" / "programs"


@functools.cache
def headers_key() -> str:
    contents = hashlib.sha256()
    for header in sorted(headers().rglob("*.h")):
        contents.update(header.read_bytes())
    return contents.hexdigest()


@functools.cache
def own_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="fourfold-")


def cache() -> Path:
    """The folder in FOURFOLD_CACHE, which later processes read too, or one that goes with this process."""
    chosen = os.environ.get(CACHE, "")
    folder = Path(chosen) if chosen else Path(own_folder().name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{CACHE} is {chosen}, where no folder can be made: {error}") from None
    return folder
