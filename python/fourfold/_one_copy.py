"""One import of the Python package per process: torch keeps an import's registrations until the process ends."""

import sys
from pathlib import Path

import torch

_HERE = str(Path(__file__).parent)


def expect() -> None:
    """Raises ImportError if another import of this package, since removed from sys.modules, has registered operators.
    Call it before anything is registered."""
    first = vars(torch.ops.fourfold).setdefault("python_package", _HERE)
    if first == _HERE and not _is_registered():
        return
    if "fourfold.operators._operator" in sys.modules:  # importlib.reload, which registers nothing again
        return
    raise ImportError(
        f"fourfold: expected one import of the package in a process, but {_HERE} is imported after {first}, whose "
        "operators torch keeps; restart Python, and keep one of them on sys.path"
    )


def _is_registered() -> bool:
    if not torch._C._dispatch_has_kernel("fourfold::axpby"):  # no libfourfold yet
        return False
    keys = ("FuncTorchDynamicLayerFrontMode", "CompositeImplicitAutograd")  # the latter in the plain package
    return any(torch._C._dispatch_has_kernel_for_dispatch_key("fourfold::axpby", key) for key in keys)
