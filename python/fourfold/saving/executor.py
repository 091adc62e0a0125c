"""What loads and runs files: the module compiled for this torch or, without one, Python."""

from __future__ import annotations

from types import ModuleType

from fourfold import _native


def executor() -> ModuleType:
    if _native.module is not None:
        return _native.module
    from fourfold.saving import in_python  # imports the compiler

    return in_python
