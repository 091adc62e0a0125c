"""The options of ``torch.compile(..., backend="fourfold", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

CPU = ("interpreter", "cxx")
COMPILED = 'leave it out, or have a C++ compiler make each program with options={"cpu": "cxx"}'
# What to write in the place of each of Inductor's modes.
INSTEAD_OF_MODE = {
    "reduce-overhead": "leave it out: compiled graphs are called from C++ already",
    "max-autotune": COMPILED,
    "max-autotune-no-cudagraphs": COMPILED,
}


@dataclass(frozen=True)
class Options:
    """min_elements: groups of fewer elements are left to torch. reductions: whether sums and the like become part of
    programs. cpu: who computes programs, primitives that are there ("interpreter") or what a C++ compiler makes of each
    ("cxx"); both give the same bits. trace: whether each program that is made is logged (``fourfold.compiler``, at
    level INFO)."""

    min_elements: int = 0
    reductions: bool = True
    cpu: str = "interpreter"
    trace: bool = False

    @classmethod
    def of(cls, given: Mapping[str, object] | None) -> Options:
        """Raises ValueError for a name that is none of these, TypeError for a value of another type."""
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"fourfold: expected options to be a dict, but got {given!r}")
        known = {field.name: field for field in fields(cls)}
        for name, value in (given or {}).items():
            if name not in known:
                raise ValueError(f"fourfold: expected an option of {', '.join(known)}, but got {name!r}")
            expected = type(known[name].default)
            if type(value) is not expected or expected is int and value < 0:
                what = "a number of at least 0" if expected is int else "True or False"
                what = "a string" if expected is str else what
                raise TypeError(f"fourfold: expected option {name} to be {what}, but got {value!r}")
            if name == "cpu" and value not in CPU:
                raise ValueError(f"fourfold: expected option cpu to be {' or '.join(CPU)}, but got {value!r}")
        return cls(**(given or {}))


def refuse_others(given: Mapping[str, object]) -> None:
    """Raises TypeError for arguments of torch.compile that are other backends', and says what to write instead."""
    known = ", ".join(field.name for field in fields(Options))
    if "mode" in given:
        mode = given["mode"]
        instead = INSTEAD_OF_MODE.get(mode, "leave it out") if isinstance(mode, str) else "leave it out"
        raise TypeError(f"fourfold: expected no mode, but got {mode!r}; {instead} (options: {known})")
    if given:
        raise TypeError(f"fourfold: expected no {' or '.join(given)}, which other backends have (options: {known})")
