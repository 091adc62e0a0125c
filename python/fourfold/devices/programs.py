"""Which devices programs run on, and what compiles their kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch

from fourfold import _C
from fourfold.devices import hiprtc, nvrtc

# The numbers of torch's device types.
NUMBERS = {"cpu": 0, "cuda": 1, "mps": 13}


# Device types whose programs compute in float32 where others use float64 to be exact.
WITHOUT_FLOAT64 = {"mps"}

# Device types that run programs before their kernels are compiled, or without kernels.
INTERPRETED = {"cpu"}


@dataclass(frozen=True)
class Language:
    """printer: the module of fourfold.compiler.nest that prints kernels. compile: compiles a source for an architecture
    to what the library loads; its third argument is a name for messages. obstacle: why nothing can be compiled, or
    None."""

    printer: str
    compile: Callable[[str, str, str], bytes]
    obstacle: Callable[[], str | None]

    def module(self) -> ModuleType:
        return importlib.import_module(f"fourfold.compiler.nest.print.{self.printer}")


# By the first word of a target in cuda/ and metal/.
LANGUAGES = {
    "cuda": Language("cuda", nvrtc.installed.compile, nvrtc.installed.obstacle),
    "hip": Language("cuda", hiprtc.installed.compile, hiprtc.installed.obstacle),
    # The library passes the source to the system's compiler.
    "metal": Language("metal", lambda source, architecture, name: source.encode(), lambda: None),
}


@cache
def obstacle(type: str) -> str:
    """Why programs don't run on devices of a type of torch's; empty if they do."""
    if type == "cpu":
        return ""
    if NUMBERS.get(type) not in _C.program_backends():
        return f"this build of fourfold runs no programs on {type}"
    return LANGUAGES[language_of(type)].obstacle() or ""


def language_of(type: str) -> str:
    """The first word of the targets of a device's type."""
    return "metal" if type == "mps" else "hip" if torch.version.hip else "cuda"


def place_of(device: torch.device) -> tuple[int, int]:
    """A device in the library's form: the number of its type, and its index."""
    return NUMBERS[device.type], device.index or 0
