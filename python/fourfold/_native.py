"""The module compiled for one minor version of torch: the operators' gradients, and fast calls from Python. If there is
none for this torch, Python does the same, more slowly."""

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import torch

from fourfold import _C, _cmake

VERSION = ".".join(torch.__version__.split(".")[:2])
SWITCH = "FOURFOLD_GRADIENTS"
KEPT_MEMORY = "FOURFOLD_KEPT_MEMORY"
MOST_KEPT = 1 << 30
# Of a container's memory.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
PLAIN: str = getattr(_C, "PLAIN", "")  # why there is no library; empty if there is one


def _load() -> tuple[ModuleType | None, str]:
    """The module, and a description of how gradients and calls run."""
    switch = os.environ.get(SWITCH, "")
    if switch not in ("", "python"):
        raise ImportError(f"{SWITCH} is {switch}; set it to python, or unset it")
    if PLAIN:
        return None, f"plain torch ({PLAIN})"
    if switch == "python":
        return None, f"Python ({SWITCH}=python)"
    name = f"fourfold._torch_{VERSION.replace('.', '_')}"
    try:
        return importlib.import_module(name), f"C++, compiled for torch {VERSION}"
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None, f"Python (this build of fourfold has none compiled for torch {VERSION})"
    except ImportError as error:
        return None, f"Python ({error})"


def _memory(limits: Iterable[Path] = LIMITS) -> int:
    """The bytes that this process may use: the machine's, or fewer in a container."""
    is_known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ())  # not on Windows
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if is_known else 8 * MOST_KEPT]
    for file in limits:
        with contextlib.suppress(OSError, ValueError):  # there is no such group, or no limit
            found.append(int(file.read_text()))
    return min(found)


def _kept_memory() -> int:
    """The limit in bytes. Raises ValueError for anything but a number of mebibytes."""
    given = os.environ.get(KEPT_MEMORY)
    if not given:
        return min(MOST_KEPT, _memory() // 8)
    if not (given.isascii() and given.isdigit() and len(given) <= 12):
        raise ValueError(f"fourfold: expected {KEPT_MEMORY} to be a number of mebibytes, but got {given!r}")
    return int(given) << 20


module, path = _load()
if module is not None:
    module.keep_memory(_kept_memory())


def _versions() -> list[str]:
    """The minor versions of torch that this build has a module for."""
    files = Path(_C.__file__).parent.glob("_torch_*")
    numbers = {tuple(map(int, file.name.partition(".")[0].split("_")[2:])) for file in files}
    return [".".join(map(str, number)) for number in sorted(numbers)]


def empty_cache() -> int:
    """Returns cached memory of compiled functions and loaded models to the system, as ``torch.cuda.empty_cache``
    does on GPUs. Returns the number of bytes.

    Memory of freed tensors of 128 KiB and more is cached, because glibc would return it to the system at once, and the
    kernel would clear new pages in every call: the last 256 blocks, up to ``FOURFOLD_KEPT_MEMORY`` MiB (an eighth of
    the machine's or container's memory, at most 1024). Blocks that were unused for half a minute are returned when the
    next such tensor is allocated or freed.
    """
    return 0 if module is None else module.release_memory()


def expect_library(caller: str) -> None:
    """Raises ImportError in the plain package, for callers that need the compiled library."""
    if PLAIN:
        raise ImportError(
            f"{caller}: expected fourfold's compiled library, but this installation was {PLAIN}; unset the variable "
            f"and {_cmake.REINSTALL}, with a C++ compiler"
        )


def enable_gradients() -> None:
    """Called after the operators are declared in Python, which handles what C++ doesn't."""
    if module is not None:
        module.enable_gradients()
    elif PLAIN:
        return  # torch computes the gradients, and the first call warns
    elif os.environ.get(SWITCH, "") == "":
        mend = f"{_cmake.REINSTALL}, which compiles for this torch"
        if versions := [version for version in _versions() if version != VERSION]:
            mend = f"install a torch that it was built for ({', '.join(versions)}), or {mend}"
        # At the line that imports fourfold.
        what = f"gradients, calls and saved models in {path}"
        warnings.warn(f"fourfold runs {what}, which is slower; {mend}", stacklevel=3)
