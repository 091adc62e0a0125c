"""The package's dependencies, for scikit-build-core: llvmlite, which compiles loop nests, if it has wheels for this
platform. Elsewhere pip would build LLVM from source; there the interpreter runs programs."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping

TORCH = "torch>=2.10"
PLATFORMS = (
    "sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'",
    "sys_platform == 'darwin' and platform_machine == 'arm64'",
)
LLVMLITE = f"llvmlite>=0.50; python_version < '3.16' and ({' or '.join(f'({platform})' for platform in PLATFORMS)})"


def dynamic_metadata(settings: Mapping[str, object], project: Mapping[str, object]) -> dict[str, list[str]]:
    if settings:
        raise ValueError(f"dependencies: expected no settings, but got {settings}")
    return {"dependencies": [TORCH, LLVMLITE] if has_wheels() and not without_extension() else [TORCH]}


def has_wheels(version: tuple[int, ...] = sys.version_info[:2]) -> bool:
    """Of llvmlite, without a GIL only for 3.14 and later, which no environment marker can express."""
    return not sysconfig.get_config_var("Py_GIL_DISABLED") or version >= (3, 14)


def dynamic_wheel(settings: Mapping[str, object]) -> dict[str, bool]:
    """A wheel's dependencies can differ from those in the source distribution's metadata."""
    return {"dependencies": True}


def without_extension() -> bool:
    """Whether FOURFOLD_NO_EXTENSION requests the package in plain torch, which has no loop nests. scikit-build-core
    reads the variable by the same rule for pyproject.toml's override."""
    asked = os.environ.get("FOURFOLD_NO_EXTENSION", "").lower()
    return int(asked) != 0 if asked.isdigit() else asked not in ("", "n", "no", "off", "false", "f")
