"""The elementary functions of the CPU's kernels as LLVM bitcode, which a compiled program links and inlines."""

import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from fourfold import _C
from fourfold.compiler.nest.ir.levels import Level

_SUFFIX = ".bc"


class Archive(Mapping[str, bytes]):
    """Each function's bitcode by its name, such as fourfold_exp_float32: a module with that function, which takes and
    returns native vectors by value. The file is read once: forked processes would share an open file's position."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
        self._names = [name.removesuffix(_SUFFIX) for name in self._zip.namelist() if name.endswith(_SUFFIX)]

    def __getitem__(self, name: str) -> bytes:
        return self._zip.read(name + _SUFFIX)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def llvm_major(self) -> int:
        """The major version of the LLVM that wrote it; this version and later ones read it."""
        return int(self._zip.read("llvm").decode().partition(".")[0])


def _path(level: Level) -> Path:
    return Path(_C.__file__).parent / "bitcode" / f"{level.name}.zip"


@cache
def functions(level: Level) -> Mapping[str, bytes]:
    """The functions for that CPU level; empty if this build has no bitcode for it."""
    return Archive(_path(level)) if _path(level).exists() else {}


@cache
def llvm_major(level: Level) -> int | None:
    """The oldest LLVM that reads ``functions(level)``; None if there are no functions."""
    found = functions(level)
    return found.llvm_major if isinstance(found, Archive) else None
