"""The build backend: scikit-build-core, without a second torch. Where the environment that fourfold is installed into
has a torch, the build uses that one (cmake/torch.cmake), and pip downloads none for the build's own environment.

pip's environment of a build runs the Python that it installs for, which therefore knows where that torch is. In a
virtual environment of a build's own (python -m build, uv) there is none, and the build requires torch as usual.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build

MINIMUM = (2, 10)  # of cmake/torch.cmake


def packages() -> Path:
    """Those of the environment that fourfold is installed into."""
    return Path(sysconfig.get_path("platlib"))


def has_torch() -> bool:
    """Whether a torch that fourfold supports is installed there."""
    file = packages() / "torch" / "version.py"
    found = re.search(r"^__version__ = '(\d+)\.(\d+)", file.read_text(), re.MULTILINE) if file.exists() else None
    return found is not None and tuple(map(int, found.groups())) >= MINIMUM


def _without_torch(requirements: list[str]) -> list[str]:
    return [each for each in requirements if not (re.match(r"torch\b", each) and has_torch())]


def get_requires_for_build_wheel(config_settings: dict[str, list[str] | str] | None = None) -> list[str]:
    return _without_torch(_build.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: dict[str, list[str] | str] | None = None) -> list[str]:
    return _without_torch(_build.get_requires_for_build_editable(config_settings))


def __getattr__(name: str) -> Any:
    """The other hooks: which there are depends on scikit-build-core's version."""
    return getattr(_build, name)
