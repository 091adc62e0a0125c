"""The options of ``torch.compile(..., backend="fourfold", options={...})``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from fourfold import _C

GENERATORS = tuple(_C.generators())  # what runs programs
VARIABLE = "FOURFOLD_GENERATOR"
DEFAULT = "auto"

# Where programs round float16 and bfloat16; the first is the default.
ROUNDINGS = ("stored", "eager")
VARIABLE_OF_ROUNDING = "FOURFOLD_ROUND"
CHOICES = {"generator": GENERATORS, "round": ROUNDINGS}

# What to write instead of Inductor's modes.
INSTEAD_OF_MODE = {"reduce-overhead": "leave it out: compiled graphs are called from C++ already"}


@dataclass(frozen=True)
class Options:
    """trace: log each program, by the logger ``fourfold.compiler`` at level INFO.

    generator: what runs programs: "interpreter"; "auto", the interpreter until a layout recurs and its loop nest is
    compiled; "llvm", loop nests, each compiled when it is first called. The default is the environment variable
    FOURFOLD_GENERATOR.

    round: where float16 and bfloat16 are rounded: "stored", where a program stores a tensor; "eager", after each
    operator. The default is the environment variable FOURFOLD_ROUND."""

    trace: bool = False
    generator: str | None = None
    round: str | None = None

    @property
    def rounds_each(self) -> bool:
        """Whether the result of each operator is rounded."""
        return (self.round or rounding_of_environment()) == "eager"

    @classmethod
    def of(cls, given: Mapping[str, object] | None) -> Options:
        """Raises ValueError for an unknown name, TypeError for a value of another type."""
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"fourfold: expected options to be a dict, but got {given!r}")
        known = {field.name: field for field in fields(cls)}
        for name, value in (given or {}).items():
            if name not in known:
                raise ValueError(f"fourfold: expected an option of {', '.join(known)}, but got {name!r}")
            if name in CHOICES:
                if value is not None and value not in CHOICES[name]:
                    choices = ", ".join(CHOICES[name])
                    raise ValueError(f"fourfold: expected option {name} to be one of {choices}, but got {value!r}")
            elif type(value) is not bool:
                raise TypeError(f"fourfold: expected option {name} to be True or False, but got {value!r}")
        return cls(**(given or {}))


def generator_of_environment() -> str:
    """The generator in FOURFOLD_GENERATOR, or the default. Raises ValueError for anything but a generator."""
    name = os.environ.get(VARIABLE) or DEFAULT
    if name not in GENERATORS:
        raise ValueError(f"fourfold: expected {VARIABLE} to be one of {', '.join(GENERATORS)}, but got {name!r}")
    return name


def rounding_of_environment() -> str:
    """The rounding in FOURFOLD_ROUND, or the default. Raises ValueError for anything but a rounding."""
    name = os.environ.get(VARIABLE_OF_ROUNDING) or ROUNDINGS[0]
    if name not in ROUNDINGS:
        raise ValueError(
            f"fourfold: expected {VARIABLE_OF_ROUNDING} to be one of {', '.join(ROUNDINGS)}, but got {name!r}"
        )
    return name


def refuse_others(given: Mapping[str, object]) -> None:
    """Raises TypeError, with the alternative, for arguments of torch.compile that only other backends have."""
    known = ", ".join(field.name for field in fields(Options))
    if "mode" in given:
        mode = given["mode"]
        instead = INSTEAD_OF_MODE.get(mode, "leave it out") if isinstance(mode, str) else "leave it out"
        raise TypeError(f"fourfold: expected no mode, but got {mode!r}; {instead} (options: {known})")
    if given:
        raise TypeError(f"fourfold: expected no {' or '.join(given)}, which other backends have (options: {known})")
