"""The definitions that printed kernels call, one text per language, which the build puts beside the compiled files."""

from functools import cache
from pathlib import Path

from fourfold import _C


@cache
def cuda() -> str:
    """The definitions for NVIDIA's and AMD's compilers: ``cuda/nest.cuh`` with all that it includes."""
    return _read("cuda.cuh")


@cache
def metal() -> str:
    """The definitions in Metal's language: ``metal/nest.h`` with all that it includes."""
    return _read("metal.h")


def _read(name: str) -> str:
    # An editable install keeps the compiled files apart from the Python ones.
    return (Path(_C.__file__).parent / "kernels" / name).read_text(encoding="utf-8")
