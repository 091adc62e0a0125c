"""Finds the CMake package for C++ programs; needs no torch, nor a complete installation."""

import sys
from importlib.util import find_spec
from pathlib import Path

# No release is published, so the sources are what everyone has.
REINSTALL = "reinstall it, in its source tree: pip install --force-reinstall --no-deps ."


def is_requested() -> bool:
    """Whether it is called like by CMake, which should not wait for torch, nor fail if torch can't be imported."""
    return sys.orig_argv[-3:] == ["-m", "fourfold", "--cmake-dir"]


def print_folder() -> int:
    # Beside the compiled library, which an editable install keeps apart from the Python files.
    found = find_spec("fourfold._C")
    package = Path(found.origin).parent / "share" / "cmake" / "fourfold" if found and found.origin else None
    if package is None or not (package / "fourfoldConfig.cmake").exists():
        print(
            f"python -m fourfold: this copy of fourfold has no CMake package; {REINSTALL}",
            file=sys.stderr,
        )
        return 2
    print(package)
    return 0
