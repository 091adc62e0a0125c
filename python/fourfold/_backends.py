"""Which backends this build has, and which of them can be used on this machine."""

from __future__ import annotations

from typing import TypedDict

import torch

from fourfold import _C


class Backend(TypedDict):
    built: bool
    usable: bool
    reason: str


def backends() -> dict[str, Backend]:
    """Each backend's name (cpu, cuda, hip, metal) with whether it was built, whether it is usable here, and why."""
    result: dict[str, Backend] = {}
    for name, (built, reason) in _C.backends().items():
        why_not = None if built else f"not built: {reason}"
        result[name] = Backend(built=built, usable=built and not _missing(name), reason=why_not or _missing(name))
    return dict(sorted(result.items()))


def _missing(name: str) -> str:
    """What keeps a backend that was built from being used; empty when nothing does."""
    available = {
        "cpu": lambda: True,
        "cuda": lambda: torch.version.cuda is not None and torch.cuda.is_available(),
        "hip": lambda: torch.version.hip is not None and torch.cuda.is_available(),
        "metal": lambda: torch.backends.mps.is_available(),
    }
    return "" if available[name]() else f"torch {torch.__version__} sees no {name} device"


def cpu_capability() -> str:
    """The CPU level whose kernels run: default, avx2, avx512, avx512_bf16 or amx. The environment's
    FOURFOLD_CPU_CAPABILITY lowers it."""
    return _C.cpu_capability()


def operator_names() -> tuple[str, ...]:
    """The operators of this build, as in torch.ops.fourfold; each has its gradient's operator beside it where it
    needs one."""
    return tuple(_C.build_info()["operators"])
