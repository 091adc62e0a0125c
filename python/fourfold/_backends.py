"""Which backends this build has, and which of them can be used on this machine."""

from typing import TypedDict

import torch

from fourfold import _C


class Backend(TypedDict):
    built: bool
    usable: bool
    reason: str


def backends() -> dict[str, Backend]:
    """Returns for each backend (cpu, cuda, hip, metal) whether this build has it, whether it is usable on this machine,
    and the reason if not.
    """
    available = {
        "cpu": lambda: True,
        "cuda": lambda: torch.version.cuda is not None and torch.cuda.is_available(),
        "hip": lambda: torch.version.hip is not None and torch.cuda.is_available(),
        "metal": torch.backends.mps.is_available,
    }
    result: dict[str, Backend] = {}
    for name, (built, reason) in sorted(_C.backends().items()):
        if not built:
            why_not = f"not built: {reason}"
        else:
            why_not = "" if available[name]() else f"torch {torch.__version__} sees no {name} device"
        result[name] = Backend(built=built, usable=not why_not, reason=why_not)
    return result


def cpu_capability() -> str:
    """Returns the CPU level whose kernels run: default, avx2, avx512, avx512_bf16 or amx. The environment variable
    FOURFOLD_CPU_CAPABILITY selects a lower one that this build has.
    """
    return _C.cpu_capability()


def operator_names() -> tuple[str, ...]:
    """Returns the names of this build's operators in torch.ops.fourfold, without the operators of their gradients."""
    return tuple(_C.build_info()["operators"])
