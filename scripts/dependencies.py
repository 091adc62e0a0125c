"""The package's dependencies, for scikit-build-core: llvmlite, which compiles loop nests, where it has wheels.
Elsewhere pip would build LLVM from source; there programs run by the interpreter."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping

TORCH = "torch>=2.10"
PLATFORMS = (
    "sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'",
    "sys_platform == 'darwin' and platform_machine == 'arm64'",
)
LLVMLITE = f"llvmlite>=0.50; python_version < '3.15' and ({' or '.join(f'({platform})' for platform in PLATFORMS)})"


def dynamic_metadata(field: str, settings: Mapping[str, object] | None = None, *_: object) -> list[str]:
    if field != "dependencies" or settings:
        raise ValueError(f"expected the field dependencies without settings, but got {field} with {settings}")
    # No marker says that a Python has no GIL, for which llvmlite has no wheels.
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return [TORCH, LLVMLITE] if has_gil and not without_extension() else [TORCH]


def without_extension() -> bool:
    """Whether FOURFOLD_NO_EXTENSION asks for the package in plain torch, which has no loop nests. scikit-build-core
    reads the variable by the same rule for pyproject.toml's override."""
    asked = os.environ.get("FOURFOLD_NO_EXTENSION", "").lower()
    return int(asked) != 0 if asked.isdigit() else asked not in ("", "n", "no", "off", "false", "f")
